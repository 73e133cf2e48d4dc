"""What a text means to a model: numbers, of which alike ones point the same way."""

import math
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import nsmallest
from operator import mul
from typing import Any, Final

import msgspec

from proxy.memory.archive.records import Chunk, Fact, QueryVector, UnembeddedText, Vector
from proxy.memory.archive.sql import RowCodec, Rows, Steps, fetch, fetch_value
from proxy.memory.archive.statements import (
    DOCUMENT,
    FACT,
    INDEXED_ANEW,
    MEANT,
    NO_VECTOR,
    OUTDATED,
    PUT_VECTOR,
    SIGNS,
    UNMEANT,
    UP_TO_DATE,
    json_array,
)
from proxy.memory.errors import StoreError
from proxy.memory.session import Entry
from proxy.memory.stores.sql import id_text
from proxy.memory.stores.store import Key, Owner

MAX_DIMENSIONS: Final = 8192
"""How many numbers a vector has at the most."""
_LOOKED_THROUGH: Final = 2000
"""Of one owner, the newest."""
_COMPARED: Final = 48
"""Those whose signs are most alike are compared number by number."""


def _sum_of_products(one: Vector, other: Sequence[float]) -> float:
    return sum(map(mul, one, other), 0.0)


# Since Python 3.12 there is one in C.
_product: Final[Callable[[Vector, Sequence[float]], float]] = getattr(math, "sumprod", _sum_of_products)


def normalize(numbers: Sequence[float]) -> Vector:
    """The vector of length 1 that points the same way. Raises ValueError where there is none."""
    length = math.hypot(*numbers) if 0 < len(numbers) <= MAX_DIMENSIONS else 0.0
    if not (math.isfinite(length) and length > 0):
        raise ValueError("this is no vector")
    return tuple(number / length for number in numbers)


def pack(vector: Vector) -> bytes:
    """Its numbers as float32, little-endian."""
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def cosine(vector: Vector, blob: bytes) -> float:
    """How alike it is to a packed one: 1 at the most; 0 to one of another length."""
    if len(blob) != 4 * len(vector):
        return 0.0
    numbers = array("f", blob)
    if sys.byteorder == "big":
        numbers.byteswap()
    return _product(vector, numbers)


def sign_bits(vector: Vector) -> bytes:
    """Which of its numbers are positive, a bit for each: alike vectors differ in few of them."""
    bits = "".join("1" if number > 0 else "0" for number in vector)
    return int(bits, 2).to_bytes((len(vector) + 7) // 8, "big")


def unembedded_texts(shelf: RowCodec, model: str, limit: int) -> Steps[list[UnembeddedText]]:
    """As the archive's ``unmeant``."""
    rows = yield from fetch(UNMEANT, {"model": model, "limit": limit})
    return (yield from _read(shelf, rows))


def reindex(shelf: RowCodec, limit: int) -> Steps[int]:
    """As the archive's ``reindex``. What cannot be read keeps the words that it has."""
    rows = yield from fetch(OUTDATED, {"limit": limit})
    found = yield from _read(shelf, rows)
    for one in found:
        anew = one.terms if one.text is None else shelf.lexicon.terms(one.owner, one.text)
        change = INDEXED_ANEW if anew != one.terms else UP_TO_DATE
        yield from fetch(change, {"passage": one.passage, "terms": one.terms, "anew": anew})
    return len(found)


def _read(shelf: RowCodec, rows: Rows) -> Steps[list[UnembeddedText]]:
    items: dict[tuple[int, int], Sequence[Any]] = {}
    for kind in sorted({row[1] for row in rows}):
        ids = json_array(row[2] for row in rows if row[1] == kind)
        texts = yield from fetch(shelf.dialect.texts[kind], {"ids": ids, "now": 0.0})
        items |= {(kind, row[0]): row for row in texts}
    return [_unmeant(shelf, row, items.get((row[1], row[2]))) for row in rows]


def _unmeant(shelf: RowCodec, row: Sequence[Any], item: Sequence[Any] | None) -> UnembeddedText:
    owner = Owner(id_text(row[4]), id_text(row[5]))
    text = None if item is None else _text(shelf, owner, row[1], item)
    return UnembeddedText(passage=row[0], owner=owner, terms=row[3], text=text)


def _text(shelf: RowCodec, owner: Owner, kind: int, item: Sequence[Any]) -> str | None:
    """What the text says; a key that is lost may not hold up the others."""
    _, place, _, blob = item
    try:
        if kind == FACT:
            return shelf.decode(Key(owner.tenant, owner.user), blob, Fact).text
        key = Key(owner.tenant, id_text(place))
        if kind == DOCUMENT:
            chunk = shelf.decode(key, blob, Chunk)
            return f"{chunk.title}\n{chunk.text}"
        return shelf.decode(key, blob, Entry).text
    except (StoreError, msgspec.DecodeError):
        return None


def add_vectors(
    shelf: RowCodec, model: str, vectors: Sequence[tuple[UnembeddedText, Vector | None]]
) -> Steps[None]:
    """As the archive's ``add_vectors``; what was corrected or removed meanwhile is left alone."""
    for text, vector in vectors:
        place = {"passage": text.passage, "model": model}
        owner = yield from fetch_value(MEANT, {**place, "terms": text.terms})
        if owner is None:
            continue
        if vector is None:
            yield from fetch(NO_VECTOR, {"passage": text.passage})
            continue
        sealed = {
            "sign": shelf.encode_bytes(text.owner, sign_bits(vector)),
            "blob": shelf.encode_bytes(text.owner, pack(vector)),
        }
        yield from fetch(PUT_VECTOR, {**place, "owner": owner, **sealed})


def similarity_scores(
    shelf: RowCodec, whose: Owner, owner: int, meaning: QueryVector, others: Iterable[int]
) -> Steps[dict[int, float]]:
    """By passage, what its meaning is worth: of the most alike of one owner, and of ``others`` of theirs."""
    owned = {"owner": owner, "model": meaning.model}
    signs = yield from fetch(SIGNS, {**owned, "limit": _LOOKED_THROUGH})
    compared = {*_nearest(shelf, whose, meaning, signs), *others}
    rows = yield from fetch(shelf.dialect.vectors, {**owned, "ids": json_array(compared)})
    return dict(_worths(shelf, whose, meaning, rows))


def _nearest(shelf: RowCodec, whose: Owner, meaning: QueryVector, signs: Rows) -> list[int]:
    """The passages whose signs differ least from the question's."""
    own = sign_bits(meaning.vector)
    bits = int.from_bytes(own, "big")
    distances = (
        ((bits ^ int.from_bytes(blob, "big")).bit_count(), -passage)
        for passage, blob in ((passage, shelf.decode_bytes(whose, sealed)) for passage, sealed in signs)
        if len(blob) == len(own)
    )
    return [-passage for _, passage in nsmallest(_COMPARED, distances)]


def _worths(shelf: RowCodec, whose: Owner, meaning: QueryVector, rows: Rows) -> Iterator[tuple[int, float]]:
    for passage, blob in rows:
        found = cosine(meaning.vector, shelf.decode_bytes(whose, blob))
        if found > meaning.threshold:
            yield passage, meaning.weight * (found - meaning.threshold) / (1 - meaning.threshold)
