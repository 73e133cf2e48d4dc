"""Which passages answer a question best: how rare their words are, what stands beside them, and when."""

import contextlib
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import msgspec

from proxy.memory.archive.dates import TimeRange, time_ranges
from proxy.memory.archive.records import Chunk, Fact, Query, QueryVector, SearchResult
from proxy.memory.archive.sql import RowCodec, Rows, Steps, fetch, fetch_value, find_owner, gather
from proxy.memory.archive.statements import DOCUMENT, DURING, FACT, OWNED, TURN, json_array
from proxy.memory.archive.vectors import similarity_scores
from proxy.memory.session import UNREADABLE, Entry
from proxy.memory.stores.sql import id_text
from proxy.memory.stores.store import Key, Owner

# Okapi BM25 (Robertson and Zaragoza 2009); what is said aloud is short, so that length tells little.
_SATURATION: Final = 1.2
_LENGTH: Final = 0.4
# What a passage has of its neighbours' worth, by how far they stand: answers stand behind their question.
_NEIGHBOURS: Final = ((-1, 0.45), (1, 0.45), (-2, 0.2), (2, 0.2))
_DATE_BOOST: Final = 1.6
_BY_TIME_ALONE: Final = 0.3
# Of two that are worth almost the same, the newer goes first.
_FRESH: Final = 0.02
_MONTH: Final = 30 * 86_400.0
# Among so few passages hardly anything tells which words are rare.
_FEW: Final = 20
Groups = Sequence[tuple[str, ...]]
"""For each word of the question the terms that may stand for it."""
Worths = dict[int, float]
"""By passage, what it is worth by its own words: about 1 for one that holds every word of the question."""
_Held = tuple[int, dict[int, int]]
_MOST_WORDS: Final = 32
_LONGEST: Final = 2000
_CANDIDATES: Final = 300
_MOST_DATED: Final = 50
_WITH_NEIGHBOURS: Final = 30
# Of what answers as well, what is known of a person is told before what was said once.
_WORTH: Final = {TURN: 1.0, FACT: 1.15, DOCUMENT: 0.9}


class Passage(msgspec.Struct, frozen=True):
    """A line of the index. Those of one ``talk`` stand in the order of their ``place``."""

    id: int
    kind: int
    item: int
    talk: int
    place: int
    at: float
    terms: str


class Lookup(msgspec.Struct, frozen=True):
    """What is asked: its words as terms, the times that it speaks of, and when it was asked."""

    groups: Groups
    spans: tuple[TimeRange, ...]
    now: float


Ranked = tuple[float, Passage]


def worths(question: Lookup, passages: Collection[Passage], owned: int) -> Worths:
    """What each passage is worth by itself; ``owned`` is how many passages their owner has in all."""
    places: dict[str, list[int]] = defaultdict(list)
    for place, group in enumerate(question.groups):
        for term in group:
            places[term].append(place)
    held = {one.id: _held(one.terms.split(), places) for one in passages}
    weights = _weights(len(question.groups), _frequencies(passages, held), owned)
    usual = sum(length for length, _ in held.values()) / max(1, len(held)) or 1.0
    best = sum(weights) or 1.0
    return {id_: _worth(one, weights, usual) / best for id_, one in held.items()}


def ranked(question: Lookup, passages: Collection[Passage], own: Mapping[int, float]) -> list[Ranked]:
    """The passages, best first, each with its worth: its own, a share of its neighbours', and its time's."""
    there = {(one.talk, one.place): own[one.id] for one in passages if one.id in own}
    whole = [(_whole(question, one, own.get(one.id, 0.0), there), one) for one in passages]
    return sorted(whole, key=lambda pair: (-pair[0], -pair[1].at, pair[1].id))


