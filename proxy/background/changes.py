"""Sessions that another process has written, brought to the background jobs of this one."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from proxy.circuit import Backoff
from proxy.memory.errors import StoreError
from proxy.memory.memory import Memory
from proxy.memory.session import UNREADABLE
from proxy.memory.stores.store import Key

_BACKOFF: Final = Backoff(0.1, 5.0)


class ChangedSessions:
    """Reads sessions that were written elsewhere, one at a time, and notifies the listeners of ``memory``.

    A session that is written again before it is read is read once.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._keys: dict[Key, None] = {}
        self._arrived = asyncio.Event()

    def add(self, keys: Iterable[Key], *, incomplete: bool = False) -> None:
        """Takes the names of sessions; ``incomplete`` is whether there are others, which are not known."""
        self._keys.update(dict.fromkeys(keys))
        self._arrived.set()
        archiving = self._memory.archiving
        if incomplete and archiving and archiving.archivist:
            archiving.archivist.compare()

    async def run(self) -> None:
        """Works until it is cancelled; while the store does not answer, it is asked again."""
        failures = 0
        while True:
            try:
                await self.read()
            except StoreError:
                failures += 1
                await asyncio.sleep(_BACKOFF.pause(failures))
            else:
                failures = 0
                self._arrived.clear()
                await self._arrived.wait()

    async def read(self) -> None:
        """Reads all that have been added; raises StoreError where the store does not answer."""
        while key := next(iter(self._keys), None):
            del self._keys[key]
            stored = None
            try:
                with suppress(*UNREADABLE):
                    stored = await self._memory.store.load(key, background=True)
            except StoreError:
                self._keys[key] = None
                raise
            if stored:
                self._memory.writer.notify(key, stored.session)
