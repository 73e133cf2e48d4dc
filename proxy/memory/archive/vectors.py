"""Vectors: their arithmetic, which texts lack one, and which passages are similar to a question."""

import math
from collections.abc import Iterable, Sequence
from heapq import nsmallest
from operator import getitem
from typing import Any, Final, NamedTuple

import msgspec

from proxy.memory.archive import statements
from proxy.memory.archive.records import Chunk, Fact, QueryVector, UnembeddedText, Vector
from proxy.memory.archive.sql import RowCodec, Rows, Steps, fetch, fetch_value
from proxy.memory.archive.statements import json_array
from proxy.memory.errors import StoreError
from proxy.memory.session import Entry
from proxy.memory.stores.sql import id_text
from proxy.memory.stores.store import Key, Owner

MAX_DIMENSIONS: Final = 8192
"""The most numbers that a vector has."""
# The newest vectors of an owner are compared sign by sign, and the most similar of those, with the question's
# numbers.
_COMPARED_BY_SIGN: Final = 2000
_COMPARED: Final = 48


def normalize(numbers: Sequence[float]) -> Vector:
    """The vector of length 1 in the same direction. Raises ValueError where there is none."""
    length = math.hypot(*numbers) if 0 < len(numbers) <= MAX_DIMENSIONS else 0.0
    if not (math.isfinite(length) and length > 0):
        raise ValueError("this is no vector")
    return tuple(number / length for number in numbers)


def sign_bits(vector: Vector) -> bytes:
    """A bit for each number, set where it is positive: similar vectors differ in few of them."""
    bits = "".join("1" if number > 0 else "0" for number in vector)
    return int(bits, 2).to_bytes((len(bits) + 7) // 8, "big")


class Comparison:
    """A vector that is compared with others by their signs."""

    def __init__(self, vector: Vector) -> None:
        padded = (*(0.0 for _ in range(-len(vector) % 8)), *vector)
        # By place and value of a byte, the sum of the numbers whose bits are set in it.
        self._sums: list[list[float]] = []
        for start in range(0, len(padded), 8):
            sums = [0.0]
            for number in reversed(padded[start : start + 8]):
                sums += [total + number for total in sums]
            self._sums.append(sums)
        self._total = math.fsum(vector)
        # Of numbers that are spread as the normal distribution has it, the mean size is so much less.
        self._scale = math.sqrt(math.pi / 2 / len(vector))

    def cosine(self, signs: bytes) -> float:
        """An estimate of the cosine with a vector of these signs; 0 where their lengths differ."""
        if len(signs) != len(self._sums):
            return 0.0
        product = 2 * sum(map(getitem, self._sums, signs)) - self._total
        return max(-1.0, min(1.0, self._scale * product))


def unembedded_texts(codec: RowCodec, model: str, limit: int) -> Steps[list[UnembeddedText]]:
    """A few of the texts without a vector by this model.

    Of greetings and function words alone there is none to make: their text is ``None``.
    """
    rows = yield from fetch(statements.UNEMBEDDED, {"model": model, "limit": limit})
    texts: list[UnembeddedText] = yield from _read(codec, rows)
    return [
        one if codec.lexicon.asks(one.text or "") else msgspec.structs.replace(one, text=None)
        for one in texts
    ]


class EncodedVector(NamedTuple):
    """A text with the signs of its vector as they are stored; ``None`` for a text without one."""

    text: UnembeddedText
    sign: bytes | None


def encoded_vector(codec: RowCodec, text: UnembeddedText, vector: Vector | None) -> EncodedVector:
    """A vector as it is stored: thousands of numbers are packed before a transaction, not within it."""
    sign = None if vector is None else codec.encode_bytes(text.owner, sign_bits(vector))
    return EncodedVector(text, sign)


def add_vectors(model: str, vectors: Sequence[EncodedVector]) -> Steps[None]:
    """Add vectors for texts that were not changed or removed meanwhile."""
    for text, sign in vectors:
        passage = {"passage": text.passage, "model": model}
        owner = yield from fetch_value(statements.MARK_EMBEDDED, {**passage, "terms": text.terms})
        if owner is None:
            continue
        if sign is None:
            yield from fetch(statements.DELETE_VECTOR, {"passage": text.passage})
            continue
        # Older versions stored a vector's numbers in another column.
        yield from fetch(statements.UPSERT_VECTOR, {**passage, "owner": owner, "sign": sign, "blob": b""})


def outdated_texts(codec: RowCodec, limit: int) -> Steps[list[UnembeddedText]]:
    """A few of the texts that have terms of an older lexicon."""
    rows = yield from fetch(statements.OUTDATED_PASSAGES, {"limit": limit})
    return (yield from _read(codec, rows))


def reindex(texts: Sequence[tuple[UnembeddedText, str]]) -> Steps[None]:
    """Give texts their terms, each, unless they were changed meanwhile."""
    for text, terms in texts:
        statement = statements.MARK_UP_TO_DATE if terms == text.terms else statements.REINDEX_PASSAGE
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
        if kind == statements.FACT:
            return codec.decode(Key(owner.tenant, owner.user), blob, Fact).text
        key = Key(owner.tenant, id_text(name))
        if kind == statements.DOCUMENT:
            chunk = codec.decode(key, blob, Chunk)
            return f"{chunk.title}\n{chunk.text}"
        return codec.decode(key, blob, Entry).text
    except (StoreError, msgspec.DecodeError):
        return None


def similarity_scores(
    codec: RowCodec, owner: Owner, owner_id: int, query: QueryVector, others: Iterable[int]
) -> Steps[dict[int, float]]:
    """By passage, the score of its similarity: for an owner's most similar passages, and for ``others``."""
    rows = yield from fetch(
        statements.SIGN_BITS, {"owner": owner_id, "model": query.model, "limit": _COMPARED_BY_SIGN}
    )
    signs = {passage: codec.decode_bytes(owner, blob) for passage, blob in rows}
    own = sign_bits(query.vector)
    bits = int.from_bytes(own, "big")
    distances = (
        ((bits ^ int.from_bytes(other, "big")).bit_count(), -passage)
        for passage, other in signs.items()
        if len(other) == len(own)
    )
    nearest = {-passage for _, passage in nsmallest(_COMPARED, distances)}
    scores: dict[int, float] = {}
    comparison = Comparison(query.vector)
    for passage in nearest.union(others).intersection(signs):
        similarity = comparison.cosine(signs[passage])
        if similarity > query.threshold:
            scores[passage] = query.weight * (similarity - query.threshold) / (1 - query.threshold)
    return scores
