"""Vectors: their arithmetic, which texts lack one, and which passages are similar to a question."""

import math
import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from heapq import nsmallest
from operator import and_, getitem, mul
from typing import Any, Final, NamedTuple

import msgspec

from proxy.memory.archive.records import Chunk, Fact, QueryVector, UnembeddedText, Vector
from proxy.memory.archive.sql import RowCodec, Rows, Steps, fetch, fetch_value
from proxy.memory.archive.statements import (
    DELETE_VECTOR,
    DOCUMENT,
    FACT,
    MARK_EMBEDDED,
    MARK_UP_TO_DATE,
    OUTDATED_PASSAGES,
    REINDEX_PASSAGE,
    SIGN_BITS,
    UNEMBEDDED,
    UPSERT_VECTOR,
    json_array,
)
from proxy.memory.errors import StoreError
from proxy.memory.session import Entry
from proxy.memory.stores.sql import id_text
from proxy.memory.stores.store import Key, Owner

MAX_DIMENSIONS: Final = 8192
"""The most numbers that a vector has."""
# The newest vectors of an owner are compared by their signs, the most similar of those by their numbers.
_COMPARED_BY_SIGN: Final = 2000
_COMPARED: Final = 48
# A number that is a unit vector's root mean square times this is as near to 0.5 as to 1.5 steps of 0.75.
_FAR: Final = 0.75
# In C since Python 3.12.
_dot_product: Final[Callable[[Sequence[float], Sequence[float]], float]] = getattr(
    math, "sumprod", lambda one, other: sum(map(mul, one, other), 0.0)
)


def normalize(numbers: Sequence[float]) -> Vector:
    """The vector of length 1 in the same direction. Raises ValueError where there is none."""
    length = math.hypot(*numbers) if 0 < len(numbers) <= MAX_DIMENSIONS else 0.0
    if not (math.isfinite(length) and length > 0):
        raise ValueError("this is no vector")
    return tuple(number / length for number in numbers)


def sign_bits(vector: Vector) -> bytes:
    """A bit for each number, set where it is positive: similar vectors differ in few of them."""
    return _bits(number > 0 for number in vector)


def size_bits(vector: Vector) -> bytes:
    """A bit for each number, set where it is far from 0.

    With its sign a number has two bits, which stand for -1.5, -0.5, 0.5 and 1.5.
    """
    far = _FAR / math.sqrt(len(vector))
    return _bits(abs(number) > far for number in vector)