# How many terms a passage has, and how often those that are asked for, by their place in the question.
def _held(terms: Sequence[str], places: Mapping[str, Sequence[int]]) -> _Held:
    counts: dict[int, int] = {}
    for term in terms:
        for place in places.get(term, ()):
            counts[place] = counts.get(place, 0) + 1
    return len(terms), counts


def _frequencies(passages: Iterable[Passage], held: Mapping[int, _Held]) -> Counter[int]:
    """In how many passages each word of the question stands.

    A fact says again what was said in a turn, which makes its words no more usual: so those of the kind count
    that has most.
    """
    kinds: dict[int, Counter[int]] = defaultdict(Counter)
    for one in passages:
        kinds[one.kind].update(held[one.id][1].keys())
    return Counter({place: max(of[place] for of in kinds.values()) for of in kinds.values() for place in of})


def _weights(words: int, found: Counter[int], owned: int) -> list[float]:
    """How much each word of the question tells: the rarer among the owner's passages, the more."""
    size = max(owned, *found.values(), _FEW)
    return [math.log(1 + (size - found[place] + 0.5) / (found[place] + 0.5)) for place in range(words)]


def _worth(held: _Held, weights: Sequence[float], usual: float) -> float:
    length, counts = held
    spread = _SATURATION * (1 - _LENGTH + _LENGTH * length / usual)
    return sum(weights[place] * n * (_SATURATION + 1) / (n + spread) for place, n in counts.items())


def _whole(question: Lookup, one: Passage, own: float, there: Mapping[tuple[int, int], float]) -> float:
    worth = own
    if one.talk:
        around = (share * there.get((one.talk, one.place + step), 0.0) for step, share in _NEIGHBOURS)
        worth += max(around)
    if any(span.contains(one.at) for span in question.spans):
        worth = max(worth * _DATE_BOOST, _BY_TIME_ALONE)
    age = max(0.0, question.now - one.at) / _MONTH
    return worth * (1 + _FRESH / (1 + age))


def search(shelf: RowCodec, person: Owner, query: Query) -> Steps[list[SearchResult]]:
    """As the archive's ``search``. A person without a name finds nothing."""
    if not person.user:
        return []
    text = query.text[:_LONGEST]
    ways = [(stem, *others) for stem, others in shelf.lexicon.spellings(text).items()][:_MOST_WORDS]
    times = time_ranges(text, query.now, query.zone)
    theirs = Lookup(shelf.lexicon.query_terms(person, ways), times, query.now)
    everybody = Owner(person.tenant)
    documents = Lookup(shelf.lexicon.query_terms(everybody, ways), (), query.now)
    found: list[list[Ranked]] = yield from gather(
        _owned(shelf, person, theirs, query.vector), _owned(shelf, everybody, documents, query.vector)
    )
    weighed = ((worth * _WORTH[one.kind], one) for worth, one in chain(*found) if worth > 0)
    best = sorted(weighed, key=lambda pair: -pair[0])
    return (yield from _answers(shelf, person, best, query))


def _answers(shelf: RowCodec, person: Owner, best: list[Ranked], query: Query) -> Steps[list[SearchResult]]:
    """The first that are still there, read a few at a time: what is gone takes no other's place."""
    answers: list[SearchResult] = []
    few = 2 * query.limit
    for start in range(0, len(best), few):
        answers += yield from _read(shelf, person, best[start : start + few], query.now)
        if len(answers) >= query.limit:
            break
    return answers[: query.limit]


def _owned(
    shelf: RowCodec, whose: Owner, question: Lookup, meaning: QueryVector | None
) -> Steps[list[Ranked]]:
    owner = yield from find_owner(whose)
    if owner is None or not (question.groups or question.spans or meaning):
        return []
    passages, size = yield from gather(
        _candidates(shelf, owner, question), fetch_value(OWNED, {"owner": owner})
    )
    own = worths(question, passages.values(), size)
    if meaning:
        passages |= yield from _meant(shelf, whose, owner, meaning, own)
    if whose.user and passages:
        rows = yield from fetch(shelf.dialect.near, {"owner": owner, "ids": json_array(_best(own))})
        passages |= _by_id(rows)
    return ranked(question, passages.values(), own)


