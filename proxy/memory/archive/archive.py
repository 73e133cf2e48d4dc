"""A place where what was said is kept for good: one contract, a driver for each database."""

from collections.abc import Mapping, Sequence
from datetime import UTC, tzinfo
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from proxy.memory.archive.vector import Vector
from proxy.memory.session import Entry, Session
from proxy.memory.stores.store import Key, Owner

Category = Literal["core", "daily", "conversation"]
Kind = Literal["turn", "fact", "document"]


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One message as it was heard, and the session in which it was. ``at`` is in seconds since 1970."""

    session: str
    began: float
    """When the session was made: the same name may come back."""
    at: float
    entry: Entry


class Fact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Something that is known of a person; times are in seconds since 1970.

    ``evidence`` names the turns that it rests on, ``replaces`` the fact in whose place it stands.
    """

    id: str
    text: str
    category: Category = "core"
    evidence: tuple[str, ...] = ()
    replaces: str | None = None
    created: float = 0.0
    expires: float | None = None
    superseded: float | None = None
    """Since when another fact stands in its place."""
    importance: float = 0.5

    def told(self) -> dict[str, Any]:
        """All of it by name, what is not known of it too."""
        return msgspec.structs.asdict(self)


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """A part of one of the tenant's documents that can be read by itself."""

    title: str
    text: str


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Something that answers a question; ``score`` is about 1 where it holds every word of it.

    Facts and documents were said in no session, by nobody, in no turn: ``source`` is the fact's id, and the
    document's path. ``timestamp`` is in seconds since 1970.
    """

    kind: Kind
    score: float
    text: str
    role: str | None = None
    session_id: str | None = None
    turn_id: int | None = None
    timestamp: float | None = None
    source: str | None = None


class Meaning(msgspec.Struct, frozen=True, kw_only=True):
    """What a question means to a ``model``: a vector of length 1.

    What is as alike as ``least`` (a cosine) gains nothing, what means the same gains ``weight``.
    """

    model: str
    vector: Vector
    weight: float
    least: float


class Unmeant(msgspec.Struct, frozen=True, kw_only=True):
    """A text that has no vector yet; ``None`` where it cannot be read. ``terms`` change with the text."""

    passage: int
    owner: Owner
    terms: str
    text: str | None


class Removed(NamedTuple):
    """How many turns and facts of a person were removed."""

    turns: int = 0
    facts: int = 0


class Buried(msgspec.Struct, frozen=True):
    """Which of a tenant's persons and sessions were forgotten, and when, in seconds since 1970."""

    persons: Mapping[str, float]
    sessions: Mapping[str, float]


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked, at ``now`` in seconds since 1970, and how many answers are wanted."""

    text: str
    now: float
    limit: int = 10
    zone: tzinfo = UTC
    """Where the days begin that the text speaks of."""
    meaning: Meaning | None = None
    """What the text means, where that is known."""


class Archive(Protocol):
    """What was said, by whom, and what is known. Every method may raise StoreError.

    A person is an Owner with a tenant and a name; one without a name owns nothing but documents. What belongs
    to another tenant or person is not there.
    """

    async def keep(self, key: Key, session: Session, *, mark: float) -> int:
        """Keeps what is held of a session as it is now; the same again changes nothing.

        What was corrected is corrected, what was withdrawn goes. An older state, by ``updated``, changes
        nothing where a newer one was kept; one from more than five seconds ahead orders nothing. ``mark`` is
        when this was the session, in seconds since 1970. Returns how many of the ``moved`` entries are kept:
        those behind are missing.
        """
        ...

    async def keep_moved(self, key: Key, session: Session, moved: Sequence[Entry], *, start: int) -> None:
        """Keeps entries that have moved out of a session, of which the first is the one at ``start``.

        It is the first of its turn, too: what a turn was said in is counted from there. Where a newer state
        was kept, nothing is changed.
        """
        ...

    async def marks(self, tenant: str) -> dict[str, float]:
        """By session, the newest mark that it was kept with."""
        ...

    async def search(self, person: Owner, query: Query) -> list[Found]:
        """The person's turns and facts, and the tenant's documents, best first."""
        ...

    async def unmeant(self, model: str, *, limit: int) -> list[Unmeant]:
        """A few of the texts, of anybody, of which no vector by this model was added."""
        ...

    async def add_vectors(self, model: str, vectors: Sequence[tuple[Unmeant, Vector | None]]) -> None:
        """Adds vectors of length 1 for texts that are still the same; ``None`` for one that has none."""
        ...

    async def turns(self, person: Owner, *, after: int = 0, limit: int = 1000) -> list[tuple[int, Turn]]:
        """What was said by the person and in the person's talks; each with the number to go on ``after``."""
        ...

    async def last_talk(self, person: Owner, *, limit: int) -> list[Turn]:
        """The end, in order, of the talk in which the person spoke last; of another's, what that one said."""
        ...

    async def turns_of(self, key: Key, *, start: int = 0, limit: int = 10_000) -> list[Turn]:
        """What is kept of a session, in order, from the turn at index ``start`` on."""
        ...

    async def forget(self, person: Owner, *, at: float) -> Removed:
        """Removes all that is the person's, for good; what was said up to ``at`` is refused from now on."""
        ...

    async def forget_session(self, key: Key, *, at: float) -> int:
        """Removes all turns of a session, and refuses what was said in it until ``at``; how many."""
        ...

    async def forget_strangers(self, key: Key, *, at: float) -> int:
        """Removes the turns of a session that belong to no person; how many there were.

        For a quarter of an hour, what was said in it until ``at`` is refused while it is nobody's session.
        """
        ...

    async def talks(self, tenant: str, *, after: str = "", limit: int = 100) -> dict[str, float]:
        """The sessions behind ``after`` in the order of their ids, and when each was kept last."""
        ...

    async def buried(self, tenant: str, *, since: float, until: float) -> Buried:
        """Who was forgotten between two times, and which sessions were, whoever did it."""
        ...

    async def add_fact(self, person: Owner, fact: Fact) -> None:
        """Adds a fact, or puts it in the place of the one with its id; the one it replaces is superseded."""
        ...

    async def facts(self, person: Owner, *, now: float, superseded: bool = False) -> list[Fact]:
        """What is known of a person and has not expired, the oldest first."""
        ...

    def facts_at_once(self, person: Owner, *, now: float) -> list[Fact] | None:
        """The same without those that were superseded, where nobody has to wait for it; else ``None``."""
        ...

    async def remove_fact(self, person: Owner, fact: str) -> bool:
        """Removes a fact; whether there was one."""
        ...

    async def add_document(self, tenant: str, path: str, chunks: Sequence[Chunk], *, at: float) -> None:
        """Puts a document in the place of what stood at its path."""
        ...

    async def documents(self, tenant: str) -> list[str]:
        """The paths of a tenant's documents."""
        ...

    async def remove_document(self, tenant: str, path: str) -> bool:
        """Removes a document; whether there was one."""
        ...

    async def sweep(self, *, before: float, limit: int = 200) -> int:
        """Removes a few turns that were recorded before a time; how many."""
        ...

    async def expire(self, *, now: float, limit: int = 200) -> int:
        """Removes a few facts that have expired; how many."""
        ...

    async def reindex(self, *, limit: int = 20) -> int:
        """Indexes anew a talk that stood in another's name, or a few texts of an older way; how many."""
        ...

    async def scrub(self) -> None:
        """Nothing that was removed can be read from the database's own files any more."""
        ...

    async def ping(self) -> None:
        """Returns if a turn could be kept now."""
        ...

    async def aclose(self) -> None:
        """Closes everything; further calls raise StoreError."""
        ...
