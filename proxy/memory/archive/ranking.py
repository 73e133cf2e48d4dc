"""Which passages answer a question best: how rare their words are, what stands beside them, and when."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from proxy.memory.archive.moments import Span

# Okapi BM25 (Robertson and Zaragoza 2009); what is said aloud is short, so that length tells little.
_SATURATION: Final = 1.2
_LENGTH: Final = 0.4
# What a passage has of its neighbours' worth, by how far they stand: answers stand behind their question.
_NEIGHBOURS: Final = {1: 0.45, 2: 0.2}
_TIMELY: Final = 1.6
_BY_TIME_ALONE: Final = 0.3
# Of two that are worth the same, the newer goes first.
_FRESH: Final = 0.02
_MONTH: Final = 30 * 86_400.0

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


class Question(msgspec.Struct, frozen=True):
    """What is asked: its words as terms, the times that it speaks of, and when it was asked."""

    groups: Groups
    spans: tuple[Span, ...]
    now: float


def ranked(question: Question, passages: Collection[Passage], owned: int) -> list[tuple[float, Passage]]:
    """The passages, best first, each with its worth: about 1 for one that holds every word of the question.

    ``owned`` is how many passages their owner has in all; those that hold none of the words, and stand
    beside none that does, are worth something by their time alone.
    """
    own = _worth(question, passages, owned)
    whole = [(_whole(question, one, own, near), one) for one, near in _with_neighbours(passages)]
    return sorted(whole, key=lambda pair: (-pair[0], -pair[1].at, pair[1].id))


def _worth(question: Question, passages: Collection[Passage], owned: int) -> dict[int, float]:
    counted = {one.id: Counter(one.terms.split()) for one in passages}
    usual = sum(bag.total() for bag in counted.values()) / max(1, len(counted)) or 1.0
    weights = _weights(question.groups, counted.values(), owned)
    best = sum(weights.values()) or 1.0
    return {
        id_: sum(weight * _share(bag, group, usual) for group, weight in weights.items()) / best
        for id_, bag in counted.items()
    }


def _weights(groups: Groups, bags: Iterable[Mapping[str, int]], owned: int) -> dict[tuple[str, ...], float]:
    """How much each word of the question tells: the rarer among the owner's passages, the more."""
    found: Counter[tuple[str, ...]] = Counter()
    for bag in bags:
        found.update(group for group in groups if any(term in bag for term in group))
    size = max(owned, max(found.values(), default=0))
    return {group: math.log(1 + (size - found[group] + 0.5) / (found[group] + 0.5)) for group in set(groups)}


def _share(bag: Counter[str], group: tuple[str, ...], usual: float) -> float:
    count = sum(bag[term] for term in group if term in bag)
    if not count:
        return 0.0
    length = 1 - _LENGTH + _LENGTH * bag.total() / usual
    return count * (_SATURATION + 1) / (count + _SATURATION * length)


def _with_neighbours(passages: Collection[Passage]) -> Iterable[tuple[Passage, list[tuple[float, int]]]]:
    """Each passage, and those near it with the share that it has in them."""
    there = {(one.talk, one.place): one.id for one in passages if one.talk}
    for one in passages:
        near = (
            (share, there.get((one.talk, one.place + side * far)))
            for far, share in _NEIGHBOURS.items()
            for side in (-1, 1)
        )
        yield one, [(share, id_) for share, id_ in near if id_ is not None] if one.talk else []


def _whole(
    question: Question, one: Passage, own: Mapping[int, float], near: Sequence[tuple[float, int]]
) -> float:
    worth = own[one.id] + max((share * own[id_] for share, id_ in near), default=0.0)
    timely = any(span.holds(one.at) for span in question.spans)
    if timely:
        worth = max(worth * _TIMELY, _BY_TIME_ALONE)
    age = max(0.0, question.now - one.at) / _MONTH
    return worth * (1 + _FRESH / (1 + age))