def _meant(
    shelf: RowCodec, whose: Owner, owner: int, meaning: QueryVector, own: Worths
) -> Steps[dict[int, Passage]]:
    """Passages that are alike in meaning, which adds to what they are worth by their own words."""
    found = yield from similarity_scores(shelf, whose, owner, meaning, _best(own))
    for passage, worth in found.items():
        own[passage] = own.get(passage, 0.0) + worth
    rows = yield from fetch(shelf.dialect.these, {"owner": owner, "ids": json_array(found)})
    return _by_id(rows)


def _best(own: Worths) -> list[int]:
    return sorted(own, key=own.__getitem__, reverse=True)[:_WITH_NEIGHBOURS]


def _candidates(shelf: RowCodec, owner: int, question: Lookup) -> Steps[dict[int, Passage]]:
    looks = [fetch(DURING, _during(owner, span)) for span in question.spans]
    if question.groups:
        terms = shelf.dialect.any_of(term for group in question.groups for term in group)
        looks.append(fetch(shelf.dialect.match, {"owner": owner, "terms": terms, "limit": _CANDIDATES}))
    passages: dict[int, Passage] = {}
    for rows in (yield from gather(*looks)):
        passages |= _by_id(rows)
    return passages


def _during(owner: int, span: TimeRange) -> dict[str, object]:
    return {"owner": owner, "begin": span.begin, "end": span.end, "limit": _MOST_DATED}


def _by_id(rows: Rows) -> dict[int, Passage]:
    return {row[0]: Passage(*row) for row in rows}


def _read(shelf: RowCodec, person: Owner, best: list[Ranked], now: float) -> Steps[list[SearchResult]]:
    """What the passages stand for, in their order, less what has expired and what cannot be opened."""
    kinds = sorted({one.kind for _, one in best})
    looks = [fetch(shelf.dialect.texts[kind], {"ids": _items(best, kind), "now": now}) for kind in kinds]
    texts: list[Rows] = yield from gather(*looks)
    items: dict[tuple[int, int], Sequence[Any]]
    items = {(kind, row[0]): row for kind, rows in zip(kinds, texts, strict=True) for row in rows}
    return _results(shelf, person, best, items)


def _items(best: Iterable[Ranked], kind: int) -> str:
    return json_array(one.item for _, one in best if one.kind == kind)


def _results(
    shelf: RowCodec,
    person: Owner,
    best: Iterable[tuple[float, Passage]],
    items: dict[tuple[int, int], Sequence[Any]],
) -> list[SearchResult]:
    told: list[SearchResult] = []
    for worth, one in best:
        row = items.get((one.kind, one.item))
        # A key that is lost may not hold up what can be read.
        with contextlib.suppress(*UNREADABLE):
            if row is not None:
                told.append(_result(shelf, person, one.kind, round(worth, 4), row))
    return told


def _result(shelf: RowCodec, person: Owner, kind: int, score: float, row: Sequence[Any]) -> SearchResult:
    _, place, at, blob = row
    name = id_text(place)
    if kind == FACT:
        fact = shelf.decode(Key(person.tenant, person.user), blob, Fact)
        return SearchResult(kind="fact", score=score, text=fact.text, source=name, timestamp=at)
    key = Key(person.tenant, name)
    if kind == DOCUMENT:
        chunk = shelf.decode(key, blob, Chunk)
        return SearchResult(kind="document", score=score, text=chunk.text, source=name, timestamp=at)
    entry = shelf.decode(key, blob, Entry)
    return SearchResult(
        kind="turn",
        score=score,
        text=entry.text,
        role=entry.role,
        session_id=name,
        turn_id=entry.turn if entry.engine_turn is None else entry.engine_turn,
        timestamp=at,
    )
