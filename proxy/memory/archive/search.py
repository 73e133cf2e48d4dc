"""A question, and what of a person's turns and facts and of the tenant's documents answers it."""

import contextlib
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Final

from proxy.memory.archive.archive import Chunk, Fact, Found, Meaning, Query
from proxy.memory.archive.dialect import listed
from proxy.memory.archive.meanings import alike
from proxy.memory.archive.moments import Span, spans
from proxy.memory.archive.ranking import Lookup, Passage, Ranked, Worths, ranked, worths
from proxy.memory.archive.shelf import Shelf
from proxy.memory.archive.statements import DOCUMENT, DURING, FACT, OWNED, TURN
from proxy.memory.archive.steps import Rows, Steps, asked, first, owner_of, together
from proxy.memory.session import UNREADABLE, Entry
from proxy.memory.stores.sql import id_text
from proxy.memory.stores.store import Key, Owner

_MOST_WORDS: Final = 32
_LONGEST: Final = 2000
_CANDIDATES: Final = 300
_TIMELY: Final = 50
_WITH_NEIGHBOURS: Final = 30
# Of what answers as well, what is known of a person is told before what was said once.
_WORTH: Final = {TURN: 1.0, FACT: 1.15, DOCUMENT: 0.9}


def search(shelf: Shelf, person: Owner, query: Query) -> Steps[list[Found]]:
    """As the archive's ``search``. A person without a name finds nothing."""
    if not person.person:
        return []
    text = query.text[:_LONGEST]
    ways = [(stem, *others) for stem, others in shelf.lexicon.spelt(text).items()][:_MOST_WORDS]
    times = spans(text, query.now, query.zone)
    theirs = Lookup(shelf.lexicon.asked(person, ways), times, query.now)
    everybody = Owner(person.tenant)
    documents = Lookup(shelf.lexicon.asked(everybody, ways), (), query.now)
    found: list[list[Ranked]] = yield from together(
        _owned(shelf, person, theirs, query.meaning), _owned(shelf, everybody, documents, query.meaning)
    )
    weighed = ((worth * _WORTH[one.kind], one) for worth, one in chain(*found) if worth > 0)
    best = sorted(weighed, key=lambda pair: -pair[0])
    return (yield from _answers(shelf, person, best, query))


def _answers(shelf: Shelf, person: Owner, best: list[Ranked], query: Query) -> Steps[list[Found]]:
    """The first that are still there, read a few at a time: what is gone takes no other's place."""
    answers: list[Found] = []
    few = 2 * query.limit
    for start in range(0, len(best), few):
        answers += yield from _read(shelf, person, best[start : start + few], query.now)
        if len(answers) >= query.limit:
            break
    return answers[: query.limit]


def _owned(shelf: Shelf, whose: Owner, question: Lookup, meaning: Meaning | None) -> Steps[list[Ranked]]:
    owner = yield from owner_of(whose)
    if owner is None or not (question.groups or question.spans or meaning):
        return []
    passages, size = yield from together(_candidates(shelf, owner, question), first(OWNED, {"owner": owner}))
    own = worths(question, passages.values(), size)
    if meaning:
        passages |= yield from _meant(shelf, whose, owner, meaning, own)
    if whose.person and passages:
        rows = yield from asked(shelf.dialect.near, {"owner": owner, "ids": listed(_best(own))})
        passages |= _by_id(rows)
    return ranked(question, passages.values(), own)


def _meant(
    shelf: Shelf, whose: Owner, owner: int, meaning: Meaning, own: Worths
) -> Steps[dict[int, Passage]]:
    """Passages that are alike in meaning, which adds to what they are worth by their own words."""
    found = yield from alike(shelf, whose, owner, meaning, _best(own))
    for passage, worth in found.items():
        own[passage] = own.get(passage, 0.0) + worth
    rows = yield from asked(shelf.dialect.these, {"owner": owner, "ids": listed(found)})
    return _by_id(rows)


def _best(own: Worths) -> list[int]:
    return sorted(own, key=own.__getitem__, reverse=True)[:_WITH_NEIGHBOURS]


def _candidates(shelf: Shelf, owner: int, question: Lookup) -> Steps[dict[int, Passage]]:
    looks = [asked(DURING, _during(owner, span)) for span in question.spans]
    if question.groups:
        terms = shelf.dialect.any_of(term for group in question.groups for term in group)
        looks.append(asked(shelf.dialect.match, {"owner": owner, "terms": terms, "limit": _CANDIDATES}))
    passages: dict[int, Passage] = {}
    for rows in (yield from together(*looks)):
        passages |= _by_id(rows)
    return passages


def _during(owner: int, span: Span) -> dict[str, object]:
    return {"owner": owner, "begin": span.begin, "end": span.end, "limit": _TIMELY}


def _by_id(rows: Rows) -> dict[int, Passage]:
    return {row[0]: Passage(*row) for row in rows}


def _read(shelf: Shelf, person: Owner, best: list[Ranked], now: float) -> Steps[list[Found]]:
    """What the passages stand for, in their order, less what has expired and what cannot be opened."""
    kinds = sorted({one.kind for _, one in best})
    looks = [asked(shelf.dialect.texts[kind], {"ids": _items(best, kind), "now": now}) for kind in kinds]
    texts: list[Rows] = yield from together(*looks)
    items: dict[tuple[int, int], Sequence[Any]]
    items = {(kind, row[0]): row for kind, rows in zip(kinds, texts, strict=True) for row in rows}
    return _told(shelf, person, best, items)


def _items(best: Iterable[Ranked], kind: int) -> str:
    return listed(one.item for _, one in best if one.kind == kind)


def _told(
    shelf: Shelf,
    person: Owner,
    best: Iterable[tuple[float, Passage]],
    items: dict[tuple[int, int], Sequence[Any]],
) -> list[Found]:
    told: list[Found] = []
    for worth, one in best:
        row = items.get((one.kind, one.item))
        # A key that is lost may not hold up what can be read.
        with contextlib.suppress(*UNREADABLE):
            if row is not None:
                told.append(_found(shelf, person, one.kind, round(worth, 4), row))
    return told


def _found(shelf: Shelf, person: Owner, kind: int, score: float, row: Sequence[Any]) -> Found:
    _, place, at, blob = row
    name = id_text(place)
    if kind == FACT:
        fact = shelf.opened(Key(person.tenant, person.person), blob, Fact)
        return Found(kind="fact", score=score, text=fact.text, source=name, timestamp=at)
    key = Key(person.tenant, name)
    if kind == DOCUMENT:
        chunk = shelf.opened(key, blob, Chunk)
        return Found(kind="document", score=score, text=chunk.text, source=name, timestamp=at)
    entry = shelf.opened(key, blob, Entry)
    return Found(
        kind="turn",
        score=score,
        text=entry.text,
        role=entry.role,
        session_id=name,
        turn_id=entry.turn if entry.engine_turn is None else entry.engine_turn,
        timestamp=at,
    )
