"""Waiting for somebody else's task for a while, and not for what our own loop was late with."""

import asyncio
from typing import Any, Final

_ROUNDS: Final = 8


async def ended(task: asyncio.Task[Any], within: float) -> bool:
    """Whether a task has ended, after ``within`` seconds at the latest.

    Where our own loop was late, the reply may have arrived and not been looked at: that takes some rounds.
    """
    await asyncio.wait({task}, timeout=within)
    for _ in range(_ROUNDS):
        if task.done():
            break
        await asyncio.sleep(0)
    return task.done()
