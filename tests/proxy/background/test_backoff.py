"""While what some work needs is away it is asked ever less, and it is found again when it is back."""

import asyncio
import itertools

import pytest

from proxy.background.backoff import JobCircuit
from tests.hurried_loop import run

HOUR = 3600.0


async def now() -> float:
    return asyncio.get_running_loop().time()


async def tries(circuit: JobCircuit, until: float, session: int) -> list[float]:
    """Returns the times at which a service that always fails may be tried."""
    times: list[float] = []
    while True:
        await circuit.admit()
        if await now() >= until:
            return times
        times.append(await now())
        circuit.failed(session, "no")
        await circuit.rest(1)


def test_pauses_grow_to_five_minutes_however_many_wait() -> None:
    async def work() -> list[float]:
        circuit, until = JobCircuit(), await now() + HOUR
        found = await asyncio.gather(*(tries(circuit, until, session) for session in range(50)))
        return sorted(time for times in found for time in times)

    times = run(work())
    pauses = [round(b - a) for a, b in itertools.pairwise(times)]
    grown = [pause for pause in pauses if pause > 1]
    assert grown[:5] == [5, 10, 20, 40, 80]
    assert max(grown) == 300
    assert grown[8:] == [300] * len(grown[8:])


def test_one_who_fails_alone_keeps_nobody_else_waiting() -> None:
    async def work() -> tuple[float, bool]:
        circuit, began = JobCircuit(), await now()
        for _ in range(2000):
            circuit.failed("one", "no")
        await circuit.admit()
        return await now() - began, circuit.failing

    waited, failing = run(work())
    assert waited < 1
    assert failing


def test_thousands_of_failures_in_a_row_break_nothing() -> None:
    async def work() -> float:
        circuit = JobCircuit()
        for number in range(5000):
            circuit.failed(number, "no")
            await circuit.admit()
        began = await now()
        await circuit.admit()
        return await now() - began

    assert run(work()) == pytest.approx(300, abs=1)


def test_with_the_first_success_all_who_wait_go_on() -> None:
    async def work() -> list[float]:
        circuit, began = JobCircuit(), await now()

        async def waits(rests: float) -> float:
            await circuit.rest(rests)
            await circuit.admit()
            return await now() - began

        for number in range(9):
            circuit.failed(number, "no")
        waiting = [asyncio.create_task(waits(rests)) for rests in (0.0, 0.0, 3600.0)]
        await asyncio.sleep(2)
        circuit.succeeded()
        return list(await asyncio.gather(*waiting))

    assert max(run(work())) < 3


def test_who_finds_nothing_to_try_leaves_the_turn_to_the_next() -> None:
    async def work() -> float:
        circuit = JobCircuit()
        for number in range(9):
            circuit.failed(number, "no")
        await circuit.admit()
        circuit.return_probe()
        began = await now()
        await circuit.admit()
        return await now() - began

    assert run(work()) < 1


def test_both_ends_of_it_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        circuit = JobCircuit("summaries")
        for _ in range(2):
            for number in range(20):
                circuit.failed(number, "The upstream answered 401.")
            circuit.succeeded()
            circuit.succeeded()

    with caplog.at_level("INFO", "turnkeeper"):
        run(work())
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"] * 2
    assert "summaries" in caplog.text
    assert "The upstream answered 401." in caplog.text


def test_a_model_that_asks_to_be_left_alone_is_left_alone_for_so_long() -> None:
    async def work() -> float:
        circuit = JobCircuit()
        for session in range(3):
            circuit.failed(session, "busy", retry_after=90.0)
        began = await now()
        await circuit.admit()
        return await now() - began

    assert 89 < run(work()) < 91


def test_but_never_for_longer_than_five_minutes() -> None:
    async def work() -> float:
        circuit = JobCircuit()
        for session in range(3):
            circuit.failed(session, "busy", retry_after=86_400.0)
        began = await now()
        await circuit.admit()
        return await now() - began

    assert 299 < run(work()) < 301
