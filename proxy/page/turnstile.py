"""Work that is no call: one piece at a time, off the loop, and nobody waits for long."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Turnstile:
    """Lets one piece of work through after the other; the next one starts when the last has truly ended."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._free = asyncio.Lock()

    async def run(self, work: Callable[[], T]) -> T:
        """What comes of work in a thread. Raises TimeoutError after ``patience`` seconds, waiting too."""
        async with asyncio.timeout(self._patience):
            await self._free.acquire()
            running = asyncio.get_running_loop().run_in_executor(None, work)
            running.add_done_callback(self._done)
            return await asyncio.shield(running)

    def _done(self, running: "asyncio.Future[T]") -> None:
        self._free.release()
        if not running.cancelled():
            running.exception()  # whoever waited has it, or has gone
