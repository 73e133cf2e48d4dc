"""Searches the archive: finds candidates by words, dates and vectors, and ranks them."""

import contextlib
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from operator import or_
from typing import Any, Final, NamedTuple

import msgspec

from filters.injection import comparable
from proxy.memory.archive.dates import TimeRange, time_ranges
from proxy.memory.archive.languages import is_greeting
from proxy.memory.archive.records import Kind, Query, QueryVector, SearchResult
from proxy.memory.archive.sql import RowCodec, Rows, Steps, fetch, fetch_items, gather, owner_arguments
from proxy.memory.archive.statements import (
    DOCUMENT,
    FACT,
    MATCH_ALL,
    MATCH_BEST,
    OWNER_SIZE,
    PASSAGES_BY_ID,
    PASSAGES_IN_RANGE,
    PASSAGES_NEAR,
    TURN,
    json_array,
)
from proxy.memory.archive.terms import GUESS
from proxy.memory.archive.vectors import similarity_scores
from proxy.memory.errors import Unreadable
from proxy.memory.session import Entry
from proxy.memory.stores.sql import id_text
from proxy.memory.stores.store import Owner

_MOST_WORDS: Final = 32
_MAX_QUESTION: Final = 2000
_CANDIDATES: Final = 300
# With so few passages of an owner, a question rarely matches more than _CANDIDATES.
_RARELY_TOO_MANY: Final = 1000
_CANDIDATES_BY_DATE: Final = 50
_WITH_NEIGHBOURS: Final = 30
# Of equal matches, a fact comes before a turn.
_KIND_WEIGHTS: Final = {TURN: 1.0, FACT: 1.15, DOCUMENT: 0.9}
# Okapi BM25 (Robertson and Zaragoza 2009). Length matters little, because turns are short, but enough to have
# an answer that repeats its question behind it.
_SATURATION: Final = 1.2
_LENGTH: Final = 0.2
# The weight of a word in a neighbour, by distance: answers come after their question.
_FIELDS: Final = ((0, 1.0), (-1, 0.6), (1, 0.4), (-2, 0.3), (2, 0.2))
# The exponent that combines the scores of words and vectors: 1 adds them, 2 adds their squares. Vectors
# repeat some of the evidence of words, which must not count twice.
_OVERLAP: Final = 1.5
# The weight of a word in half of all passages is 0, but a match still counts more than none.
_LEAST_WEIGHT: Final = 0.1
# The score of a passage from a time that the question names.
_TIMELY: Final = 0.3
_TELLING: Final = 5
_LONGEST_GREETING: Final = 60
# Bounds of the sum of weights, in nats, that scores 1: one common word is too little, and some of the words
# of a long question are enough.
_LEAST_TOLD: Final = 2.5
_MOST_TOLD: Final = 8.0
# With fewer passages, frequencies would not show which words are rare.
_FEW: Final = 20


class Passage(msgspec.Struct, frozen=True):
    """A row of the index. Passages of one session ``talk`` are ordered by ``place``."""

    id: int
    kind: int
    item: int
    talk: int
    place: int
    at: float
    terms: str


class Lookup(NamedTuple):
    """A question: for each word its possible terms with their worth, and the dates."""

    groups: Sequence[dict[str, float]]
    dates: tuple[TimeRange, ...]


class WordMatches(NamedTuple):
    """The words of a question in each passage, and the weight of each word."""

    weights: Sequence[float]
    """By word, its share of the score of a passage with all words."""
    counts: Mapping[int, Mapping[int, float]]
    """By passage and word, the number of occurrences; a synonym counts less."""
    spreads: Mapping[int, float]
    """By passage, the count at which a word reaches half of its maximum score."""

    def score(self, passage: int, counts: Mapping[int, float]) -> float:
        """Returns the score of a passage with these ``counts`` of words, its neighbours included."""
        spread = self.spreads.get(passage, _SATURATION)
        score = 0.0
        for word, count in counts.items():
            score += self.weights[word] * count / (count + spread)
        return score * (_SATURATION + 1)

    def missing(self, groups: Iterable[dict[str, float]]) -> list[dict[str, float]]:
        """Returns the groups of words that no passage has, and empty groups for the others."""
        present = set(chain(*self.counts.values()))
        return [{} if word in present else group for word, group in enumerate(groups)]

    def own_scores(self) -> dict[int, float]:
        """Returns by passage the score of its own words."""
        return {one: self.score(one, counts) for one, counts in self.counts.items()}


Scored = tuple[float, Passage]


