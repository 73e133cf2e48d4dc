"""Turns that hosts share for their pages: few bytes a second leave a process, however many turns it has."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest

from proxy import shared_traces
from proxy.memory.stores.codec import Plain
from proxy.memory.stores.store import KeptTurn
from proxy.shared_traces import SharedTraces
from proxy.traces import Retention, Traces
from tests.proxy.test_traces import end

pytestmark = pytest.mark.anyio
KEEP = 20


class Kept:
    """Takes turns, as a Redis does."""

    def __init__(self) -> None:
        self.batches: list[tuple[float, Sequence[KeptTurn]]] = []

    async def add(self, _tenant: str, turns: Sequence[KeptTurn], *, keep: int) -> None:
        assert keep == KEEP
        self.batches.append((time.monotonic(), turns))


async def test_a_process_with_many_turns_sends_the_newest_of_them_and_not_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rate = 20_000
    monkeypatch.setattr(shared_traces, "_BATCH_TIME", 0.05)
    monkeypatch.setattr(shared_traces, "_BYTES_A_SECOND", rate)
    kept, traces = Kept(), Traces()
    shared: Any = SharedTraces(kept, Plain(), with_text=True)  # type: ignore[arg-type]
    traces.set_retention(Retention(turns=KEEP, content=True))
    traces.shared = shared
    ended = []
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        ended.append(end(traces))
        await asyncio.sleep(0.005)
    await shared.aclose()
    batches = [turns for _, turns in kept.batches]
    assert len(batches) > 1
    assert all(len(turns) <= KEEP for turns in batches)
    for (at, turns), (later, _) in zip(kept.batches, kept.batches[1:-1], strict=False):
        assert later - at >= sum(len(turn.report) + len(turn.content) for turn in turns) / rate
    assert {turn.id for turn in batches[-1]} == set(ended[-len(batches[-1]) :])
    assert len(ended) > sum(map(len, batches)), "and most are left out"
