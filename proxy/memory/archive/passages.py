"""What a call gets to hear of its person, within its deadline."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, tzinfo
from typing import Final

from filters.remembered import Remembered
from proxy.memory.archive.archive import Found, Query
from proxy.memory.archive.finder import Finder
from proxy.memory.errors import StoreError
from proxy.memory.stores.store import Owner
from proxy.memory.tasks import wait_for

_SHUT: Final = 0.5
_SLOW: Final = 3
# The filter leaves out what the window shows, and what says the same twice.
_SPARE: Final = 20


class Passages:
    """Asks the archive on behalf of calls, which it keeps waiting for ``deadline`` seconds at most.

    An archive that was too slow three times in a row is left alone for half a second.
    """

    def __init__(self, finder: Finder, *, deadline: float) -> None:
        self._finder = finder
        self._deadline = deadline
        self._shut_until = 0.0
        self._slow = 0

    async def of(
        self, person: Owner, text: str, *, now: float, limit: int, zone: tzinfo = UTC
    ) -> tuple[Remembered, ...]:
        """What answers a text, best first, with some to spare. Raises StoreError."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._shut_until:
            raise StoreError("the archive did not answer in time a moment ago")
        query = Query(text=text, now=now, limit=3 * limit + _SPARE, zone=zone)
        try:
            look = self._finder.search(person, query, within=self._deadline)
            found = await wait_for(look, self._deadline)
        except TimeoutError:
            self._slow += 1
            if self._slow >= _SLOW:
                self._shut_until = loop.time() + _SHUT
            raise StoreError("the archive is too slow") from None
        self._slow = 0
        return _told(found)


def _told(found: Sequence[Found]) -> tuple[Remembered, ...]:
    return tuple(
        Remembered(
            kind=one.kind,
            text=one.text,
            score=one.score,
            role=one.role,
            source=one.source or one.session_id,
            at=one.timestamp,
        )
        for one in found
    )
