"""Sessions that another process has written, brought to the background jobs of this one."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from proxy.circuit import Backoff
from proxy.memory.errors import StoreError
from proxy.memory.memory import Memory
from proxy.memory.session import UNREADABLE, decode
from proxy.memory.stores.store import Key

_BACKOFF: Final = Backoff(0.1, 5.0)
_MOST_SENDERS: Final = 10_000


class ChangedSessions:
    """Decodes sessions that were written elsewhere, one at a time, and notifies the listeners of ``memory``.

    A session that is written again before that is decoded once. It is read from the store where its bytes
    were too many to be sent, and where several processes write it: their messages have no order.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._blobs: dict[Key, bytes | None] = {}
        self._senders: dict[Key, int] = {}
        self._arrived = asyncio.Event()

    def add(
        self, sessions: Iterable[tuple[Key, bytes | None]], *, sender: int, incomplete: bool = False
    ) -> None:
        """Takes sessions of a process; ``incomplete`` is whether there are others, which are not known."""
        for key, blob in sessions:
            former = self._senders.pop(key, sender)
            self._senders[key] = sender
            self._blobs[key] = blob if former == sender else None
            if len(self._senders) > _MOST_SENDERS:
                del self._senders[next(iter(self._senders))]
        self._arrived.set()
        if incomplete:
            self._compare()

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
        """Brings all that have been added; raises StoreError where the store does not answer."""
        while key := next(iter(self._blobs), None):
            blob = self._blobs.pop(key)
            session = None
            try:
                with suppress(*UNREADABLE):
                    if blob is None:
                        stored = await self._memory.store.load(key, background=True)
                        session = stored and stored.session
                    else:
                        session = decode(blob)
            except StoreError:
                self._blobs.setdefault(key, None)
                raise
            if session:
                self._memory.writer.notify(key, session)
            await asyncio.sleep(0)  # other work goes on between two of them

    async def aclose(self) -> None:
        """Brings what is left; what cannot be read is found when store and archive are compared."""
        try:
            await self.read()
        except StoreError:
            self._compare()

    def _compare(self) -> None:
        archiving = self._memory.archiving
        if archiving and archiving.archivist:
            archiving.archivist.compare()