def _bits(flags: Iterable[bool]) -> bytes:
    bits = "".join("1" if flag else "0" for flag in flags)
    return int(bits, 2).to_bytes((len(bits) + 7) // 8, "big")


class Comparison:
    """A vector that is compared with many that are stored."""

    def __init__(self, vector: Vector) -> None:
        self._vector = vector
        padded = (*(0.0 for _ in range(-len(vector) % 8)), *vector)
        # By place and value of a byte, the sum of the numbers whose bits are set in it.
        self._sums: list[list[float]] = []
        for start in range(0, len(padded), 8):
            sums = [0.0]
            for number in reversed(padded[start : start + 8]):
                sums += [total + number for total in sums]
            self._sums.append(sums)
        self._total = math.fsum(vector)

    def cosine(self, signs: bytes, sizes: bytes) -> float:
        """The cosine with a vector of these bits; 0 where their lengths differ.

        Older versions stored a vector's numbers in the place of its second bits.
        """
        if len(sizes) == 4 * len(self._vector):
            return _dot_product(self._vector, _floats(sizes))
        if not len(signs) == len(sizes) == len(self._sums):
            return 0.0
        both = bytes(map(and_, signs, sizes))
        far = self._sum(sizes)
        product = 0.5 * (2 * self._sum(signs) - self._total) + 2 * self._sum(both) - far
        length = math.sqrt(0.25 * len(self._vector) + 2 * int.from_bytes(sizes, "big").bit_count())
        return product / length

    def _sum(self, bits: bytes) -> float:
        return sum(map(getitem, self._sums, bits))


def _floats(blob: bytes) -> "array[float]":
    numbers = array("f", blob)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def unembedded_texts(codec: RowCodec, model: str, limit: int) -> Steps[list[UnembeddedText]]:
    """A few of the texts without a vector by this model."""
    rows = yield from fetch(UNEMBEDDED, {"model": model, "limit": limit})
    return (yield from _read(codec, rows))


class EncodedVector(NamedTuple):
    """A text with its vector as it is stored, two bits for each number; ``None`` for a text without one."""

    text: UnembeddedText
    blobs: tuple[bytes, bytes] | None


def encoded_vector(codec: RowCodec, text: UnembeddedText, vector: Vector | None) -> EncodedVector:
    """A vector as it is stored: thousands of numbers are packed before a transaction, not within it."""
    if vector is None:
        return EncodedVector(text, None)
    sign = codec.encode_bytes(text.owner, sign_bits(vector))
    return EncodedVector(text, (sign, codec.encode_bytes(text.owner, size_bits(vector))))


def add_vectors(model: str, vectors: Sequence[EncodedVector]) -> Steps[None]:
    """Add vectors for texts that were not changed or removed meanwhile."""
    for text, blobs in vectors:
        passage = {"passage": text.passage, "model": model}
        owner = yield from fetch_value(MARK_EMBEDDED, {**passage, "terms": text.terms})
        if owner is None:
            continue
        if blobs is None:
            yield from fetch(DELETE_VECTOR, {"passage": text.passage})
            continue
        sign, blob = blobs
        yield from fetch(UPSERT_VECTOR, {**passage, "owner": owner, "sign": sign, "blob": blob})


def outdated_texts(codec: RowCodec, limit: int) -> Steps[list[UnembeddedText]]:
    """A few of the texts that have terms of an older lexicon."""
    rows = yield from fetch(OUTDATED_PASSAGES, {"limit": limit})
    return (yield from _read(codec, rows))


def reindex(texts: Sequence[tuple[UnembeddedText, str]]) -> Steps[None]:
    """Give texts their terms, each, unless they were changed meanwhile."""
    for text, terms in texts:
        statement = MARK_UP_TO_DATE if terms == text.terms else REINDEX_PASSAGE
        yield from fetch(statement, {"passage": text.passage, "terms": text.terms, "anew": terms})


def _read(codec: RowCodec, rows: Rows) -> Steps[list[UnembeddedText]]:
    """The texts of passages, which are rows of ``_WITH_OWNER``."""
    items: dict[tuple[int, int], Sequence[Any]] = {}
    for kind in sorted({row[1] for row in rows}):
        ids = json_array(row[2] for row in rows if row[1] == kind)
        found = yield from fetch(codec.dialect.texts[kind], {"ids": ids, "now": 0.0})
        items |= {(kind, row[0]): row for row in found}
    texts: list[UnembeddedText] = []
    for passage, kind, item, terms, tenant, user in rows:
        owner = Owner(id_text(tenant), id_text(user))
        row = items.get((kind, item))
        text = None if row is None else _text(codec, owner, kind, row)
        texts.append(UnembeddedText(passage=passage, owner=owner, terms=terms, text=text))
    return texts


def _text(codec: RowCodec, owner: Owner, kind: int, row: Sequence[Any]) -> str | None:
    """The text of an item; ``None`` where its key is lost, which must not hold up the others."""
    _, name, _, blob = row
    try:
        if kind == FACT:
            return codec.decode(Key(owner.tenant, owner.user), blob, Fact).text
        key = Key(owner.tenant, id_text(name))
        if kind == DOCUMENT:
            chunk = codec.decode(key, blob, Chunk)
            return f"{chunk.title}\n{chunk.text}"
        return codec.decode(key, blob, Entry).text
    except (StoreError, msgspec.DecodeError):
        return None


def similarity_scores(
    codec: RowCodec, owner: Owner, owner_id: int, query: QueryVector, others: Iterable[int]
) -> Steps[dict[int, float]]:
    """By passage, the score of its similarity: for an owner's most similar passages, and for ``others``."""
    arguments = {"owner": owner_id, "model": query.model}
    rows = yield from fetch(SIGN_BITS, {**arguments, "limit": _COMPARED_BY_SIGN})
    signs = sign_bits(query.vector)
    bits = int.from_bytes(signs, "big")
    distances: list[tuple[int, int]] = []
    for passage, blob in rows:
        other = codec.decode_bytes(owner, blob)
        if len(other) == len(signs):
            distances.append(((bits ^ int.from_bytes(other, "big")).bit_count(), -passage))
    nearest = {-passage for _, passage in nsmallest(_COMPARED, distances)}
    ids = json_array(nearest.union(others))
    rows = yield from fetch(codec.dialect.vectors, {**arguments, "ids": ids})
    scores: dict[int, float] = {}
    comparison = Comparison(query.vector)
    for passage, sign, blob in rows:
        similarity = comparison.cosine(codec.decode_bytes(owner, sign), codec.decode_bytes(owner, blob))
        if similarity > query.threshold:
            scores[passage] = query.weight * (similarity - query.threshold) / (1 - query.threshold)
    return scores
