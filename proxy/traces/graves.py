"""Who was forgotten elsewhere, from a terminal or by another machine, leaves the turns that are kept here."""

import asyncio
import contextlib
import time
from typing import Final

from proxy.memory.archive.archive import Archive
from proxy.memory.faults import StoreError
from proxy.memory.store import APART
from proxy.traces.traces import Traces

_EVERY: Final = 5.0
# How far the clocks of two machines may be apart, and how long a turn may take to be kept.
_SLACK: Final = 120.0


class Graves:
    """What an archive knows of the forgotten, for the turns that a process keeps."""

    def __init__(self, archive: Archive, traces: Traces) -> None:
        self._archive = archive
        self._traces = traces
        self._seen = 0.0

    async def look(self) -> None:
        """Looks every few seconds, until it is cancelled; an archive that is away is asked again."""
        while True:
            with contextlib.suppress(StoreError):
                await self._look()
            await asyncio.sleep(_EVERY)

    async def _look(self) -> None:
        now = time.time()
        for tenant, oldest in self._traces.oldest().items():
            since = max(oldest, self._seen - _SLACK)
            buried = await self._archive.buried(tenant, since=since, until=now + APART)
            self._traces.let_go_buried(tenant, buried)
        self._seen = now
