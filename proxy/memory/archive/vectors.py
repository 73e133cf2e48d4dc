"""Vectors: arithmetic, texts without one, and the similarity of passages to a question."""

import math
from collections.abc import Iterable, Sequence
from heapq import nsmallest
from itertools import islice
from operator import getitem
from statistics import fmean
from typing import Any, Final

import msgspec

from proxy.memory.archive import statements
from proxy.memory.archive.records import DocumentChunk, QueryVector, UnembeddedText, Vector
from proxy.memory.archive.sql import RowCodec, Rows, Steps, fetch, fetch_items, fetch_value
from proxy.memory.archive.statements import json_array
from proxy.memory.errors import StoreError
from proxy.memory.session import Entry
from proxy.memory.stores.sql import id_text
from proxy.memory.stores.store import Key, Owner

MAX_DIMENSIONS: Final = 8192
"""The most numbers that a vector has."""
# How many of an owner's newest vectors are compared by signs, and how many of the nearest of these with the
# question's numbers.
_COMPARED_BY_SIGN: Final = 2000
_COMPARED: Final = 48
# How many characters of each neighbour are embedded with a turn, as its context.
_OF_NEIGHBOUR: Final = 200
# How many standard deviations above the mean of an owner's vectors a similarity must be: what all of them
# share with a question does not count. With few vectors, the mean is not used.
_STANDS_OUT: Final = 1.5
_FEW: Final = 20
_SAMPLE: Final = 128
# A similarity halfway between the threshold and 1 has the full score: other words are never more similar.
_STEEPNESS: Final = 2.0


def normalize(numbers: Sequence[float]) -> Vector:
    """Returns the vector of length 1 in the same direction. Raises ValueError if there is none."""
    length = math.hypot(*numbers) if 0 < len(numbers) <= MAX_DIMENSIONS else 0.0
    if not (math.isfinite(length) and length > 0):
        raise ValueError("this is no vector")
    return tuple(number / length for number in numbers)


