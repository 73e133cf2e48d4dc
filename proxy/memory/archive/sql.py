"""Steps of work on a database, which either driver carries out, and how rows are encoded."""

import contextlib
import hashlib
import secrets
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final, Protocol, TypeVar

import msgspec

from proxy.memory import extensible
from proxy.memory.archive.records import DocumentChunk, Fact
from proxy.memory.archive.statements import (
    DELETE_PASSAGE,
    DELETE_VECTOR,
    DELETE_VECTORS,
    DOCUMENT,
    FACT,
    INSERT_OWNER,
    INSERT_SECRET,
    MARK_BESIDE,
    OWNER_ID,
    RENEW_OWNER,
    SECRETS,
    TEXTS,
    UPDATE_SECRET,
    UPSERT_PASSAGE,
    Dialect,
    json_array,
)
from proxy.memory.archive.terms import Lexicon
from proxy.memory.errors import Unreadable
from proxy.memory.redaction import NO_REDACTION, Redaction
from proxy.memory.session import Entry
from proxy.memory.stores.codec import Codec
from proxy.memory.stores.sql import Arguments, BoundStatement, Each, Statement, id_bytes, id_text
from proxy.memory.stores.store import Key, Owner

PART: Final = 1_600
"""What one transaction writes, in characters, and what a row costs beside its text: a few milliseconds."""
CHARACTERS_PER_ROW: Final = 400
_MAX_INDEXED: Final = 20_000
_NO_SESSION: Final = Key("", "")
_SECRET_BYTES: Final = 32
T = TypeVar("T")
V = TypeVar("V")
Rows = list[tuple[Any, ...]]


Step = tuple[BoundStatement | Each, ...]
"""Statements that do not depend on each other's rows."""
Steps = Generator[Step, list[Any], T]
"""A step that is yielded gets a list: a ``BoundStatement`` its ``Rows``, an ``Each`` a list of them in the
order of its rows of arguments."""
Transaction = Callable[[], Steps[T]]
"""Begins the steps; it is called again where the first attempt failed."""


class Database(Protocol):
    """One database. Every method may raise StoreError."""

    async def write(self, work: Transaction[T]) -> T:
        """Run the steps in one transaction, which is durable once this returns."""
        ...

    async def read(self, work: Transaction[T]) -> T:
        """Run steps that change nothing."""
        ...

    async def read_inline(self, work: Transaction[T]) -> T:
        """Run steps that read a few rows by their keys, on a call."""
        ...

    def rows_nowait(self, statement: Statement, arguments: Arguments) -> Rows | None:
        """Return a query's rows without waiting; ``None`` where that is impossible."""
        ...

    async def scrub(self) -> None:
        """Remove what was deleted from the database's own files."""
        ...

    async def ping(self) -> None:
        """Return if a write would succeed now."""
        ...

    async def aclose(self) -> None:
        """Finish what was begun and close everything."""
        ...


def fetch(statement: Statement, arguments: Arguments) -> Steps[Rows]:
    """The rows of one statement."""
    rows: Rows
    (rows,) = yield (BoundStatement(statement, arguments),)
    return rows


def fetch_each(statement: Statement, rows: Sequence[Arguments]) -> Steps[list[Rows]]:
    """The rows of one statement for each of several rows of arguments, in their order."""
    if not rows:
        return []
    found: list[Rows]
    (found,) = yield (Each(statement, rows),)
    return found


def fetch_value(statement: Statement, arguments: Arguments) -> Steps[Any]:
    """The first column of the first row; ``None`` where there is no row."""
    (rows,) = yield (BoundStatement(statement, arguments),)
    return rows[0][0] if rows else None


def fetch_items(
    items: Iterable[tuple[int, int]], *, now: float = 0.0
) -> Steps[Mapping[tuple[int, int], Sequence[Any]]]:
    """By kind and id, the rows of items, but for facts that have expired by ``now``."""
    ids: defaultdict[int, list[int]] = defaultdict(list)
    for kind, item in items:
        ids[kind].append(item)
    found: list[Rows] = yield from gather(
        *(fetch(TEXTS[kind], {"ids": json_array(own), "now": now}) for kind, own in ids.items())
    )
    return {(kind, row[0]): row for kind, rows in zip(ids, found, strict=True) for row in rows}


def gather(*works: Steps[Any]) -> Steps[list[Any]]:
    """The results of several works in their order; what they yield at the same time is one round trip."""
    results: dict[int, Any] = {}
    replies: dict[int, Any] = dict.fromkeys(range(len(works)))
    while True:
        steps: dict[int, Step] = {}
        for index, reply in replies.items():
            try:
                steps[index] = works[index].send(reply)
            except StopIteration as end:
                results[index] = end.value
        if not steps:
            return [results[index] for index in range(len(works))]
        rows = iter((yield tuple(chain(*steps.values()))))
        replies = {index: [*islice(rows, len(step))] for index, step in steps.items()}


def in_parts(items: Iterable[T], characters: Callable[[T], int]) -> Iterator[list[T]]:
    """Items as one transaction after the other writes them; ``characters`` is what an item has."""
    part: list[T] = []
    room = PART
    for item in items:
        if room <= 0:
            yield part
            part, room = [], PART
        part.append(item)
        room -= CHARACTERS_PER_ROW + characters(item)
    if part:
        yield part


def owner_arguments(owner: Owner) -> dict[str, object]:
    """The arguments that name an owner."""
    return {"tenant": id_bytes(owner.tenant), "person": id_bytes(owner.user)}


