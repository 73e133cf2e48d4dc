"""Waiting for somebody else's task for a while, and not for what our own loop was late with."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

_ROUNDS: Final = 8


async def in_time(asked: Coroutine[Any, Any, T], within: float | None) -> T:
    """What comes of it; raises TimeoutError after ``within`` seconds. It ends with whoever waits."""
    task = asyncio.create_task(asked)
    task.add_done_callback(seen)
    try:
        if not await ended(task, within):
            raise TimeoutError
    finally:
        task.cancel()
    return task.result()


async def ended(task: asyncio.Task[Any], within: float | None) -> bool:
    """Whether a task has ended, after ``within`` seconds at the latest where that is given.

    Where our own loop was late, the reply may have arrived and not been looked at: that takes some rounds.
    """
    await asyncio.wait({task}, timeout=within)
    for _ in range(_ROUNDS):
        if task.done():
            break
        await asyncio.sleep(0)
    return task.done()


def seen(task: asyncio.Future[Any]) -> None:
    """Whoever waited may have left: the error is known all the same."""
    if not task.cancelled():
        task.exception()