def sign_bits(vector: Vector) -> bytes:
    """Returns a bit for each number, set if it is positive: similar vectors differ in few bits."""
    bits = "".join("1" if number > 0 else "0" for number in vector)
    return int(bits, 2).to_bytes((len(bits) + 7) // 8, "big")


class SignComparison:
    """Compares a vector with others by their signs."""

    def __init__(self, vector: Vector) -> None:
        padded = (*(0.0 for _ in range(-len(vector) % 8)), *vector)
        # By position and value of a byte, the sum of the numbers whose bits are set.
        self._sums: list[list[float]] = []
        for start in range(0, len(padded), 8):
            sums = [0.0]
            for number in reversed(padded[start : start + 8]):
                sums += [total + number for total in sums]
            self._sums.append(sums)
        self._total = math.fsum(vector)
        # The factor for the mean absolute value of normally distributed numbers.
        self._scale = math.sqrt(math.pi / 2 / len(vector))

    def cosine(self, signs: bytes) -> float:
        """Estimates the cosine with a vector of these signs; 0 if the lengths differ."""
        if len(signs) != len(self._sums):
            return 0.0
        product = 2 * sum(map(getitem, self._sums, signs)) - self._total
        return max(-1.0, min(1.0, self._scale * product))


def _stored_name(model: str) -> str:
    """Returns a model's name as stored with vectors; those of older versions are of one line, not three."""
    return f"{model}/3"


def unembedded_texts(codec: RowCodec, model: str, limit: int, until: float) -> Steps[list[UnembeddedText]]:
    """Reads a few texts without a vector by this model; a turn's text includes its neighbours.

    The text of greetings and function words is ``None``, as they get no vector.
    """
    arguments = {"model": _stored_name(model), "limit": limit, "until": until}
    rows = yield from fetch(statements.UNEMBEDDED, arguments)
    turns = [row[0] for row in rows if row[1] == statements.TURN]
    neighbours: dict[int, Rows] = yield from _neighbours(turns)
    beside = {(statements.TURN, item) for lines in neighbours.values() for _, item, _ in lines}
    turn_rows = yield from fetch_items(beside)
    texts: list[UnembeddedText] = []
    for one in (yield from _read(codec, rows)):
        text, lines = one.text, neighbours.get(one.passage, [])
        if not codec.lexicon.asks(text or ""):
            text = None
        elif lines:
            line_texts = (
                _line_text(codec, one.owner, turn_rows.get((statements.TURN, item)), distance)
                for distance, item, _ in lines
            )
            text = "\n".join(filter(None, line_texts))
        texts.append(msgspec.structs.replace(one, text=text, beside=_terms(lines)))
    return texts


def _neighbours(passages: Iterable[int]) -> Steps[dict[int, Rows]]:
    """Reads by passage the lines from the one before to the one after: distance, item and terms."""
    lines: dict[int, Rows] = {}
    rows = yield from fetch(statements.BESIDE, {"ids": json_array(passages)})
    for passage, *line in rows:
        lines.setdefault(passage, []).append(tuple(line))
    return lines


def _terms(lines: Rows) -> tuple[tuple[int, str], ...]:
    return tuple((distance, terms) for distance, _, terms in lines)


def _line_text(codec: RowCodec, owner: Owner, row: Sequence[Any] | None, distance: int) -> str | None:
    """Returns a line with its role; of a neighbour only the nearest characters."""
    if row is None:
        return None
    try:
        entry = codec.decode(Key(owner.tenant, id_text(row[1])), row[3], Entry)
    except StoreError:
        return None
    text = entry.text
    if distance < 0:
        text = text[-_OF_NEIGHBOUR:]
    elif distance > 0:
        text = text[:_OF_NEIGHBOUR]
    return f"{entry.role.title()}: {text}"


def add_vectors(model: str, vectors: Sequence[tuple[UnembeddedText, bytes | None]]) -> Steps[None]:
    """Adds vectors for texts that have not changed or been removed, nor have their neighbours.

    Only the encoded signs of a vector are stored; ``None`` is for a text without a vector.
    """
    by_model = {"model": _stored_name(model)}
    owners: dict[int, int | None] = {}
    for text, _ in vectors:
        passage = {**by_model, "passage": text.passage, "terms": text.terms}
        owners[text.passage] = yield from fetch_value(statements.MARK_EMBEDDED, passage)
    # After the mark, which later changes remove.
    neighbours: dict[int, Rows] = yield from _neighbours([one for one, owner in owners.items() if owner])
    for text, sign in vectors:
        passage = {"passage": text.passage}
        owner = owners[text.passage]
        if owner is None:
            continue
        if _terms(neighbours.get(text.passage, [])) != text.beside:
            yield from fetch(statements.MARK_DUE, passage)
        elif sign is None:
            yield from fetch(statements.DELETE_VECTOR, passage)
        else:
            # Older versions stored a vector's numbers in another column.
            row = {**by_model, **passage, "owner": owner, "sign": sign, "blob": b""}
            yield from fetch(statements.UPSERT_VECTOR, row)


def outdated_texts(codec: RowCodec, limit: int) -> Steps[list[UnembeddedText]]:
    """Reads a few texts with terms of an older lexicon."""
    rows = yield from fetch(statements.OUTDATED_PASSAGES, {"limit": limit})
    return (yield from _read(codec, rows))


def reindex(texts: Sequence[tuple[UnembeddedText, str]]) -> Steps[None]:
    """Writes the new terms of texts, unless these have changed."""
    for text, terms in texts:
        statement = statements.MARK_UP_TO_DATE if terms == text.terms else statements.REINDEX_PASSAGE
        yield from fetch(statement, {"passage": text.passage, "terms": text.terms, "anew": terms})


def _read(codec: RowCodec, rows: Rows) -> Steps[list[UnembeddedText]]:
    """Reads the texts of passages, which are rows of ``_WITH_OWNER``."""
    items = yield from fetch_items((row[1], row[2]) for row in rows)
    texts: list[UnembeddedText] = []
    for passage, kind, item, terms, tenant, user in rows:
        owner = Owner(id_text(tenant), id_text(user))
        row = items.get((kind, item))
        text = None if row is None else _text(codec, owner, kind, row)
        texts.append(UnembeddedText(passage=passage, owner=owner, terms=terms, text=text))
    return texts


def _text(codec: RowCodec, owner: Owner, kind: int, row: Sequence[Any]) -> str | None:
    """Decodes the text of an item; ``None`` if it is unreadable, which must not affect the others."""
    try:
        item = codec.decode_item(owner, kind, row)
    except StoreError:
        return None
    return f"{item.title}\n{item.text}" if isinstance(item, DocumentChunk) else item.text


def similarity_scores(
    codec: RowCodec, owner: Owner, owner_id: int, query: QueryVector, others: Iterable[int]
) -> Steps[dict[int, float]]:
    """Returns similarity scores by passage, for an owner's most similar passages and for ``others``."""
    rows = yield from fetch(
        statements.SIGN_BITS,
        {"owner": owner_id, "model": _stored_name(query.model), "limit": _COMPARED_BY_SIGN},
    )
    query_bits = sign_bits(query.vector)
    decoded = ((passage, codec.decode_bytes(owner, blob)) for passage, blob in rows)
    signs = {passage: other for passage, other in decoded if len(other) == len(query_bits)}
    bits = int.from_bytes(query_bits, "big")
    distances = (
        ((bits ^ int.from_bytes(other, "big")).bit_count(), -passage) for passage, other in signs.items()
    )
    nearest = {-passage for _, passage in nsmallest(_COMPARED, distances)}
    comparison = SignComparison(query.vector)
    threshold = query.threshold
    if len(signs) >= _FEW:
        sample = [
            comparison.cosine(other) for other in islice(signs.values(), 0, None, 1 + len(signs) // _SAMPLE)
        ]
        mean = fmean(sample)
        deviation = math.sqrt(fmean((one - mean) ** 2 for one in sample))
        threshold = max(threshold, mean + _STANDS_OUT * deviation)
    scores: dict[int, float] = {}
    for passage in nearest.union(others).intersection(signs):
        similarity = comparison.cosine(signs[passage])
        if similarity > threshold:
            share = min(1.0, _STEEPNESS * (similarity - threshold) / (1 - threshold))
            scores[passage] = query.weight * share
    return scores
