"""What is remembered with: where sessions and turns are kept, who writes them, and who tells of them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from proxy.memory.archive.archive import Archive
from proxy.memory.archive.archivist import Archivist
from proxy.memory.archive.recall import RecallReader, Retriever
from proxy.memory.episodes.episodes import Episodes
from proxy.memory.errors import StoreError
from proxy.memory.facts.mem0 import Mem0
from proxy.memory.facts.user_facts import FactReader, PendingChanges, UserFacts
from proxy.memory.privacy import PrivacyRegistry
from proxy.memory.recorder import HealthCheck, Recorder, Writer
from proxy.memory.redaction.view import WindowRedaction
from proxy.memory.stores.session_store import SessionStore
from proxy.memory.summaries import Summaries

# A store's own patience ends a moment before, so that it is known to be away.
_OPENING: Final = 1.1
_DRAINED_WITHIN: Final = 3.0
# What is not archived by then is found again; a store that took its time was mostly the same database.
_LEAST: Final = 0.3
_AT_ONCE: Final = 0.03
_PAUSE: Final = 0.02


class Archiving(msgspec.Struct, frozen=True):
    """Where turns are kept for good, who takes them there, and who asks for them on behalf of calls.

    ``promises`` are changes of facts that callers have heard of.
    """

    archive: Archive
    retriever: Retriever
    archivist: Archivist
    recall: RecallReader
    facts: UserFacts
    fact_reader: FactReader
    mem0: Mem0 | None = None
    pending_changes: PendingChanges = msgspec.field(default_factory=PendingChanges)


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Where sessions are kept, who writes them down, where agents' episodes are, and who summarises.

    ``recorder`` has the ``writer`` write turns, in their order.
    ``people`` knows every place that holds a person's words.
    ``pulse`` is how the store fares while nobody calls, and ``guard`` whether calls ask it.
    ``redaction`` is of what all of these may hold.
    """

    store: SessionStore
    writer: Writer
    recorder: Recorder
    episodes: Episodes
    summaries: Summaries
    privacy: PrivacyRegistry
    archiving: Archiving | None
    health: HealthCheck
    redaction: WindowRedaction

    @property
    def degraded(self) -> bool:
        """Whether turns wait for a store that does not take them, or it does not answer calls, or nobody."""
        return self.recorder.failing or self.health.read_failed or self.store.breaker.is_open

    async def open(self) -> None:
        """The stores are open, so that no call waits for that; they are away where that takes a second."""
        until = asyncio.get_running_loop().time() + _OPENING
        self.health.read_failed = not await _answers(self.store.ping, until)
        if self.archiving:
            await _answers(self.archiving.archive.ping, until)

    def start(self) -> None:
        """Begins what is done beside the calls."""
        if self.archiving:
            self.archiving.archivist.start()

    async def aclose(self) -> None:
        """Writes down what is left, within three seconds for all of it, and closes the stores."""
        clock = asyncio.get_running_loop().time
        until = clock() + _DRAINED_WITHIN
        promised = self.archiving.pending_changes if self.archiving else PendingChanges()
        await asyncio.gather(self.recorder.drain(), promised.drain())
        closing = [self.store.aclose()]
        if self.archiving:
            await self.archiving.archivist.aclose(max(_LEAST, until - clock()))
            closing.append(self.archiving.archive.aclose())
            if self.archiving.mem0:
                closing.append(self.archiving.mem0.aclose())
        await self.episodes.aclose()
        await asyncio.gather(*closing)


async def _answers(ping: Callable[[], Awaitable[None]], until: float) -> bool:
    """Whether a store takes something by then, in the loop's time; who refuses at once is not asked again."""
    now = asyncio.get_running_loop().time
    refused_by = now() + _AT_ONCE
    while now() < until:
        try:
            async with asyncio.timeout_at(until):
                await ping()
        except (StoreError, TimeoutError):
            if now() < refused_by:
                return False
        else:
            return True
        await asyncio.sleep(_PAUSE)
    return False
