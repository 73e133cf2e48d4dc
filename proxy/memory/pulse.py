"""Whether a store answers and takes what it is given: told by who writes, and asked while nobody does."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from proxy.memory.faults import StoreError, Unreadable
from proxy.memory.store import Key, Store

LATE: Final = 0.2
"""Seconds by which a write may take longer than a call waits: stores gather what they write for a while."""
_EVERY: Final = 3.0
_AGAIN: Final = 1.0
# No key's name begins like this, so that nothing is ever held here.
_NOBODY: Final = Key("~pulse", "")


class Pulse:
    """How one store fares. A write is late once it has taken longer than ``patience`` seconds.

    ``refusing`` is whether the last write failed, and ``silent`` whether the last look did.
    """

    def __init__(self, store: Store, *, patience: float = LATE) -> None:
        self.refusing = False
        self.silent = False
        self._store = store
        self._patience = patience
        self._writing: dict[Key, float] = {}

    @property
    def late(self) -> bool:
        """Whether the oldest write under way has taken longer than ``patience`` seconds."""
        began = next(iter(self._writing.values()), None)
        return began is not None and time.monotonic() - began > self._patience

    @contextmanager
    def writing(self, key: Key) -> Iterator[None]:
        """A write that is under way. One that fails for a reason of its session's own tells nothing."""
        self._writing[key] = time.monotonic()
        try:
            yield
        finally:
            self._writing.pop(key, None)
        self.refusing = self.silent = False

    def refused(self, error: StoreError) -> None:
        """A turn could not be written."""
        self.refusing = not isinstance(error, Unreadable)

    async def run(self) -> None:
        """Looks every few seconds until it is cancelled: nobody may call for hours."""
        while True:
            self.silent = not await self._answers()
            await asyncio.sleep(_AGAIN if self.silent else _EVERY)

    async def _answers(self) -> bool:
        try:
            await self._store.read(_NOBODY, leisure=True)
        except StoreError as error:
            return isinstance(error, Unreadable)
        return True
