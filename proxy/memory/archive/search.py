"""Search of the archive: candidates by words, dates and vectors, and how they are ranked."""

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
from proxy.memory.session import UNREADABLE, Entry
from proxy.memory.stores.sql import id_text
from proxy.memory.stores.store import Owner

_MOST_WORDS: Final = 32
_MAX_QUESTION: Final = 2000
_CANDIDATES: Final = 300
# Of so many passages of an owner, a question seldom matches more than the candidates.
_RARELY_TOO_MANY: Final = 1000
_CANDIDATES_BY_DATE: Final = 50
_WITH_NEIGHBOURS: Final = 30
# Of two that match as well, a fact goes before what was said once.
_KIND_WEIGHTS: Final = {TURN: 1.0, FACT: 1.15, DOCUMENT: 0.9}
# Okapi BM25 (Robertson and Zaragoza 2009); speech is short, so that length tells little.
_SATURATION: Final = 1.2
_LENGTH: Final = 0.2
# What a word counts that stands in a neighbour, by its distance: answers stand behind their question.
_FIELDS: Final = ((0, 1.0), (-1, 0.6), (1, 0.4), (-2, 0.3), (2, 0.2))
# How words and meaning are added up: as numbers by 1, as the sides of a right angle by 2. Meaning repeats
# some of what words tell, and must not count twice.
_OVERLAP: Final = 1.5
# A word of half of all passages tells nothing, and still more than none.
_LEAST_WEIGHT: Final = 0.1
# What it counts that something was said at a time that the question names.
_TIMELY: Final = 0.3
_TELLING: Final = 5
_LONGEST_GREETING: Final = 60
# Of two with almost the same score, the newer goes first.
_RECENCY: Final = 0.02
_MONTH: Final = 30 * 86_400.0
# What the words of a question must tell, in nats, for a score of 1: a common word alone does not come to it,
# and of a long question some are enough.
_LEAST_TOLD: Final = 2.5
_MOST_TOLD: Final = 8.0
# Among so few passages, frequency hardly tells which words are rare.
_FEW: Final = 20


class Passage(msgspec.Struct, frozen=True):
    """A row of the index. Those of one session ``talk`` are in the order of their ``place``."""

    id: int
    kind: int
    item: int
    talk: int
    place: int
    at: float
    terms: str


class Lookup(NamedTuple):
    """What is looked up: for each word its possible terms with their worth, the dates, and the time now."""

    groups: Sequence[dict[str, float]]
    dates: tuple[TimeRange, ...]
    now: float


class WordMatches(NamedTuple):
    """Which words of a question passages have, and what each word tells."""

    weights: Sequence[float]
    """By word, its share of the score of a passage that has all of them."""
    counts: Mapping[int, Mapping[int, float]]
    """By passage and word, how often it has the word; a synonym counts less."""
    spreads: Mapping[int, float]
    """By passage, at which count a word scores half of what it can."""

    def score(self, passage: int, counts: Mapping[int, float]) -> float:
        """The score of a passage that has, with its neighbours, words as often as ``counts`` says."""
        spread = self.spreads.get(passage, _SATURATION)
        score = 0.0
        for word, count in counts.items():
            score += self.weights[word] * count / (count + spread)
        return score * (_SATURATION + 1)

    def missing(self, groups: Iterable[dict[str, float]]) -> list[dict[str, float]]:
        """Of a group for each word, those of the words that no passage has; nothing for the others."""
        present = set(chain(*self.counts.values()))
        return [{} if word in present else group for word, group in enumerate(groups)]

    def own_scores(self) -> dict[int, float]:
        """By passage, its score by its own words."""
        return {one: self.score(one, counts) for one, counts in self.counts.items()}


Scored = tuple[float, Passage]


