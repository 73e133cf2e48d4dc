"""Waiting for somebody else's task for a while, and not for what our own loop was late with."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")
_ROUNDS: Final = 8
_LONG: Final = 500
"""So many messages take some ten milliseconds. Calls have fewer, and need no thread."""


async def wait_for(asked: Coroutine[Any, Any, T], within: float | None) -> T:
    """What comes of it; raises TimeoutError after ``within`` seconds. It ends with whoever waits."""
    task = asyncio.create_task(asked)
    task.add_done_callback(retrieve_exception)
    try:
        if not await wait_until_done(task, within):
            raise TimeoutError
    finally:
        task.cancel()
    return task.result()


async def wait_until_done(task: asyncio.Task[Any], within: float | None) -> bool:
    """Whether a task has ended, after ``within`` seconds at the latest where that is given.

    Where our own loop was late, the reply may have arrived and not been looked at: that takes some rounds.
    """
    await asyncio.wait({task}, timeout=within)
    for _ in range(_ROUNDS):
        if task.done():
            break
        await asyncio.sleep(0)
    return task.done()


def retrieve_exception(task: asyncio.Future[Any]) -> None:
    """Whoever waited may have left: the error is known all the same."""
    if not task.cancelled():
        task.exception()


async def in_thread_if_long(work: Callable[[], T], messages: int) -> T:
    """What comes of work on so many messages: in a thread where they are many, else at once."""
    return work() if messages < _LONG else await asyncio.to_thread(work)
