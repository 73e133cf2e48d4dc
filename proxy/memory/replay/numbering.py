"""Which replayed line is which held line, where the engine numbers its turns."""

from collections.abc import Callable, Sequence
from typing import Final, cast

from filters.message import Message
from proxy.memory.replay.alignment import repeated
from proxy.memory.replay.line import CUT, KIN, NEW, Key, Line, kinship, number_of

# So many lines of one turn and speaker are not compared with each other, for which all callers would wait.
_WIDE: Final = 100_000

Lane = tuple[int, str, object]
Fit = Callable[[Line, Line], bool]


def match(held: Sequence[Line], window: Sequence[Line]) -> list[int]:
    """For each line of the window its place in ``held``, or ``NEW``.

    Lines are known by turn number and speaker; within these by time and words, and only then by their order.
    A line without a number counts to the turn of the line before it.
    """
    places = [NEW] * len(window)
    known, shown = _lanes(held), _lanes(window)
    opening = next(iter(shown))[0] if shown else None
    first = next((w for w, line in enumerate(window) if line.number is not None), 0)
    # Where the user's words stand tells where the others can.
    lanes = sorted(shown.items(), key=lambda item: item[0][1] != "user")
    for sure in _SURE, _LIKELY:
        taken = set(places)
        for lane, ws in lanes:
            free = (
                [w for w in ws if places[w] == NEW],
                [h for h in known.get(lane, []) if h not in taken],
            )
            for w, h in _pairs(held, window, free, sure, cut=lane[0] == opening):
                # What stands before the first number may be of the turn before.
                if (sure is _SURE and w >= first) or _in_order(places, window, w, h):
                    places[w] = h
        _unnumbered(places, held, window)
    repeated(places, held, window)
    return places


def numbers(lines: Sequence[Line]) -> list[int]:
    """The turn of each line: its own number, or that of its neighbour."""
    return filled([line.number for line in lines])


def filled(given: Sequence[int | None]) -> list[int]:
    """Numbers where some are missing: those count as the one before them."""
    last = next((number for number in given if number is not None), 0)
    found = []
    for number in given:
        last = number if number is not None else last
        found.append(last)
    return found


def ordered(spoken: Sequence[Message]) -> Sequence[Message]:
    """The lines in the order of their turns; a line without a number stays behind the line before it."""
    given = [number_of(message) for message in spoken]
    if not any(given):
        return spoken
    numbers = filled(given) if None in given else cast("list[int]", given)
    if sorted(numbers) == numbers:
        return spoken
    return [spoken[i] for i in sorted(range(len(spoken)), key=numbers.__getitem__)]


def _lanes(lines: Sequence[Line]) -> dict[Lane, list[int]]:
    lanes: dict[Lane, list[int]] = {}
    for i, (number, line) in enumerate(zip(numbers(lines), lines, strict=True)):
        which = line.ids if line.lane in {"call", "tool"} else None
        lanes.setdefault((number, line.lane, which), []).append(i)
    return lanes


def _pairs(
    held: Sequence[Line],
    window: Sequence[Line],
    free: tuple[list[int], list[int]],
    sure: Sequence[Fit],
    *,
    cut: bool,
) -> list[tuple[int, int]]:
    """Pairs of one turn and speaker, the surest first; where the window cuts the turn, its end counts."""
    ws, hs = free
    if len(ws) * len(hs) > _WIDE:
        return _equals(held, window, free) if sure is _SURE else []
    pairs = []
    for fits in sure if hs else ():
        for w in ws[::-1] if cut else list(ws):
            h = next((h for h in (reversed(hs) if cut else hs) if fits(window[w], held[h])), None)
            if h is not None:
                pairs.append((w, h))
                ws.remove(w)
                hs.remove(h)
    return pairs


def _equals(
    held: Sequence[Line], window: Sequence[Line], free: tuple[list[int], list[int]]
) -> list[tuple[int, int]]:
    """The lines of a turn that are equal to the letter, the last ones first."""
    known: dict[Key, list[int]] = {}
    for h in free[1]:
        known.setdefault(held[h].key, []).append(h)
    shown = ((w, known.get(window[w].key)) for w in reversed(free[0]))
    return [(w, places.pop()) for w, places in shown if places]


def _in_order(places: Sequence[int], window: Sequence[Line], w: int, h: int) -> bool:
    """Whether the pair stands alike, before or behind, to all words of the user that are matched."""
    users = ((i, place) for i, place in enumerate(places) if place >= 0 and window[i].lane == "user")
    return all((i < w) == (place < h) for i, place in users)


def _equal(replayed: Line, held: Line) -> bool:
    return replayed.key == held.key and replayed.time in {held.time, None}


def _timely(replayed: Line, held: Line) -> bool:
    return replayed.time is not None and replayed.time == held.time


def _akin(replayed: Line, held: Line) -> bool:
    """Of a line whose number is but its neighbour's, a likeness to another turn's words tells little."""
    return kinship(replayed, held) >= (CUT if replayed.number is None else 1)


def _possible(replayed: Line, held: Line) -> bool:
    """A line that came about in another way is another line, and so is one that says itself who it is."""
    return None in {replayed.source, held.source} or replayed.source == held.source


_SURE: tuple[Fit, ...] = (_equal, _timely, _akin)
_LIKELY: tuple[Fit, ...] = (_possible,)


def _unnumbered(places: list[int], held: Sequence[Line], window: Sequence[Line]) -> None:
    """Finds lines without a number under another turn than their neighbours', on either side."""
    left = set(range(len(held))).difference(places)
    bare = {held[h].key for h in left if held[h].number is None}
    following, last = _following(places, len(held)), NEW
    for w, line in enumerate(window):
        if places[w] == NEW and left and (line.number is None or line.key in bare):
            near = following[w] if last == NEW else last
            around = range(near) if last == NEW else range(near, len(held))
            h = _found(line, held, left, near, around)
            if h is not None:
                places[w] = h
                left.discard(h)
        last = max(last, places[w])


def _following(places: Sequence[int], count: int) -> list[int]:
    """For each line, where the next one of the window is held, itself included."""
    following, found = count, []
    for place in reversed(places):
        following = place if place >= 0 else following
        found.append(following)
    return found[::-1]


def _found(line: Line, held: Sequence[Line], left: set[int], near: int, around: range) -> int | None:
    """The place nearest to a line's neighbour where it may be held."""
    if line.number is not None:
        fitting = (h for h in left if held[h].number is None and held[h].key == line.key)
    else:
        # An answer may be shown behind the words that cut it; what stands before all others is older.
        swapped = 1 if line.lane == "assistant" and around.start else 0
        reach = left.intersection(range(around.start - swapped, around.stop))
        fitting = (h for h in reach if _fits(line, held[h], beside=h in around and abs(h - near) == 1))
    return min(fitting, key=lambda h: (abs(h - near), h), default=None)


def _fits(replayed: Line, held: Line, *, beside: bool) -> bool:
    if replayed.key == held.key:
        return held.number is None or held.lane != "user"
    sure = KIN if beside and _possible(replayed, held) else CUT
    return held.lane == "assistant" and kinship(replayed, held) >= sure