def search(codec: RowCodec, user: Owner, query: Query) -> Steps[list[SearchResult]]:
    """The user's and the tenant's passages that match, best first; none for a user without a name."""
    if not user.user:
        return []
    text = query.text[:_MAX_QUESTION]
    groups = codec.lexicon.question(text)[:_MOST_WORDS]
    dates = time_ranges(text, query.now, query.zone)
    if not (groups or dates):
        return []
    question = Lookup(groups, dates, query.now)
    # What has no word but a time and courtesies means what any small talk does.
    vector = query.vector if groups else None
    tenant = Owner(user.tenant)
    found: list[list[Scored]] = yield from gather(
        _ranked(codec, user, question, vector),
        _ranked(codec, tenant, question._replace(dates=()), vector),
    )
    scored = ((score * _KIND_WEIGHTS[one.kind], one) for score, one in chain(*found) if score > 0)
    best = sorted(scored, key=lambda pair: -pair[0])
    by_place = {(one.talk, one.place): one for _, one in found[0]} if query.following else {}
    # A few at a time, because passages that have expired, or that repeat others, take no other's place.
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
                # A greeting shares the words of what stands beside it.
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
    """An owner's passages, best first; the question's words are stems."""
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
    """Of an owner's ``size`` passages those of the dates that are named, and those with any of the terms."""
    works: list[Steps[Rows]] = [
        fetch(PASSAGES_IN_RANGE, {"owner": owner, **one._asdict(), "limit": _CANDIDATES_BY_DATE})
        for one in lookup.dates
    ]
    if lookup.groups:
        works.append(_matching(codec, owner, lookup.groups, size))
    results: list[Rows] = yield from gather(*works)
    return _passages(chain(*results))


def _matching(codec: RowCodec, owner: int, groups: Sequence[dict[str, float]], size: int) -> Steps[Rows]:
    """An owner's passages with any of the terms: of more than ``_CANDIDATES`` the likeliest."""
    terms = codec.dialect.any_term(term for group in groups for term in group)
    if size <= _RARELY_TOO_MANY:
        # To rank them costs the database more than to find them.
        rows = yield from fetch(MATCH_ALL, {"owner": owner, "terms": terms, "limit": _CANDIDATES + 1})
        if len(rows) <= _CANDIDATES:
            return rows
    return (yield from fetch(MATCH_BEST, {"owner": owner, "terms": terms, "limit": _CANDIDATES}))


def _passages(rows: Iterable[Sequence[Any]]) -> dict[int, Passage]:
    return {row[0]: Passage(*row) for row in rows}


def _best(scores: Mapping[int, float]) -> list[int]:
    return sorted(scores, key=scores.__getitem__, reverse=True)[:_WITH_NEIGHBOURS]


def word_matches(lookup: Lookup, passages: Collection[Passage], size: int) -> WordMatches:
    """The words of a question that passages have; ``size`` is how many passages their owner has.

    A passage with all of them scores about 1, where they tell neither too little nor more than one sentence.
    """
    # By passage and word of the question, how often it has the word.
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
    # Facts repeat what was said in turns, which makes words no less rare: each kind is counted by itself.
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
    """The passages, best first, by the words in them and beside them, by similarity, and by their dates.

    A turn's neighbours are fields of it, as in BM25F (Robertson, Zaragoza and Taylor 2004): what they count
    of a word is added before it saturates, so that what all of them repeat tells no more than one word can.
    """
    # By session and place, what matches by itself; what is in no session is beside nothing.
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
        if lookup.dates and any(date.contains(one.at) for date in lookup.dates):
            # "Fine." tells least of what was said at that time.
            score += _TIMELY * min(1.0, (one.terms.count(" ") + 3) / _TELLING)
        age = max(0.0, lookup.now - one.at) / _MONTH
        ranked.append((score * (1 + _RECENCY / (1 + age)), one))
    return sorted(ranked, key=lambda pair: (-pair[0], -pair[1].at, pair[1].id))


def _read(
    codec: RowCodec, user: Owner, best: Sequence[tuple[float, Passage, Passage | None]], now: float
) -> Steps[list[SearchResult]]:
    """The texts of passages in their order, without those that have expired or cannot be read.

    Each may have another with it, which follows it.
    """
    passages = [one for _, *pair in best for one in pair if one]
    rows = yield from fetch_items(((one.kind, one.item) for one in passages), now=now)
    items: dict[tuple[int, int], SearchResult] = {}
    for key, row in rows.items():
        # An encryption key that is lost must not hold up what can be read.
        with contextlib.suppress(*UNREADABLE):
            items[key] = _result(codec, user, key[0], row)
    return [
        msgspec.structs.replace(item, score=round(score, 4), follows=one is not pair[0])
        for score, *pair in best
        for one in pair
        if one and (item := items.get((one.kind, one.item)))
    ]


def _result(codec: RowCodec, user: Owner, kind: int, row: Sequence[Any]) -> SearchResult:
    """An item, whose score is its passage's."""
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
