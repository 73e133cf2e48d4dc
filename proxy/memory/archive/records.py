"""What the archive takes and gives: turns, facts, parts of documents, queries and results."""

from collections.abc import Mapping
from datetime import UTC, tzinfo
from typing import Any, Literal, NamedTuple

import msgspec

from proxy.memory.session import Entry
from proxy.memory.stores.store import Owner

Category = Literal["core", "daily", "conversation"]
Kind = Literal["turn", "fact", "document"]
Vector = tuple[float, ...]
"""Numbers whose squares add up to 1."""


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One message as it was heard, and the session in which it was. ``at`` is in seconds since 1970."""

    session: str
    created: float
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

    def as_dict(self) -> dict[str, Any]:
        """All of it by name, what is not known of it too."""
        return msgspec.structs.asdict(self)


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """A part of one of the tenant's documents that can be read by itself."""

    title: str
    text: str


class SearchResult(msgspec.Struct, frozen=True, kw_only=True):
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


class QueryVector(msgspec.Struct, frozen=True, kw_only=True):
    """What a question means to a ``model``: a vector of length 1.

    What is as alike as ``least`` (a cosine) gains nothing, what means the same gains ``weight``.
    """

    model: str
    vector: Vector
    weight: float
    threshold: float


class UnembeddedText(msgspec.Struct, frozen=True, kw_only=True):
    """A text that has no vector yet; ``None`` where it cannot be read. ``terms`` change with the text."""

    passage: int
    owner: Owner
    terms: str
    text: str | None


class ErasureCount(NamedTuple):
    """How many turns and facts of a person were removed."""

    turns: int = 0
    facts: int = 0


class Tombstones(msgspec.Struct, frozen=True):
    """Which of a tenant's persons and sessions were forgotten, and when, in seconds since 1970."""

    users: Mapping[str, float]
    sessions: Mapping[str, float]


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked, at ``now`` in seconds since 1970, and how many answers are wanted."""

    text: str
    now: float
    limit: int = 10
    zone: tzinfo = UTC
    """Where the days begin that the text speaks of."""
    vector: QueryVector | None = None
    """What the text means, where that is known."""
