"""What a call reads from its user's archive, and what happens if that comes too late."""

import asyncio
import threading
import time
from typing import Any

import pytest

from proxy.memory.archive.recall import RecallReader
from proxy.memory.archive.records import SearchResult
from proxy.memory.errors import StoreError
from proxy.memory.stores.store import Owner

DEADLINE = 0.05
ANN = Owner("default", "ann")
SAID = SearchResult(kind="turn", text="Hello?", score=1.0, role="user", session_id="s1", timestamp=1.0)


class Finder:
    """Finds one passage once it is let, and knows who stopped waiting."""

    def __init__(self) -> None:
        self.free = asyncio.Event()
        self.left = 0

    async def search(self, *_: Any, **__: Any) -> list[SearchResult]:
        try:
            await self.free.wait()
        except asyncio.CancelledError:
            self.left += 1
            raise
        return [SAID]


async def asked(finder: Finder, passages: RecallReader | None = None) -> list[str]:
    own = passages or RecallReader(finder, deadline=DEADLINE)  # type: ignore[arg-type]
    return [one.text for one in await own.search(ANN, "Who?", now=2.0, limit=3)]


async def test_what_comes_in_time_is_told() -> None:
    finder = Finder()
    finder.free.set()
    assert await asked(finder) == ["Hello?"]


async def test_what_comes_too_late_is_waited_for_by_nobody() -> None:
    finder = Finder()
    with pytest.raises(StoreError, match="too slow"):
        await asked(finder)
    await asyncio.sleep(0)
    assert finder.left == 1


async def test_a_caller_who_leaves_takes_his_question_along() -> None:
    finder = Finder()
    asking = asyncio.create_task(asked(finder))
    await asyncio.sleep(0.01)
    asking.cancel()
    await asyncio.wait({asking})
    await asyncio.sleep(0)
    assert (asking.cancelled(), finder.left) == (True, 1)


async def test_an_archive_that_was_late_three_times_is_left_alone_for_a_while() -> None:
    finder = Finder()
    passages = RecallReader(finder, deadline=DEADLINE)  # type: ignore[arg-type]
    for _ in range(3):
        with pytest.raises(StoreError, match="too slow"):
            await asked(finder, passages)
    finder.free.set()
    with pytest.raises(StoreError, match="a moment ago"):
        await asked(finder, passages)
    await asyncio.sleep(0.6)
    assert await asked(finder, passages) == ["Hello?"]


def test_what_came_while_the_loop_was_busy_is_not_late() -> None:
    async def busy() -> list[str]:
        loop, finder = asyncio.get_running_loop(), Finder()
        asking = asyncio.create_task(asked(finder))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        bell = threading.Timer(DEADLINE / 2, loop.call_soon_threadsafe, [finder.free.set])
        bell.start()
        time.sleep(2 * DEADLINE)
        return await asking

    uvloop = pytest.importorskip("uvloop")  # which looks at its clock first
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(busy()) == ["Hello?"]