def find_owner(owner: Owner) -> Steps[int | None]:
    """An owner's row id; ``None`` for an owner of nothing."""
    found: int | None = yield from fetch_value(OWNER_ID, owner_arguments(owner))
    return found


def ensure_owner(owner: Owner) -> Steps[int]:
    """An owner's row id; the row is inserted where it is missing."""
    arguments = owner_arguments(owner)
    found = yield from fetch_value(OWNER_ID, arguments)
    if found is None:
        found = yield from fetch_value(INSERT_OWNER, arguments)
    return int(found)


def locked_owner(owner: Owner) -> Steps[int]:
    """The same; no other transaction that locks it goes on, or erases the owner, before this one ends.

    Whoever locks it reads tombstones behind that, and nothing is added while an owner is erased.
    """
    while True:
        found = yield from ensure_owner(owner)
        if (yield from fetch_value(RENEW_OWNER, {"owner": found})) is not None:
            return found


def unembed(turns: Iterable[int]) -> Steps[None]:
    """Remove the vectors of turns, and of those beside them, which have their words; they are made again."""
    rows = yield from fetch(MARK_BESIDE, {"ids": json_array(turns)})
    if rows:
        yield from fetch(DELETE_VECTORS, {"ids": json_array(passage for (passage,) in rows)})


# --- keys that are made once, stand in the archive itself, and are shared by all its processes


def ensure_secrets(codec: Codec, purpose: str) -> Steps[tuple[bytes, ...]]:
    """The secrets for a purpose that can be read, never none; each is encoded by the newest key from then on.

    It is what a transaction begins with: two that make the secret wait for one another.
    """
    rows = yield from stored_secrets(purpose)
    while not (readable := _readable(codec, rows)):
        # Where another process has made one since these were read, nothing is inserted.
        blob = codec.encode(_NO_SESSION, secrets.token_bytes(_SECRET_BYTES))
        yield from fetch(INSERT_SECRET, {"purpose": purpose, "number": len(rows), "blob": blob})
        rows = yield from stored_secrets(purpose)
    for number, secret, blob in readable:
        if not codec.is_current(blob):
            again = codec.encode(_NO_SESSION, secret)
            yield from fetch(UPDATE_SECRET, {"purpose": purpose, "number": number, "blob": again})
    return tuple(secret for _, secret, _ in readable)


def stored_secrets(purpose: str) -> Steps[Rows]:
    """The secrets for a purpose in their encoded form, each behind its number."""
    return (yield from fetch(SECRETS, {"purpose": purpose}))


def readable_secrets(codec: Codec, rows: Rows) -> tuple[bytes, ...]:
    """Those of stored secrets that can be read."""
    return tuple(secret for _, secret, _ in _readable(codec, rows))


def _readable(codec: Codec, rows: Rows) -> list[tuple[int, bytes, bytes]]:
    readable = []
    for number, blob in rows:
        with contextlib.suppress(Unreadable):  # under an encryption key that is lost
            readable.append((number, codec.decode(_NO_SESSION, bytes(blob)), bytes(blob)))
    return readable


# --- rows


class RowCodec(msgspec.Struct, frozen=True):
    """How rows are encoded and indexed, and the SQL that is the database's own.

    ``redaction`` is removed from turns and facts before they are encoded.
    """

    codec: Codec
    lexicon: Lexicon
    dialect: Dialect
    redaction: Redaction = NO_REDACTION

    def encode(self, key: Key, value: Any) -> bytes:
        """Encode a value so that it is of no use under another key."""
        return self.codec.encode(key, extensible.encode(value))

    def decode(self, key: Key, blob: bytes, kind: type[V]) -> V:
        """Decode a value. Raises StoreError for bytes that cannot be read."""
        return extensible.decode(self.codec.decode(key, bytes(blob)), kind)

    def decode_item(self, owner: Owner, kind: int, row: Sequence[Any]) -> Entry | Fact | DocumentChunk:
        """Decode a row of ``TEXTS``. Raises StoreError for one that cannot be read."""
        _, name, _, blob = row
        if kind == FACT:
            return self.decode(Key(owner.tenant, owner.user), blob, Fact)
        key = Key(owner.tenant, id_text(name))
        return self.decode(key, blob, DocumentChunk) if kind == DOCUMENT else self.decode(key, blob, Entry)

    def encode_bytes(self, owner: Owner, value: bytes) -> bytes:
        """Encode bytes so that they are of no use under another owner."""
        return self.codec.encode(Key(owner.tenant, owner.user), value)

    def decode_bytes(self, owner: Owner, blob: bytes) -> bytes:
        """Decode an owner's bytes. Raises StoreError where they cannot be read."""
        return self.codec.decode(Key(owner.tenant, owner.user), bytes(blob))

    def digest(self, *values: object) -> bytes:
        """A digest of the values; with a key it reveals nothing of them."""
        return hashlib.blake2b(msgspec.msgpack.encode(values), digest_size=12, key=self.lexicon.key).digest()

    def terms(self, owner: Owner, text: str) -> str:
        """The terms of the first 20,000 characters of a text."""
        return self.lexicon.terms(owner, text[:_MAX_INDEXED])

    def index(self, owner: Owner, text: str, row: Arguments) -> Steps[None]:
        """Index a text that is in no session; the ``row`` has its owner's id, its kind, item and time.

        A passage that changes loses its vector, and one without terms leaves the index.
        """
        terms = self.terms(owner, text)
        arguments = {**row, "talk": 0, "place": 0, "terms": terms}
        passage = yield from fetch_value(UPSERT_PASSAGE if terms else DELETE_PASSAGE, arguments)
        if passage is not None:
            yield from fetch(DELETE_VECTOR, {"passage": passage})
