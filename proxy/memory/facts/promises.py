"""What somebody was told is so, made so beside the calls, and again until it is."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from proxy.memory.errors import StoreError

Work = Callable[[], Awaitable[object]]

_log = logging.getLogger("turnkeeper")
_SHORTEST, _LONGEST = 0.1, 2.0
_OUTAGE: Final = 60.0
_DRAINED_WITHIN: Final = 3.0


class Promises:
    """Changes of memory that nobody's leaving stops; a store that is away is waited for for a minute."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def make(self, works: Sequence[Work], behind: asyncio.Task[None] | None = None) -> asyncio.Task[None]:
        """Begins to do all of it, one behind the other, and ``behind`` what was begun before.

        Whoever wants to may wait.
        """
        task = asyncio.get_running_loop().create_task(_done(works, behind))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def drain(self) -> None:
        """Waits until all is done, for three seconds at most; what is left then is not done."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=_DRAINED_WITHIN)
            for task in late:
                task.cancel()
            if late:
                _log.error("%d answers' changes of what is known could not be written", len(late))


async def _done(works: Sequence[Work], behind: asyncio.Task[None] | None) -> None:
    if behind:
        await asyncio.wait({behind})
    until = asyncio.get_running_loop().time() + _OUTAGE
    for work in works:
        try:
            await _insisted(work, until)
        except Exception as error:  # noqa: BLE001 - one that cannot be done must not hold up the rest
            _log.error("A change of what is known could not be written: %s", type(error).__name__)


async def _insisted(work: Work, until: float) -> None:
    pause = _SHORTEST
    while True:
        try:
            await work()
        except StoreError:
            if asyncio.get_running_loop().time() + pause > until:
                raise
        else:
            return
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST)
