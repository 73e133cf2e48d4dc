"""Vectors in the archive: which texts are still without, and what is alike."""

from collections.abc import Iterable, Iterator, Sequence
from heapq import nsmallest
from typing import Any, Final

import msgspec

from proxy.memory.archive.archive import Chunk, Fact, Meaning, Unmeant
from proxy.memory.archive.dialect import listed
from proxy.memory.archive.shelf import Shelf
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
)
from proxy.memory.archive.steps import Rows, Steps, asked, first
from proxy.memory.archive.vector import Vector, cosine, packed, sign
from proxy.memory.errors import StoreError
from proxy.memory.session import Entry
from proxy.memory.stores.sql import id_text
from proxy.memory.stores.store import Key, Owner

_LOOKED_THROUGH: Final = 2000
"""Of one owner, the newest."""
_COMPARED: Final = 48
"""Those whose signs are most alike are compared number by number."""


def unmeant(shelf: Shelf, model: str, limit: int) -> Steps[list[Unmeant]]:
    """As the archive's ``unmeant``."""
    rows = yield from asked(UNMEANT, {"model": model, "limit": limit})
    return (yield from _read(shelf, rows))


def reindex(shelf: Shelf, limit: int) -> Steps[int]:
    """As the archive's ``reindex``. What cannot be read keeps the words that it has."""
    rows = yield from asked(OUTDATED, {"limit": limit})
    found = yield from _read(shelf, rows)
    for one in found:
        anew = one.terms if one.text is None else shelf.lexicon.terms(one.owner, one.text)
        change = INDEXED_ANEW if anew != one.terms else UP_TO_DATE
        yield from asked(change, {"passage": one.passage, "terms": one.terms, "anew": anew})
    return len(found)


def _read(shelf: Shelf, rows: Rows) -> Steps[list[Unmeant]]:
    items: dict[tuple[int, int], Sequence[Any]] = {}
    for kind in sorted({row[1] for row in rows}):
        ids = listed(row[2] for row in rows if row[1] == kind)
        texts = yield from asked(shelf.dialect.texts[kind], {"ids": ids, "now": 0.0})
        items |= {(kind, row[0]): row for row in texts}
    return [_unmeant(shelf, row, items.get((row[1], row[2]))) for row in rows]


def _unmeant(shelf: Shelf, row: Sequence[Any], item: Sequence[Any] | None) -> Unmeant:
    owner = Owner(id_text(row[4]), id_text(row[5]))
    text = None if item is None else _text(shelf, owner, row[1], item)
    return Unmeant(passage=row[0], owner=owner, terms=row[3], text=text)


def _text(shelf: Shelf, owner: Owner, kind: int, item: Sequence[Any]) -> str | None:
    """What the text says; a key that is lost may not hold up the others."""
    _, place, _, blob = item
    try:
        if kind == FACT:
            return shelf.opened(Key(owner.tenant, owner.person), blob, Fact).text
        key = Key(owner.tenant, id_text(place))
        if kind == DOCUMENT:
            chunk = shelf.opened(key, blob, Chunk)
            return f"{chunk.title}\n{chunk.text}"
        return shelf.opened(key, blob, Entry).text
    except (StoreError, msgspec.DecodeError):
        return None


def add_vectors(shelf: Shelf, model: str, vectors: Sequence[tuple[Unmeant, Vector | None]]) -> Steps[None]:
    """As the archive's ``add_vectors``; what was corrected or removed meanwhile is left alone."""
    for text, vector in vectors:
        place = {"passage": text.passage, "model": model}
        owner = yield from first(MEANT, {**place, "terms": text.terms})
        if owner is None:
            continue
        if vector is None:
            yield from asked(NO_VECTOR, {"passage": text.passage})
            continue
        sealed = {
            "sign": shelf.sealed_bytes(text.owner, sign(vector)),
            "blob": shelf.sealed_bytes(text.owner, packed(vector)),
        }
        yield from asked(PUT_VECTOR, {**place, "owner": owner, **sealed})


def alike(
    shelf: Shelf, whose: Owner, owner: int, meaning: Meaning, others: Iterable[int]
) -> Steps[dict[int, float]]:
    """By passage, what its meaning is worth: of the most alike of one owner, and of ``others`` of theirs."""
    owned = {"owner": owner, "model": meaning.model}
    signs = yield from asked(SIGNS, {**owned, "limit": _LOOKED_THROUGH})
    compared = {*_nearest(shelf, whose, meaning, signs), *others}
    rows = yield from asked(shelf.dialect.vectors, {**owned, "ids": listed(compared)})
    return dict(_worths(shelf, whose, meaning, rows))


def _nearest(shelf: Shelf, whose: Owner, meaning: Meaning, signs: Rows) -> list[int]:
    """The passages whose signs differ least from the question's."""
    own = sign(meaning.vector)
    bits = int.from_bytes(own, "big")
    distances = (
        ((bits ^ int.from_bytes(blob, "big")).bit_count(), -passage)
        for passage, blob in ((passage, shelf.opened_bytes(whose, sealed)) for passage, sealed in signs)
        if len(blob) == len(own)
    )
    return [-passage for _, passage in nsmallest(_COMPARED, distances)]


def _worths(shelf: Shelf, whose: Owner, meaning: Meaning, rows: Rows) -> Iterator[tuple[int, float]]:
    for passage, blob in rows:
        found = cosine(meaning.vector, shelf.opened_bytes(whose, blob))
        if found > meaning.least:
            yield passage, meaning.weight * (found - meaning.least) / (1 - meaning.least)
