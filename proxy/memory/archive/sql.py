"""Work on a database, told step by step: each yields what is asked and gets the rows, on either driver."""

import hashlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from proxy.memory.archive.statements import NEW_PERSON, NO_PASSAGE, NO_VECTOR, PERSON_ID, PUT_PASSAGE, Dialect
from proxy.memory.archive.terms import Lexicon
from proxy.memory.redaction.redaction import NO_REDACTION, Redaction
from proxy.memory.stores.codec import Codec
from proxy.memory.stores.sql import Arguments, Statement, id_bytes
from proxy.memory.stores.store import Key, Owner

T = TypeVar("T")
Rows = list[tuple[Any, ...]]
V = TypeVar("V")


class BoundStatement(NamedTuple):
    """One statement with what is bound to its names."""

    statement: Statement
    arguments: Arguments


class Batch(NamedTuple):
    """Statements of which none waits for another's rows."""

    asks: tuple[BoundStatement, ...]


Steps = Generator[BoundStatement | Batch, Any, T]
"""An ``Ask`` gets ``Rows``, and what is asked ``Beside`` one another a list of them, in that order."""


def fetch(statement: Statement, arguments: Arguments) -> Steps[Rows]:
    """The rows that one statement gives."""
    rows: Rows = yield BoundStatement(statement, arguments)
    return rows


def fetch_value(statement: Statement, arguments: Arguments) -> Steps[Any]:
    """The first column of the first row; ``None`` where there is none."""
    rows = yield BoundStatement(statement, arguments)
    return rows[0][0] if rows else None


def gather(*works: Steps[Any]) -> Steps[list[Any]]:
    """What comes of each, in their order; what they ask at the same time is asked in one round trip."""
    results = dict[int, Any]()
    waiting = _advance(works, dict.fromkeys(range(len(works))), results)
    while waiting:
        asks = tuple(ask for asked_now in waiting.values() for ask in _asks(asked_now))
        replies = [(yield asks[0])] if len(asks) == 1 else (yield Batch(asks))
        left = iter(replies)
        heard = {work: _reply(asked_now, left) for work, asked_now in waiting.items()}
        waiting = _advance(works, heard, results)
    return [results[work] for work in range(len(works))]


def _advance(
    works: Sequence[Steps[Any]], heard: Mapping[int, Any], results: dict[int, Any]
) -> dict[int, BoundStatement | Batch]:
    """What those ask next who have heard a reply; those who ask no more have a result."""
    waiting: dict[int, BoundStatement | Batch] = {}
    for work, reply in heard.items():
        try:
            waiting[work] = works[work].send(reply)
        except StopIteration as end:
            results[work] = end.value
    return waiting


def _asks(asked_now: BoundStatement | Batch) -> tuple[BoundStatement, ...]:
    return (asked_now,) if isinstance(asked_now, BoundStatement) else asked_now.asks


def _reply(asked_now: BoundStatement | Batch, left: Iterator[Rows]) -> Rows | list[Rows]:
    return next(left) if isinstance(asked_now, BoundStatement) else [*islice(left, len(asked_now.asks))]


def owner_arguments(whose: Owner) -> dict[str, object]:
    """The arguments that say which person is meant."""
    return {"tenant": id_bytes(whose.tenant), "person": id_bytes(whose.user)}


def find_owner(whose: Owner) -> Steps[int | None]:
    """The number of a person; ``None`` for one of whom nothing was ever kept."""
    found: int | None = yield from fetch_value(PERSON_ID, owner_arguments(whose))
    return found


def ensure_owner(whose: Owner) -> Steps[int]:
    """The number of a person, who is there from now on."""
    found = yield from find_owner(whose)
    if found is None:
        found = yield from fetch_value(NEW_PERSON, owner_arguments(whose))
    return int(found)


Transaction = Callable[[], Steps[T]]
"""Begins the steps; it may be called more than once, where the first time failed."""


class Database(Protocol):
    """One database. Every method may raise StoreError."""

    async def write(self, work: Transaction[T]) -> T:
        """What comes of the steps; once this returns, what they changed is durable."""
        ...

    async def read(self, work: Transaction[T]) -> T:
        """What comes of steps that change nothing."""
        ...

    async def read_inline(self, work: Transaction[T]) -> T:
        """The same for steps that find a few rows by their keys, on a call."""
        ...

    def read_nowait(self, work: Transaction[T]) -> T | None:
        """The same, where nobody has to wait for it at all; else ``None``."""
        ...

    async def scrub(self) -> None:
        """Nothing that was removed can be read from the database's own files any more."""
        ...

    async def ping(self) -> None:
        """Returns if something could be written now."""
        ...

    async def aclose(self) -> None:
        """What was begun has ended; everything is closed."""
        ...


class IndexRow(NamedTuple):
    """What is indexed, when it was said, and where in its talk it stands, if it is part of one."""

    kind: int
    item: int
    at: float
    talk: int = 0
    place: int = 0


class RowCodec(msgspec.Struct, frozen=True):
    """What every statement on an archive needs: its codec, its words for the index, and its kind of SQL.

    ``redaction`` is what of turns and facts is never kept.
    """

    codec: Codec
    lexicon: Lexicon
    dialect: Dialect
    redaction: Redaction = NO_REDACTION

    def encode(self, key: Key, value: Any) -> bytes:
        """A value as bytes that are of no use under another key."""
        return self.codec.encode(key, msgspec.msgpack.encode(value))

    def decode(self, key: Key, blob: bytes, kind: type[V]) -> V:
        """The value again. Raises StoreError for bytes that cannot be read."""
        return msgspec.msgpack.decode(self.codec.decode(key, bytes(blob)), type=kind)

    def encode_bytes(self, whose: Owner, value: bytes) -> bytes:
        """Bytes about something of an owner's, of no use under another's name."""
        return self.codec.encode(Key(whose.tenant, whose.user), value)

    def decode_bytes(self, whose: Owner, blob: bytes) -> bytes:
        """The bytes again. Raises StoreError for what cannot be read."""
        return self.codec.decode(Key(whose.tenant, whose.user), bytes(blob))

    def digest(self, *values: object) -> bytes:
        """A short mark that changes with the values; with a key it tells nothing of them."""
        return hashlib.blake2b(msgspec.msgpack.encode(values), digest_size=12, key=self.lexicon.key).digest()

    def index(self, whose: Owner, owner: int, text: str, line: IndexRow) -> Steps[None]:
        """Puts the words of an item into the index; one without words has no place there."""
        terms = self.lexicon.terms(whose, text)
        words = {**line._asdict(), "owner": owner, "terms": terms}
        passage = yield from fetch_value(PUT_PASSAGE if terms else NO_PASSAGE, words)
        if passage is not None:
            yield from fetch(NO_VECTOR, {"passage": passage})
