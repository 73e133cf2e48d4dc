"""What all work on the archive needs: how texts are sealed, how words are found, and on which database."""

import hashlib
from typing import Any, NamedTuple, TypeVar

import msgspec

from proxy.memory.archive.dialect import Dialect
from proxy.memory.archive.lexicon import Lexicon
from proxy.memory.archive.statements import NO_PASSAGE, NO_VECTOR, PUT_PASSAGE
from proxy.memory.archive.steps import Steps, asked, first
from proxy.memory.redaction.redaction import NOTHING, Redaction
from proxy.memory.stores.codec import Codec
from proxy.memory.stores.store import Key, Owner

V = TypeVar("V")


class Line(NamedTuple):
    """What is indexed, when it was said, and where in its talk it stands, if it is part of one."""

    kind: int
    item: int
    at: float
    talk: int = 0
    place: int = 0


class Shelf(msgspec.Struct, frozen=True):
    """What every statement on an archive needs: its codec, its words for the index, and its kind of SQL.

    ``redaction`` is what of turns and facts is never kept.
    """

    codec: Codec
    lexicon: Lexicon
    dialect: Dialect
    redaction: Redaction = NOTHING

    def sealed(self, key: Key, value: Any) -> bytes:
        """A value as bytes that are of no use under another key."""
        return self.codec.encode(key, msgspec.msgpack.encode(value))

    def opened(self, key: Key, blob: bytes, kind: type[V]) -> V:
        """The value again. Raises StoreError for bytes that cannot be read."""
        return msgspec.msgpack.decode(self.codec.decode(key, bytes(blob)), type=kind)

    def sealed_bytes(self, whose: Owner, value: bytes) -> bytes:
        """Bytes about something of an owner's, of no use under another's name."""
        return self.codec.encode(Key(whose.tenant, whose.person), value)

    def opened_bytes(self, whose: Owner, blob: bytes) -> bytes:
        """The bytes again. Raises StoreError for what cannot be read."""
        return self.codec.decode(Key(whose.tenant, whose.person), bytes(blob))

    def digest(self, *values: object) -> bytes:
        """A short mark that changes with the values; with a key it tells nothing of them."""
        return hashlib.blake2b(msgspec.msgpack.encode(values), digest_size=12, key=self.lexicon.key).digest()

    def indexed(self, whose: Owner, owner: int, text: str, line: Line) -> Steps[None]:
        """Puts the words of an item into the index; one without words has no place there."""
        terms = self.lexicon.terms(whose, text)
        words = {**line._asdict(), "owner": owner, "terms": terms}
        passage = yield from first(PUT_PASSAGE if terms else NO_PASSAGE, words)
        if passage is not None:
            yield from asked(NO_VECTOR, {"passage": passage})
