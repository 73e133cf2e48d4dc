"""Turns that have ended are reported together, soon where there are many, and never for long at a time."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from proxy.observe.metrics import Metrics
from proxy.observe.observation import Observation, TurnReport
from proxy.server import reporter
from proxy.traces import Retention, Traces


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> Traces:
    monkeypatch.setattr(reporter, "_DELAY", 3600.0)
    traces = Traces()
    traces.set_retention(Retention(turns=100))
    return traces


def ended(traces: Traces, turns: int) -> reporter.TurnReporter:
    """A reporter of so many turns that have ended."""
    runtime = cast("Any", SimpleNamespace(tracing=None, log_content=False))
    turn_reporter = reporter.TurnReporter(Metrics(), traces, runtime)
    for number in range(turns):
        report = TurnReport(id=f"t{number}", pipeline="default")
        Observation(report, turn_reporter.observe).end("done")
    return turn_reporter


@pytest.mark.parametrize(("turns", "reported"), [(1, 0), (15, 0), (16, 16), (40, 40)])
def test_many_do_not_wait(monkeypatch: pytest.MonkeyPatch, traces: Traces, turns: int, reported: int) -> None:
    monkeypatch.setattr(reporter, "_SLICE", 3600.0)

    async def run() -> int:
        turn_reporter = ended(traces, turns)
        await asyncio.sleep(0)
        count = len(traces._traces)
        turn_reporter.flush()
        return count

    assert asyncio.run(run()) == reported
    assert len(traces._traces) == turns


def test_those_that_take_longer_than_a_slice_are_reported_one_in_each_round(
    monkeypatch: pytest.MonkeyPatch, traces: Traces
) -> None:
    monkeypatch.setattr(reporter, "_SLICE", 0.0)

    async def run() -> list[int]:
        turn_reporter, counts = ended(traces, 20), []
        while len(traces._traces) < 20:
            await asyncio.sleep(0)
            counts.append(len(traces._traces))
        turn_reporter.close()
        return counts

    assert asyncio.run(run()) == list(range(1, 21))


def test_turns_that_end_faster_than_a_slice_allows_do_not_pile_up(
    monkeypatch: pytest.MonkeyPatch, traces: Traces
) -> None:
    monkeypatch.setattr(reporter, "_SLICE", 0.0)

    async def run() -> list[int]:
        turn_reporter, waiting = ended(traces, 0), []
        for _ in range(400):
            for _ in range(10):
                Observation(TurnReport(pipeline="default"), turn_reporter.observe).end("done")
            await asyncio.sleep(0)
            waiting.append(len(turn_reporter._ended))
        turn_reporter.close()
        return waiting

    assert max(asyncio.run(run())) <= 160


def test_one_that_cannot_be_reported_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch, traces: Traces
) -> None:
    add = Traces.add

    def fail_once(own: Traces, report: TurnReport, observation: Observation) -> None:
        if report.id == "t3":
            raise ValueError
        add(own, report, observation)

    async def run() -> None:
        errors: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        monkeypatch.setattr(Traces, "add", fail_once)
        turn_reporter = ended(traces, 16)
        await asyncio.sleep(0)
        assert len(errors) == 1
        monkeypatch.setattr(reporter, "_DELAY", 0.0)
        Observation(TurnReport(id="t16", pipeline="default"), turn_reporter.observe).end("done")
        async with asyncio.timeout(30):
            while len(traces._traces) < 16:  # noqa: ASYNC110 - nothing tells when
                await asyncio.sleep(0)

    asyncio.run(run())