def search(codec: RowCodec, user: Owner, query: Query) -> Steps[list[SearchResult]]:
    """Returns matches of the user and the tenant, the best first; none for a user without a name."""
    if not user.user:
        return []
    text = query.text[:_MAX_QUESTION]
    groups = codec.lexicon.question(text)[:_MOST_WORDS]
    dates = time_ranges(text, query.now, query.zone)
    if not (groups or dates):
        return []
    question = Lookup(groups, dates)
    # A question of only a time and courtesies would be similar to any small talk.
    vector = query.vector if groups else None
    tenant = Owner(user.tenant)
    ranked: list[list[Scored]] = yield from gather(
        _ranked(codec, user, question, vector),
        _ranked(codec, tenant, question._replace(dates=()), vector),
    )
    scored = ((score * _KIND_WEIGHTS[one.kind], one) for score, one in chain(*ranked) if score > 0)
    best = sorted(scored, key=lambda pair: -pair[0])
    by_place = {(one.talk, one.place): one for _, one in ranked[0]} if query.following else {}
    # A few at a time, because expired and repeated passages are dropped once they are read.
    results: list[SearchResult] = []
    seen: set[str] = set()
    hits = 0
    step = query.limit + query.limit // 4
    for start in range(0, len(best), step):
        with_next = [
            (score, one, by_place.get((one.talk, one.place + 1)) if one.talk else None)
            for score, one in best[start : start + step]
        ]
        tells = False
        for one in (yield from _read(codec, user, with_next, query.now)):
            if hits == query.limit and not one.follows:
                return results
            short = len(one.text) <= _LONGEST_GREETING
            if not one.follows:
                # A greeting has the score of its neighbours' words.
                tells = not short or codec.lexicon.asks(one.text)
            if not tells or (one.follows and short and is_greeting(one.text)):
                continue
            if one.kind == "turn" and query.following:
                words = comparable(one.text)
                if words in seen:
                    continue
                seen.add(words)
            results.append(one)
            hits += not one.follows
    return results


def _ranked(
    codec: RowCodec, owner: Owner, question: Lookup, vector: QueryVector | None
) -> Steps[list[Scored]]:
    """Reads and ranks an owner's passages, the best first; the question's words are stems."""
    rows = yield from fetch(OWNER_SIZE, owner_arguments(owner))
    if not rows:
        return []
    owner_id, size = rows[0]
    groups, guesses = [], []
    for group in question.groups:
        groups.append({stem: worth for stem, worth in group.items() if worth >= GUESS})
        guesses.append({stem: worth for stem, worth in group.items() if worth < GUESS})
    lookup = question._replace(groups=codec.lexicon.query_terms(owner, groups))
    passages = yield from _candidates(codec, owner_id, lookup, size)
    matches = word_matches(lookup, passages.values(), size)
    guesses = matches.missing(guesses)
    if any(guesses):
        guesses = codec.lexicon.query_terms(owner, guesses)
        if rows := (yield from _matching(codec, owner_id, guesses, size)):
            passages |= _passages(rows)
            lookup = lookup._replace(groups=[*map(or_, lookup.groups, guesses)])
            matches = word_matches(lookup, passages.values(), size)
    scores = matches.own_scores()
    similar: dict[int, float] = {}
    if vector:
        similar = yield from similarity_scores(codec, owner, owner_id, vector, _best(scores))
        for passage, score in similar.items():
            scores[passage] = scores.get(passage, 0.0) + score
        rows = yield from fetch(PASSAGES_BY_ID, {"owner": owner_id, "ids": json_array(similar)})
        passages |= _passages(rows)
    if owner.user and passages:
        rows = yield from fetch(PASSAGES_NEAR, {"owner": owner_id, "ids": json_array(_best(scores))})
        passages |= _passages(rows)
    return rank(lookup, passages.values(), matches, similar)


def _candidates(codec: RowCodec, owner: int, lookup: Lookup, size: int) -> Steps[dict[int, Passage]]:
    """Reads an owner's passages from the named dates, and those with any of the terms."""
    works: list[Steps[Rows]] = [
        fetch(PASSAGES_IN_RANGE, {"owner": owner, **one._asdict(), "limit": _CANDIDATES_BY_DATE})
        for one in lookup.dates
    ]
    if lookup.groups:
        works.append(_matching(codec, owner, lookup.groups, size))
    results: list[Rows] = yield from gather(*works)
    return _passages(chain(*results))


def _matching(codec: RowCodec, owner: int, groups: Sequence[dict[str, float]], size: int) -> Steps[Rows]:
    """Reads an owner's passages with any of the terms, the best ``_CANDIDATES`` of them."""
    terms = codec.dialect.any_term(term for group in groups for term in group)
    if size <= _RARELY_TOO_MANY:
        # Ranking costs the database more than finding.
        rows = yield from fetch(MATCH_ALL, {"owner": owner, "terms": terms, "limit": _CANDIDATES + 1})
        if len(rows) <= _CANDIDATES:
            return rows
    return (yield from fetch(MATCH_BEST, {"owner": owner, "terms": terms, "limit": _CANDIDATES}))


def _passages(rows: Iterable[Sequence[Any]]) -> dict[int, Passage]:
    return {row[0]: Passage(*row) for row in rows}


def _best(scores: Mapping[int, float]) -> list[int]:
    return sorted(scores, key=scores.__getitem__, reverse=True)[:_WITH_NEIGHBOURS]


