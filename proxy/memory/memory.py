"""The memory of a configuration: its stores, their writers and readers, opened and closed together."""

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

# A store's own time-out ends a moment before, so that its error is seen.
_OPEN_WITHIN: Final = 1.1
_DRAIN_WITHIN: Final = 2.5
# What is not archived by then is found again; a store that took its time was mostly the same database.
_ARCHIVE_AT_LEAST: Final = 0.3
_REFUSED_WITHIN: Final = 0.03
_PING_PAUSE: Final = 0.02
_WRITTEN_WITHIN: Final = 0.5


class FactMemory(msgspec.Struct, frozen=True):
    """The facts of users, and what reads them for calls.

    ``mem0`` and ``values`` are where the facts are stored, if not in the archive: Mem0, or beside the
    sessions. ``pending_changes`` are those that a tool has confirmed and that are still being made.
    """

    users: UserFacts
    reader: FactReader
    mem0: Mem0 | None = None
    values: FactValues | None = None
    pending_changes: PendingChanges = msgspec.field(default_factory=PendingChanges)


class Archiving(msgspec.Struct, frozen=True):
    """The archive of turns, and what reads it for calls; ``archivist`` fills it, where this process does."""

    archive: Archive
    retriever: Retriever
    recall: RecallReader
    archivist: Archivist | None = None


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Sessions and what is remembered beside them.

    ``recorder`` queues the turns that ``writer`` writes to ``store``; ``health`` checks the store between
    calls. ``calls`` are the last ones of each user. ``privacy`` knows every place that holds words of users,
    and ``redaction`` what none may hold.
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
    """Finds facts, turns and documents; ``None`` where there are none."""
    archiving: Archiving | None
    health: HealthCheck
    redaction: WindowRedaction
    turns: "RedisTurns | None" = None
    """Where hosts keep turns for the web page together."""

    @property
    def degraded(self) -> bool:
        """Whether turns wait for the store, or it does not answer calls, or the health check."""
        return self.recorder.failing or self.health.read_failed or self.store.breaker.is_open

    async def open(self) -> None:
        """Opens the stores, so that no call waits for that; one that takes a second is unavailable."""
        until = asyncio.get_running_loop().time() + _OPEN_WITHIN
        self.health.read_failed = not await _answers(self.store.ping, until)
        if self.archiving:
            await _answers(self.archiving.archive.ping, until)

    async def wait_written(self, tenant: str, session: str | None = None) -> None:
        """Returns once the turns that have ended are written, of a tenant or of one session.

        Programs read and erase what the store has. One that takes no turns is not waited for, and one that
        is slow for half a second.
        """
        if not self.recorder.failing:
            await self.recorder.wait_written(tenant, session, within=_WRITTEN_WITHIN)

    def start(self) -> None:
        """Starts the archivist, where this process has it."""
        if self.archiving and self.archiving.archivist:
            self.archiving.archivist.start()

    def compare(self) -> None:
        """Has the archivist compare store and archive: it has not seen all that was written."""
        if self.archiving and self.archiving.archivist:
            self.archiving.archivist.compare()

    async def aclose(self) -> None:
        """Writes what is pending, within 2.5 seconds for all of it, and closes the stores."""
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
    """Whether a store answers by then, in the loop's time; after a quick refusal it is not asked again."""
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
