"""Where a window and what is held agree to the letter, and the gaps between, compared by likeness."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise, takewhile
from typing import Final

from proxy.memory.replay.line import Key, Line

# To compare all lines of a gap with each other takes a tenth of a second from so many pairs on, in which all
# callers wait. A turn of hundreds of calls makes such gaps; a talk does not.
_WIDE: Final = 400_000
_NEWEST: Final = 600

Pair = tuple[int, int]
Gap = tuple[range, range]


def settled(held: Sequence[Line], window: Sequence[Line]) -> tuple[list[Pair], list[Gap]]:
    """The fixed points, as places in the window and in ``held``, and the gaps between them.

    Lines that occur once on both sides are fixed points. In a wide gap so are calls, then equal lines from
    its beginning on, and of what is left the newest is compared alone.
    """
    sure = _points(held, window)
    pairs, narrow = list(sure), []
    for gap in _gaps(sure, (range(len(window)), range(len(held)))):
        more, rest = _narrowed(held, window, gap) if _is_wide(gap) else ([], [gap])
        pairs += more
        narrow += rest
    return pairs, narrow


def _is_wide(gap: Gap) -> bool:
    return len(gap[0]) * len(gap[1]) > _WIDE


def _narrowed(held: Sequence[Line], window: Sequence[Line], gap: Gap) -> tuple[list[Pair], list[Gap]]:
    # An id that is counted anew would mislead; hundreds of them in their order do not.
    ws, hs = gap
    points = _points(held[hs.start : hs.stop], window[ws.start : ws.stop], calls=True)
    pairs, rest = [(ws[w], hs[h]) for w, h in points], []
    for one in _gaps(pairs, gap):
        run = _run(held, window, one) if _is_wide(one) else []
        pairs += run
        rest.append((one[0][len(run) :], one[1][len(run) :]))
    return pairs, [(w[-_NEWEST:], h[-_NEWEST:]) if _is_wide((w, h)) else (w, h) for w, h in rest if w and h]


def _run(held: Sequence[Line], window: Sequence[Line], gap: Gap) -> list[Pair]:
    """The lines from the beginning on that are equal."""
    pairs = zip(*gap, strict=False)
    return list(takewhile(lambda pair: window[pair[0]].key == held[pair[1]].key, pairs))


def _points(held: Sequence[Line], window: Sequence[Line], *, calls: bool = False) -> list[Pair]:
    once = _singles(held, calls=calls)
    both = [(w, once[key]) for key, w in _singles(window, calls=calls).items() if key in once]
    return _rising(both)


def _singles(lines: Sequence[Line], *, calls: bool) -> dict[Key, int]:
    keys = [line.key for line in lines]
    count = Counter(keys)
    return {key: i for i, key in enumerate(keys) if count[key] == 1 and (calls or key[0] != "call")}


def _rising(both: list[Pair]) -> list[Pair]:
    """The longest run of pairs that rises on both sides (patience sorting)."""
    tops: list[int] = []
    piles: list[int] = []
    before: list[int | None] = []
    for i, (_, h) in enumerate(both):
        pile = bisect_left(tops, h)
        tops[pile : pile + 1] = [h]
        piles[pile : pile + 1] = [i]
        before.append(piles[pile - 1] if pile else None)
    run: list[Pair] = []
    last = piles[-1] if piles else None
    while last is not None:
        run.append(both[last])
        last = before[last]
    return run[::-1]


def _gaps(fixed: Sequence[Pair], within: Gap) -> list[Gap]:
    ws, hs = within
    ends = [(ws.start - 1, hs.start - 1), *fixed, (ws.stop, hs.stop)]
    spans = [(range(w + 1, to_w), range(h + 1, to_h)) for (w, h), (to_w, to_h) in pairwise(ends)]
    return [(ws, hs) for ws, hs in spans if ws and hs]
