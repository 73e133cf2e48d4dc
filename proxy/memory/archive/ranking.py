"""Which passages answer a question best: how rare their words are, what stands beside them, and when."""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from proxy.memory.archive.moments import Span

# Okapi BM25 (Robertson and Zaragoza 2009); what is said aloud is short, so that length tells little.
_SATURATION: Final = 1.2
_LENGTH: Final = 0.4
# What a passage has of its neighbours' worth, by how far they stand: answers stand behind their question.
_NEIGHBOURS: Final = ((-1, 0.45), (1, 0.45), (-2, 0.2), (2, 0.2))
_TIMELY: Final = 1.6
_BY_TIME_ALONE: Final = 0.3
# Of two that are worth almost the same, the newer goes first.
_FRESH: Final = 0.02
_MONTH: Final = 30 * 86_400.0
# Among so few passages hardly anything tells which words are rare.
_FEW: Final = 20

Groups = Sequence[tuple[str, ...]]
"""For each word of the question the terms that may stand for it."""


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
    spans: tuple[Span, ...]
    now: float


Ranked = tuple[float, Passage]
Worths = dict[int, float]
"""By passage, what it is worth by its own words: about 1 for one that holds every word of the question."""


def worths(question: Lookup, passages: Collection[Passage], owned: int) -> Worths:
    """What each passage is worth by itself; ``owned`` is how many passages their owner has in all."""
    places: dict[str, list[int]] = defaultdict(list)
    for place, group in enumerate(question.groups):
        for term in group:
            places[term].append(place)
    held = {one.id: _held(one.terms.split(), places) for one in passages}
    weights = _weights(len(question.groups), _found(passages, held), owned)
    usual = sum(length for length, _ in held.values()) / max(1, len(held)) or 1.0
    best = sum(weights) or 1.0
    return {id_: _worth(one, weights, usual) / best for id_, one in held.items()}


def ranked(question: Lookup, passages: Collection[Passage], own: Mapping[int, float]) -> list[Ranked]:
    """The passages, best first, each with its worth: its own, a share of its neighbours', and its time's."""
    there = {(one.talk, one.place): own[one.id] for one in passages if one.id in own}
    whole = [(_whole(question, one, own.get(one.id, 0.0), there), one) for one in passages]
    return sorted(whole, key=lambda pair: (-pair[0], -pair[1].at, pair[1].id))


_Held = tuple[int, dict[int, int]]
# How many terms a passage has, and how often those that are asked for, by their place in the question.


def _held(terms: Sequence[str], places: Mapping[str, Sequence[int]]) -> _Held:
    counts: dict[int, int] = {}
    for term in terms:
        for place in places.get(term, ()):
            counts[place] = counts.get(place, 0) + 1
    return len(terms), counts


def _found(passages: Iterable[Passage], held: Mapping[int, _Held]) -> Counter[int]:
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
    if any(span.holds(one.at) for span in question.spans):
        worth = max(worth * _TIMELY, _BY_TIME_ALONE)
    age = max(0.0, question.now - one.at) / _MONTH
    return worth * (1 + _FRESH / (1 + age))
