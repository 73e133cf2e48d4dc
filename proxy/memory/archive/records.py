"""The archive's values: turns, facts, chunks of documents, queries and results."""

import hmac
from collections.abc import Mapping
from datetime import UTC, tzinfo
from typing import Any, Final, Literal, NamedTuple

import msgspec

from proxy.memory.archive.statements import SESSION, USER
from proxy.memory.extensible import Extensible
from proxy.memory.session import Entry
from proxy.memory.stores.sql import id_bytes
from proxy.memory.stores.store import Owner

DIGEST_MARK: Final = b"\xff"
"""The first byte of a tombstone's digest, which never occurs in UTF-8, and so in no name."""
_DIGEST_BYTES: Final = 16

Category = Literal["core", "daily", "conversation"]
Kind = Literal["turn", "fact", "document"]
Vector = tuple[float, ...]
"""A vector of length 1."""


class ArchivedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message as it was heard, and its session. Times are in seconds since 1970."""

    session: str
    created: float
    """When the session was created, which distinguishes it from others with the same name."""
    at: float
    entry: Entry


class UserSession(NamedTuple):
    """A session of a user: the time of its newest turn, in seconds since 1970, and the number of turns."""

    session: str
    at: float
    messages: int


class Fact(Extensible, frozen=True, kw_only=True, gc=False):
    """A fact about a user; times are in seconds since 1970.

    ``evidence`` are the turns that state it, and ``replaces`` is the id of the fact that it supersedes. It is
    true from ``since`` until ``until``, if known. ``field`` is the operator's field that it fills.
    """

    id: str
    text: str
    category: Category = "core"
    evidence: tuple[str, ...] = ()
    replaces: str | None = None
    created: float = 0.0
    expires: float | None = None
    superseded: float | None = None
    """When another fact superseded it."""
    importance: float = 0.5
    since: float | None = None
    until: float | None = None
    field: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Returns all known fields by name, including defaults."""
        fields = msgspec.structs.asdict(self)
        del fields["unknown_fields"]
        return fields


class DocumentChunk(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a document that can be read by itself."""

    title: str
    text: str


class SearchResult(msgspec.Struct, frozen=True, kw_only=True):
    """A turn, fact or chunk that matches a query; a full match has a ``score`` of about 1.

    ``source`` is a fact's id or a document's path. ``timestamp`` is in seconds since 1970.
    """

    kind: Kind
    score: float
    text: str
    role: str | None = None
    session_id: str | None = None
    turn_id: int | None = None
    timestamp: float | None = None
    source: str | None = None
    follows: bool = False
    """Whether it is included only because it follows the result before it."""


class QueryVector(msgspec.Struct, frozen=True, kw_only=True):
    """A question's vector of length 1 by a ``model``.

    A cosine of ``threshold`` scores 0, and a cosine of 1 scores ``weight``.
    """

    model: str
    vector: Vector
    weight: float
    threshold: float


class UnembeddedText(msgspec.Struct, frozen=True, kw_only=True):
    """A text without a vector; ``None`` if it is unreadable or gets no vector.

    ``terms`` change with the text, and ``beside`` with its neighbours.
    """

    passage: int
    owner: Owner
    terms: str
    text: str | None
    beside: tuple[tuple[int, str], ...] = ()
    """The distance and the terms of each neighbour in its session."""


class ErasureCount(NamedTuple):
    """How many turns and facts were deleted."""

    turns: int = 0
    facts: int = 0


class TombstoneKeys(msgspec.Struct, frozen=True):
    """The keys of digests in tombstones: new ones use the first key, look-ups all keys."""

    keys: tuple[bytes, ...]

    def digests(self, tenant: str, kind: int, name: str) -> list[bytes]:
        """Returns the digest of a name under each key; it begins with ``DIGEST_MARK``."""
        text = msgspec.msgpack.encode((id_bytes(tenant), kind, id_bytes(name)))
        return [DIGEST_MARK + hmac.digest(key, text, "sha256")[:_DIGEST_BYTES] for key in self.keys]


class Tombstones(msgspec.Struct, frozen=True):
    """The times at which a tenant's users and sessions were erased, by digest, in seconds since 1970."""

    tenant: str
    keys: TombstoneKeys
    times: Mapping[bytes, float]

    def user(self, name: str) -> float | None:
        """Returns when a user was erased, or ``None``."""
        return self._time(USER, name)

    def session(self, name: str) -> float | None:
        """Returns when a session was erased, or ``None``."""
        return self._time(SESSION, name)

    def _time(self, kind: int, name: str) -> float | None:
        digests = self.keys.digests(self.tenant, kind, name)
        return max((self.times[digest] for digest in digests if digest in self.times), default=None)


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """A question at ``now``, in seconds since 1970, and the maximum of results."""

    text: str
    now: float
    limit: int = 10
    zone: tzinfo = UTC
    """The time zone of days that the text names."""
    vector: QueryVector | None = None
    """The text's vector, if there is one."""
    following: bool = False
    """Whether to drop repeated turns, and to add to each turn the next one, which no limit counts."""
