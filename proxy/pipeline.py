"""What a turn goes through: filters, then an upstream, each made ready when the settings were read."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, tzinfo
from typing import Final

import msgspec

from filters.base import AnswerFilter, RequestFilter
from proxy.exact import Exact
from proxy.health import Health
from proxy.identity import Places
from proxy.kinds import Kind
from proxy.lately import Lately
from proxy.memory.archive.archive import Archive
from proxy.memory.archive.archivist import Archivist
from proxy.memory.archive.finder import Finder
from proxy.memory.archive.passages import Passages
from proxy.memory.episodes.source import Episodes
from proxy.memory.facts.acquaintance import Acquaintance
from proxy.memory.facts.knowledge import Knowledge
from proxy.memory.facts.mem0 import Mem0
from proxy.memory.facts.promises import Promises
from proxy.memory.faults import StoreError
from proxy.memory.guard import Guard
from proxy.memory.known import Wanted
from proxy.memory.people import People
from proxy.memory.pulse import Pulse
from proxy.memory.recent import Recent
from proxy.memory.redaction.veil import BARE, Veil
from proxy.memory.summaries.summaries import Summaries
from proxy.record import Recorder
from proxy.upstream import Headers, Upstream

# A store's own patience ends a moment before, so that it is known to be away.
_OPENING: Final = 1.1


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A model's address, and how it wants to be talked to. Times are in seconds.

    ``secrets`` are what of the headers no client may be told.
    """

    name: str
    health: Health
    upstream: Upstream
    kind: Kind
    headers: Headers
    secrets: tuple[bytes, ...] = ()
    model: str | None = None
    models: tuple[str, ...] = ()
    allow: frozenset[str] = frozenset()
    forward_headers: tuple[str, ...] = ()
    forward_key: bool = False
    first_token: float
    first_content: float | None = None
    total: float
    retries: int = 0

    @property
    def patience(self) -> float:
        """How long it may take to answer, where it is asked once."""
        return max(self.first_token, self.first_content or 0.0)


class Archiving(msgspec.Struct, frozen=True):
    """Where turns are kept for good, who takes them there, and who asks for them on behalf of calls.

    ``promises`` are changes of facts that callers have heard of.
    """

    archive: Archive
    finder: Finder
    archivist: Archivist
    passages: Passages
    knowledge: Knowledge
    acquaintance: Acquaintance
    mem0: Mem0 | None = None
    promises: Promises = msgspec.field(default_factory=Promises)


class Memory(msgspec.Struct, frozen=True):
    """Where sessions are kept, who writes them down, where agents' episodes are, and who summarises.

    ``people`` knows every place that holds a person's words.
    ``pulse`` is how the store fares while nobody calls, and ``guard`` whether calls ask it.
    ``veil`` is what is kept from all of these.
    """

    store: Recent
    recorder: Recorder
    episodes: Episodes
    summaries: Summaries
    people: People
    archiving: Archiving | None = None
    pulse: Pulse | None = None
    guard: Guard | None = None
    veil: Veil = BARE

    @property
    def degraded(self) -> bool:
        """Whether turns wait for a store that does not take them, or it does not answer calls, or nobody."""
        silent = self.pulse is not None and self.pulse.silent
        return self.recorder.failing or silent or (self.guard is not None and self.guard.shut)

    async def open(self) -> None:
        """The stores are open, so that no call waits for that; they are away where that takes a second."""
        until = asyncio.get_running_loop().time() + _OPENING
        answers = await _answers(self.store.ping, until)
        if self.pulse:
            self.pulse.silent = not answers
        if self.archiving:
            await _answers(self.archiving.archive.ping, until)

    def start(self) -> None:
        """Begins what is done beside the calls."""
        if self.archiving:
            self.archiving.archivist.start()

    async def aclose(self) -> None:
        """Writes down what is left, within three seconds for all of it, and closes the store."""
        promised = self.archiving.promises if self.archiving else Promises()
        await asyncio.gather(self.recorder.drain(), promised.drain())
        if self.archiving:
            await self.archiving.archivist.aclose()
            await self.archiving.archive.aclose()
            if self.archiving.mem0:
                await self.archiving.mem0.aclose()
        await self.episodes.aclose()
        await self.store.aclose()


async def _answers(ping: Callable[[], Awaitable[None]], until: float) -> bool:
    """Whether a store takes something by then, in the loop's time."""
    try:
        async with asyncio.timeout_at(until):
            await ping()
    except (StoreError, TimeoutError):
        return False
    return True


class Pipeline(msgspec.Struct, frozen=True, kw_only=True):
    """One named way from a client's messages to a model. Times are in seconds.

    ``first_token`` is what all its targets together have until one has begun to answer, ``total`` until it
    has ended. ``skips_failing`` is whether a turn goes on without a request filter that fails.
    """

    name: str
    targets: tuple[Target, ...]
    filters: Sequence[RequestFilter]
    answer: Sequence[AnswerFilter] = ()
    skips_failing: bool = False
    places: Places
    memory: Memory | None = None
    lately: Lately | None = None
    tools: tuple[str, ...] = ()
    tool_rounds: int = 0
    recalls: int = 0
    """How much is recalled of a person for each turn; 0 where no step tells of it."""
    most_messages: int = sys.maxsize
    """How many messages a request may have."""
    zone: tzinfo = UTC
    """Where the days begin that a person speaks of."""
    wanted: Wanted = Wanted()
    """What its steps do with what is known of a session."""
    tells: int = 0
    """How many facts about a person a prompt begins with; 0 where no step tells of them."""
    model: str | None = None
    exact: Exact | None = None
    first_token: float
    total: float
    hedge: float | None = None
    keep_alive: float | None = None
