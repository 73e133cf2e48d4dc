"""Facts that arrive too late are not read again until they have arrived, or a second has passed."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from proxy.memory.archive.records import Fact
from proxy.memory.errors import StoreError
from proxy.memory.facts.user_facts import FactReader, UserFacts
from proxy.memory.stores.store import Owner
from tests.hurried_loop import run

ANN, BOB, EVE = (Owner("acme", name) for name in ("ann", "bob", "eve"))
FACT = Fact(id="f1", text="Has a dog.", created=1.0)
DEADLINE = 0.05


class Slow:
    """Facts that take their time, each person's their own."""

    def __init__(self, takes: dict[Owner, float]) -> None:
        self.takes = takes
        self.asked = Counter[str]()

    async def facts(self, person: Owner, *, now: float, superseded: bool = False) -> list[Fact]:
        self.asked[person.user] += 1
        await asyncio.sleep(self.takes.get(person, 0.0))
        return [FACT]


class Held:
    """Facts that come when they are let go."""

    def __init__(self, come: asyncio.Event) -> None:
        self.come = come

    async def facts(self, person: Owner, *, now: float, superseded: bool = False) -> list[Fact]:
        await self.come.wait()
        return [FACT]


async def of(reader: FactReader, person: Owner = ANN) -> object:
    """Returns the facts, or how long it took to find that they cannot be read."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        return await reader.read(person)
    except StoreError:
        return pytest.approx(loop.time() - began, abs=0.01)


def read_through(
    ask: Callable[[Slow, FactReader], Awaitable[object]], takes: dict[Owner, float]
) -> tuple[object, Counter[str]]:
    async def asked() -> tuple[object, Counter[str]]:
        shelf = Slow(takes)
        return await ask(shelf, FactReader(UserFacts(shelf), deadline=DEADLINE)), shelf.asked

    return run(asked())


def test_what_came_too_late_is_asked_for_again_after_a_second() -> None:
    async def thrice(shelf: Slow, reader: FactReader) -> object:
        answers = [await of(reader), await of(reader)]
        shelf.takes.clear()
        await asyncio.sleep(1.0)
        return [*answers, await of(reader)]

    answers, asked = read_through(thrice, {ANN: 5.0})
    assert answers == [DEADLINE, 0.0, [FACT]]
    assert asked == {"ann": 2}


def test_what_came_a_little_late_is_asked_for_again_once_it_has_come() -> None:
    async def late(shelf: Slow, reader: FactReader) -> object:
        answers = [await of(reader), await of(reader)]
        shelf.takes.clear()
        await asyncio.sleep(0.02)
        return [*answers, await of(reader)]

    answers, _ = read_through(late, {ANN: DEADLINE + 0.01})
    assert answers == [DEADLINE, 0.0, [FACT]]


def test_one_person_who_takes_long_costs_no_other_his_facts() -> None:
    async def both(_: Slow, reader: FactReader) -> object:
        return [await of(reader, ANN), await of(reader, BOB), await of(reader, ANN)]

    answers, _ = read_through(both, {ANN: 0.8})
    assert answers == [DEADLINE, [FACT], 0.0]


def test_where_two_are_late_nobody_waits_any_more() -> None:
    async def three(shelf: Slow, reader: FactReader) -> object:
        answers = [await of(reader, person) for person in (ANN, BOB, EVE)]
        shelf.takes.clear()
        await asyncio.sleep(1.0)
        return [*answers, await of(reader, EVE)]

    answers, asked = read_through(three, {ANN: 5.0, BOB: 5.0, EVE: 5.0})
    assert answers == [DEADLINE, DEADLINE, 0.0, [FACT]]
    assert asked == {"ann": 1, "bob": 1, "eve": 1}


def test_facts_that_came_while_the_loop_was_busy_are_not_late() -> None:
    async def asked() -> object:
        loop, come = asyncio.get_running_loop(), asyncio.Event()
        reader = FactReader(UserFacts(Held(come)), deadline=DEADLINE)
        look = asyncio.create_task(of(reader))
        await asyncio.sleep(0)
        bell = threading.Timer(DEADLINE / 2, loop.call_soon_threadsafe, [come.set])
        bell.start()
        time.sleep(2 * DEADLINE)
        return await look

    uvloop = pytest.importorskip("uvloop")  # which looks at its clock first
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(asked()) == [FACT]


def test_a_caller_who_leaves_says_nothing_of_the_place() -> None:
    async def left(shelf: Slow, reader: FactReader) -> object:
        async with asyncio.timeout(DEADLINE / 2):
            await reader.read(ANN)

    async def then(shelf: Slow, reader: FactReader) -> object:
        with pytest.raises(TimeoutError):
            await left(shelf, reader)
        shelf.takes.clear()
        return await of(reader)

    answer, _ = read_through(then, {ANN: 5.0})
    assert answer == [FACT]
