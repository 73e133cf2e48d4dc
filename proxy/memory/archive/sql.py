"""Work on a database as steps, which both drivers run, and the codec of rows."""

import contextlib
import hashlib
import secrets
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final, NamedTuple, Protocol, TypeVar

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
from proxy.memory.stores.codec import ENCRYPTED, Codec
from proxy.memory.stores.sql import Arguments, BoundStatement, Each, Statement, id_bytes, id_text
from proxy.memory.stores.store import Key, Owner

PART: Final = 1_600
"""How many characters one transaction writes, in a few milliseconds; each row adds some to its text."""
CHARACTERS_PER_ROW: Final = 400
_MAX_INDEXED: Final = 20_000
_NO_SESSION: Final = Key("", "")
_SECRET_BYTES: Final = 32
_COPY_BYTES: Final = 68
"""The length of an encrypted secret."""
T = TypeVar("T")
V = TypeVar("V")
Rows = list[tuple[Any, ...]]


Step = tuple[BoundStatement | Each, ...]
"""Statements that do not depend on each other's rows."""
Steps = Generator[Step, list[Any], T]
"""Yields steps and is sent a list for each: the ``Rows`` of a ``BoundStatement``; for an ``Each``, a list of
``Rows`` in the order of its arguments."""
Transaction = Callable[[], Steps[T]]
"""Starts the steps; it is called again if the first attempt failed."""


class Database(Protocol):
    """One database. Every method may raise StoreError."""

    async def write(self, work: Transaction[T]) -> T:
        """Runs the steps in one transaction, which is durable once this returns."""
        ...

    async def read(self, work: Transaction[T]) -> T:
        """Runs steps that change nothing."""
        ...

    async def read_inline(self, work: Transaction[T]) -> T:
        """Runs steps that read a few rows by their keys, during a call."""
        ...

    def rows_nowait(self, statement: Statement, arguments: Arguments) -> Rows | None:
        """Returns a query's rows without waiting; ``None`` if that is impossible."""
        ...

    async def scrub(self) -> None:
        """Removes deleted rows from the database's files."""
        ...

    async def ping(self) -> None:
        """Returns if a write would succeed now; else raises StoreError."""
        ...

    async def aclose(self) -> None:
        """Finishes started work and closes everything."""
        ...


def fetch(statement: Statement, arguments: Arguments) -> Steps[Rows]:
    """Returns the rows of one statement."""
    rows: Rows
    (rows,) = yield (BoundStatement(statement, arguments),)
    return rows


def fetch_each(statement: Statement, rows: Sequence[Arguments]) -> Steps[list[Rows]]:
    """Returns the rows of one statement for each of several rows of arguments, in their order."""
    if not rows:
        return []
    results: list[Rows]
    (results,) = yield (Each(statement, rows),)
    return results


def fetch_value(statement: Statement, arguments: Arguments) -> Steps[Any]:
    """Returns the first column of the first row; ``None`` without a row."""
    (rows,) = yield (BoundStatement(statement, arguments),)
    return rows[0][0] if rows else None


def fetch_items(
    items: Iterable[tuple[int, int]], *, now: float = 0.0
) -> Steps[Mapping[tuple[int, int], Sequence[Any]]]:
    """Returns the rows of items by kind and id, without facts that have expired by ``now``."""
    ids: defaultdict[int, list[int]] = defaultdict(list)
    for kind, item in items:
        ids[kind].append(item)
    results: list[Rows] = yield from gather(
        *(fetch(TEXTS[kind], {"ids": json_array(own), "now": now}) for kind, own in ids.items())
    )
    return {(kind, row[0]): row for kind, rows in zip(ids, results, strict=True) for row in rows}


def gather(*works: Steps[Any]) -> Steps[list[Any]]:
    """Runs several works at once and returns their results; each round of steps is one round trip."""
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
    """Divides items into parts for one transaction each; ``characters`` returns the size of an item."""
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
    """Returns the arguments that identify an owner."""
    return {"tenant": id_bytes(owner.tenant), "person": id_bytes(owner.user)}


def ensure_owner(owner: Owner) -> Steps[int]:
    """Returns an owner's row id; inserts the row if it is missing."""
    arguments = owner_arguments(owner)
    owner_id = yield from fetch_value(OWNER_ID, arguments)
    if owner_id is None:
        owner_id = yield from fetch_value(INSERT_OWNER, arguments)
    return int(owner_id)


def locked_owner(owner: Owner) -> Steps[int]:
    """Returns an owner's row id, and locks the row until the transaction ends, also against an erasure.

    A missing row is inserted. Read tombstones after this, so that nothing of an erased user is added.
    """
    while True:
        owner_id = yield from ensure_owner(owner)
        if (yield from fetch_value(RENEW_OWNER, {"owner": owner_id})) is not None:
            return owner_id


def unembed(turns: Iterable[int]) -> Steps[None]:
    """Removes the vectors of turns and their neighbours, which include their words; they are made again."""
    rows = yield from fetch(MARK_BESIDE, {"ids": json_array(turns)})
    if rows:
        yield from fetch(DELETE_VECTORS, {"ids": json_array(passage for (passage,) in rows)})


# --- secrets that all processes of an archive share, stored in it


class Secrets(NamedTuple):
    """The readable secrets for a purpose, of which the first is in use, and all as they are stored."""

    readable: tuple[bytes, ...]
    stored: tuple[bytes, ...]


