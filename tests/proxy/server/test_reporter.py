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
        count = len(traces._ring)
        turn_reporter.flush()
        return count

    assert asyncio.run(run()) == reported
    assert len(traces._ring) == turns


def test_those_that_take_longer_than_a_slice_are_reported_one_in_each_round(
    monkeypatch: pytest.MonkeyPatch, traces: Traces
) -> None:
    monkeypatch.setattr(reporter, "_SLICE", 0.0)

    async def run() -> list[int]:
        turn_reporter, counts = ended(traces, 20), []
        while len(traces._ring) < 20:
            await asyncio.sleep(0)
            counts.append(len(traces._ring))
        turn_reporter.close()
        return counts

    assert asyncio.run(run()) == list(range(1, 21))
