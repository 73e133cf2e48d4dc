"""The memory of a configuration: its stores with their writers and readers, opened and closed together."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import msgspec

from proxy.memory.archive.archive import Archive
from proxy.memory.archive.archivist import Archivist
from proxy.memory.archive.recall import RecallReader, Retriever, Searcher
from proxy.memory.episodes.episodes import Episodes
from proxy.memory.errors import StoreError
from proxy.memory.facts.fact_values import FactValues
from proxy.memory.facts.mem0 import Mem0
from proxy.memory.facts.user_facts import FactReader, PendingChanges, UserFacts
from proxy.memory.past_calls import PastCalls
from proxy.memory.privacy import PrivacyRegistry
from proxy.memory.recorder import HealthCheck, Recorder, Writer
from proxy.memory.redacted_view import WindowRedaction
from proxy.memory.stores.session_store import SessionStore
from proxy.memory.summaries import Summaries

if TYPE_CHECKING:
    from proxy.memory.stores.redis_turns import RedisTurns

# Longer than a store's own time-out, so that its error is raised.
_OPEN_WITHIN: Final = 1.1
_DRAIN_WITHIN: Final = 2.5
# The next start archives the rest; a slow store is usually the same database as the archive.
_ARCHIVE_AT_LEAST: Final = 0.3
_REFUSED_WITHIN: Final = 0.03
_PING_PAUSE: Final = 0.02
_WRITTEN_WITHIN: Final = 0.5


class FactMemory(msgspec.Struct, frozen=True):
    """The facts of users, and their reader for calls.

    Facts are in the archive unless ``mem0`` or ``values``, in the session store, is set. ``pending_changes``
    are changes that a tool has confirmed and that are under way.
    """

    users: UserFacts
    reader: FactReader
    mem0: Mem0 | None = None
    values: FactValues | None = None
    pending_changes: PendingChanges = msgspec.field(default_factory=PendingChanges)


class Archiving(msgspec.Struct, frozen=True):
    """The archive of turns, and its readers for calls; ``archivist`` is set in the process that fills it."""

    archive: Archive
    retriever: Retriever
    recall: RecallReader
    archivist: Archivist | None = None


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Sessions, and everything else that is remembered.

    ``recorder`` queues the turns that ``writer`` writes to ``store``; ``health`` checks the store between
    calls. ``calls`` are the last calls of each user. ``privacy`` has all places that store words of users,
    and ``redaction`` replaces what none of them may store.
    """

    store: SessionStore
    writer: Writer
    recorder: Recorder
    episodes: Episodes
    summaries: Summaries
    privacy: PrivacyRegistry
    calls: PastCalls
    facts: FactMemory | None
    search: Searcher | None
    """Searches facts, turns and documents; ``None`` if there are none."""
    archiving: Archiving | None
    health: HealthCheck
    redaction: WindowRedaction
    turns: "RedisTurns | None" = None
    """Where hosts keep turns for the web page together."""

    @property
    def degraded(self) -> bool:
        """Whether turns wait for the store, or it fails to answer calls or the health check."""
        return self.recorder.failing or self.health.read_failed or self.store.breaker.is_open

    async def open(self) -> None:
        """Opens the stores, so that no call waits for it; one that takes a second is unavailable."""
        until = asyncio.get_running_loop().time() + _OPEN_WITHIN
        self.health.read_failed = not await _answers(self.store.ping, until)
        if self.archiving:
            await _answers(self.archiving.archive.ping, until)

    async def wait_written(self, tenant: str, session: str | None = None) -> None:
        """Waits until ended turns of a tenant or of one session are written, for programs that read or erase.

        Returns at once if the store refuses turns, and after half a second if it is slow.
        """
        if not self.recorder.failing:
            await self.recorder.wait_written(tenant, session, within=_WRITTEN_WITHIN)

    def start(self) -> None:
        """Starts the archivist, if this process has it."""
        if self.archiving and self.archiving.archivist:
            self.archiving.archivist.start()

    def compare(self) -> None:
        """Makes the archivist compare store and archive, because it has missed writes."""
        if self.archiving and self.archiving.archivist:
            self.archiving.archivist.compare()

    async def aclose(self) -> None:
        """Writes everything pending within 2.5 seconds, and closes the stores."""
        clock = asyncio.get_running_loop().time
        until = clock() + _DRAIN_WITHIN
        pending = self.facts.pending_changes if self.facts else PendingChanges()
        await asyncio.gather(self.recorder.drain(), pending.drain())
        closing = [self.store.aclose()]
        if self.archiving:
            if self.archiving.archivist:
                await self.archiving.archivist.aclose(max(_ARCHIVE_AT_LEAST, until - clock()))
            closing.append(self.archiving.archive.aclose())
        if self.facts and self.facts.mem0:
            closing.append(self.facts.mem0.aclose())
        if self.turns:
            closing.append(self.turns.aclose())
        await self.episodes.aclose()
        await asyncio.gather(*closing)


async def _answers(ping: Callable[[], Awaitable[None]], until: float) -> bool:
    """Whether a store answers before ``until``, in loop time; a quick refusal is final."""
    now = asyncio.get_running_loop().time
    refused_by = now() + _REFUSED_WITHIN
    while now() < until:
        try:
            async with asyncio.timeout_at(until):
                await ping()
        except (StoreError, TimeoutError):
            if now() < refused_by:
                return False
        else:
            return True
        await asyncio.sleep(_PING_PAUSE)
    return False
