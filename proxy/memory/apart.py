"""What takes long is worked out in a thread, and the loop goes on with everybody else's calls."""

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

_LONG: Final = 500
"""So many messages take some ten milliseconds. Calls have fewer, and need no thread."""


async def apart(work: Callable[[], T], messages: int) -> T:
    """What comes of work on so many messages: in a thread where they are many, else at once."""
    return work() if messages < _LONG else await asyncio.to_thread(work)