def ensure_secrets(codec: Codec, purpose: str) -> Steps[Secrets]:
    """Reads the secrets for a purpose; creates one if none is readable, and adds copies by the newest key.

    Copies by other keys stay: a server that cannot read any secret creates one, and would do so without end.
    Must come first in a transaction: two that create the secret wait for each other.
    """
    stored = yield from stored_secrets(purpose)
    while missing := _missing(codec, purpose, stored):
        yield (missing,)  # changes nothing if another process has written since the read
        stored = yield from stored_secrets(purpose)
    return Secrets(readable_secrets(codec, stored), stored)


def stored_secrets(purpose: str) -> Steps[tuple[bytes, ...]]:
    """Reads the secrets for a purpose as they are stored."""
    return tuple(bytes(blob) for (blob,) in (yield from fetch(SECRETS, {"purpose": purpose})))


def readable_secrets(codec: Codec, stored: Iterable[bytes]) -> tuple[bytes, ...]:
    """Decodes stored secrets; leaves out unreadable ones."""
    return tuple(secret for secret, _ in _readable(codec, stored))


def _missing(codec: Codec, purpose: str, stored: Sequence[bytes]) -> BoundStatement | None:
    """Returns a statement that adds the first secret or copy that is missing."""
    readable = _readable(codec, stored)
    if not readable:
        blob = codec.encode(_NO_SESSION, secrets.token_bytes(_SECRET_BYTES))
        return BoundStatement(INSERT_SECRET, {"purpose": purpose, "number": len(stored), "blob": blob})
    for place, (secret, blob) in enumerate(readable):
        copies = blob if blob.startswith(ENCRYPTED) else b""
        # Every server can read a plain secret, so it is encrypted only if it is the one in use.
        if (copies or place == 0) and not any(map(codec.is_current, _copies(blob))):
            renewed = copies + codec.encode(_NO_SESSION, secret)
            return BoundStatement(UPDATE_SECRET, {"purpose": purpose, "stored": blob, "blob": renewed})
    return None


def _readable(codec: Codec, stored: Iterable[bytes]) -> list[tuple[bytes, bytes]]:
    """Returns the readable secrets, each with what is stored."""
    readable = []
    for blob in stored:
        for copy in _copies(blob):
            with contextlib.suppress(Unreadable):  # by another encryption key
                readable.append((codec.decode(_NO_SESSION, copy), blob))
                break
    return readable


def _copies(blob: bytes) -> list[bytes]:
    """Returns the copies of a stored secret: one by each key that has been the newest, or one plain."""
    return [blob[start : start + _COPY_BYTES] for start in range(0, len(blob), _COPY_BYTES)]


# --- rows


class RowCodec(msgspec.Struct, frozen=True):
    """How rows are encoded and indexed, and the dialect of the database.

    ``redaction`` is applied to turns and facts before they are encoded.
    """

    codec: Codec
    lexicon: Lexicon
    dialect: Dialect
    redaction: Redaction = NO_REDACTION

    def encode(self, key: Key, value: Any) -> bytes:
        """Encodes a value so that it is of no use under another key."""
        return self.codec.encode(key, extensible.encode(value))

    def decode(self, key: Key, blob: bytes, kind: type[V]) -> V:
        """Decodes a value. Raises StoreError for bytes that cannot be read."""
        return extensible.decode(self.codec.decode(key, bytes(blob)), kind)

    def decode_item(self, owner: Owner, kind: int, row: Sequence[Any]) -> Entry | Fact | DocumentChunk:
        """Decodes a row of ``TEXTS``. Raises StoreError for one that cannot be read."""
        _, name, _, blob = row
        if kind == FACT:
            return self.decode(Key(owner.tenant, owner.user), blob, Fact)
        key = Key(owner.tenant, id_text(name))
        return self.decode(key, blob, DocumentChunk) if kind == DOCUMENT else self.decode(key, blob, Entry)

    def encode_bytes(self, owner: Owner, value: bytes) -> bytes:
        """Encodes bytes so that they are of no use under another owner."""
        return self.codec.encode(Key(owner.tenant, owner.user), value)

    def decode_bytes(self, owner: Owner, blob: bytes) -> bytes:
        """Decodes an owner's bytes. Raises StoreError if they cannot be read."""
        return self.codec.decode(Key(owner.tenant, owner.user), bytes(blob))

    def digest(self, *values: object) -> bytes:
        """Returns a digest of values; with a key it reveals nothing about them."""
        return hashlib.blake2b(msgspec.msgpack.encode(values), digest_size=12, key=self.lexicon.key).digest()

    def terms(self, owner: Owner, text: str) -> str:
        """Returns the terms of the first 20,000 characters of a text."""
        return self.lexicon.terms(owner, text[:_MAX_INDEXED])

    def index(self, owner: Owner, text: str, row: Arguments) -> Steps[None]:
        """Indexes a text outside of sessions; ``row`` has its owner's id, its kind, item and time.

        A changed passage loses its vector, and one without terms is removed from the index.
        """
        terms = self.terms(owner, text)
        arguments = {**row, "talk": 0, "place": 0, "terms": terms}
        passage = yield from fetch_value(UPSERT_PASSAGE if terms else DELETE_PASSAGE, arguments)
        if passage is not None:
            yield from fetch(DELETE_VECTOR, {"passage": passage})