def word_matches(lookup: Lookup, passages: Collection[Passage], size: int) -> WordMatches:
    """Returns the words of a question in passages; ``size`` is how many passages their owner has.

    A passage with all words scores about 1, unless the sum of their weights is very low or very high.
    """
    # By passage and word of the question, the number of occurrences.
    counts: dict[int, dict[int, float]] = {}
    words_of: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for word, group in enumerate(lookup.groups):
        for term, worth in group.items():
            words_of[term].append((word, worth))
    for one in passages:
        worths: dict[int, list[float]] = {}
        for term in filter(words_of.__contains__, one.terms.split()):
            for word, worth in words_of[term]:
                worths.setdefault(word, []).append(worth)
        counts[one.id] = {word: max(each) * len(each) for word, each in worths.items()}
    # Each kind is counted separately: facts repeat words of turns, which are no less rare for it.
    frequencies = {kind: [0] * len(lookup.groups) for kind in _KIND_WEIGHTS}
    for one in passages:
        frequency = frequencies[one.kind]
        for word in counts[one.id]:
            frequency[word] += 1
    most = [*map(max, *frequencies.values())]
    size = max(size, _FEW, *most)
    # The weight of Robertson and Sparck Jones.
    weights = [max(_LEAST_WEIGHT, math.log((size - n + 0.5) / (n + 0.5))) for n in most]
    needed = min(max(sum(weights), _LEAST_TOLD), _MOST_TOLD)
    lengths = {one.id: one.terms.count(" ") + 1 for one in passages}
    usual = sum(lengths.values()) / max(1, len(lengths)) or 1.0
    spreads = {one: _SATURATION * (1 - _LENGTH + _LENGTH * length / usual) for one, length in lengths.items()}
    return WordMatches([weight / needed for weight in weights], counts, spreads)


def rank(
    lookup: Lookup, passages: Collection[Passage], matches: WordMatches, similar: Mapping[int, float]
) -> list[Scored]:
    """Ranks passages, the best first, by their and their neighbours' words, by similarity, and by date.

    The neighbours of a turn are its fields, as in BM25F (Robertson, Zaragoza and Taylor 2004): their counts
    of a word are added before saturation, so that a repeated word scores no more than its maximum.
    """
    # By session and place, each passage's own matches; a passage without a session has no neighbours.
    nothing: Mapping[int, float] = {}
    sessions: defaultdict[int, dict[int, tuple[Mapping[int, float], float]]] = defaultdict(dict)
    for one in passages:
        field = matches.counts.get(one.id, nothing), similar.get(one.id, 0.0)
        if any(field):
            sessions[one.talk or -one.id][one.place] = field
    ranked: list[Scored] = []
    for one in passages:
        counts: dict[int, float] = {}
        alike = 0.0
        fields, place = sessions[one.talk or -one.id], one.place
        for step, share in _FIELDS:
            if other := fields.get(place + step):
                for word, count in other[0].items():
                    counts[word] = counts.get(word, 0.0) + share * count
                alike += share * other[1]
        score = matches.score(one.id, counts)
        if alike:
            score = (score**_OVERLAP + alike**_OVERLAP) ** (1 / _OVERLAP)
        if any(date.contains(one.at) for date in lookup.dates):
            # A short turn such as "Fine." tells little about that time.
            score += _TIMELY * min(1.0, (one.terms.count(" ") + 3) / _TELLING)
        ranked.append((score, one))
    return sorted(ranked, key=lambda pair: (-pair[0], -pair[1].at, pair[1].id))


def _read(
    codec: RowCodec, user: Owner, best: Sequence[tuple[float, Passage, Passage | None]], now: float
) -> Steps[list[SearchResult]]:
    """Reads the texts of passages in their order, without expired and unreadable ones.

    Each passage may come with the one that follows it.
    """
    passages = [one for _, *pair in best for one in pair if one]
    rows = yield from fetch_items(((one.kind, one.item) for one in passages), now=now)
    items: dict[tuple[int, int], SearchResult] = {}
    for key, row in rows.items():
        # A lost encryption key must not hide readable texts.
        with contextlib.suppress(Unreadable):
            items[key] = _result(codec, user, key[0], row)
    return [
        msgspec.structs.replace(item, score=round(score, 4), follows=one is not pair[0])
        for score, *pair in best
        for one in pair
        if one and (item := items.get((one.kind, one.item)))
    ]


def _result(codec: RowCodec, user: Owner, kind: int, row: Sequence[Any]) -> SearchResult:
    """Decodes an item; the caller sets its score."""
    item, name, at = codec.decode_item(user, kind, row), id_text(row[1]), row[2]
    if not isinstance(item, Entry):
        what: Kind = "fact" if kind == FACT else "document"
        return SearchResult(kind=what, score=0.0, text=item.text, source=name, timestamp=at)
    return SearchResult(
        kind="turn",
        score=0.0,
        text=item.text,
        role=item.role,
        session_id=name,
        turn_id=item.turn if item.turn_id is None else item.turn_id,
        timestamp=at,
    )
