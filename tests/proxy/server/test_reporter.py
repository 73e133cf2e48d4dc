"""Turns that have ended are reported together, and soon where there are many."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from proxy.observe.metrics import Metrics
from proxy.observe.observation import Observation, TurnReport
from proxy.server import reporter
from proxy.traces import Retention, Traces


@pytest.mark.parametrize(("turns", "reported"), [(1, 0), (31, 0), (32, 32), (40, 32)])
def test_as_many_as_are_reported_at_once_do_not_wait(
    monkeypatch: pytest.MonkeyPatch, turns: int, reported: int
) -> None:
    monkeypatch.setattr(reporter, "_DELAY", 3600.0)
    traces = Traces()
    traces.set_retention(Retention(turns=100))
    runtime = cast("Any", SimpleNamespace(tracing=None, log_content=False))

    async def run() -> int:
        turn_reporter = reporter.TurnReporter(Metrics(), traces, runtime)
        for number in range(turns):
            report = TurnReport(id=f"t{number}", pipeline="default")
            Observation(report, turn_reporter.observe).end("done")
        await asyncio.sleep(0)
        count = len(traces._ring)
        turn_reporter.flush()
        return count

    assert asyncio.run(run()) == reported
    assert len(traces._ring) == turns
