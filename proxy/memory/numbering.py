"""Which replayed line is which held line, where the engine numbers its turns."""

from collections.abc import Callable, Sequence

from proxy.memory.alignment import NEW, repeated
from proxy.memory.line import Line, kinship

Lane = tuple[int, str, object]


def match(held: Sequence[Line], window: Sequence[Line]) -> list[int]:
    """For each line of the window its place in ``held``, or ``NEW``.

    Lines are known by turn number and speaker; within these by time and words, and only then by their order.
    A line without a number counts to the turn of the line before it.
    """
    places = [NEW] * len(window)
    known = _lanes(held)
    shown = _lanes(window)
    opening = next(iter(shown))[0] if shown else None
    for lane, ws in shown.items():
        for w, h in _pairs(held, window, ws, known.get(lane, []), cut=lane[0] == opening):
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


def _lanes(lines: Sequence[Line]) -> dict[Lane, list[int]]:
    lanes: dict[Lane, list[int]] = {}
    for i, (number, line) in enumerate(zip(numbers(lines), lines, strict=True)):
        which = line.ids if line.lane in {"call", "tool"} else None
        lanes.setdefault((number, line.lane, which), []).append(i)
    return lanes


def _pairs(
    held: Sequence[Line], window: Sequence[Line], ws: list[int], hs: list[int], *, cut: bool
) -> list[tuple[int, int]]:
    """Pairs of one turn and speaker, the surest first; where the window cuts the turn, its end counts."""
    ws, hs, pairs = list(ws), list(hs), []
    sure: tuple[Callable[[Line, Line], bool], ...] = (_equal, _timely, _akin, _possible)
    for fits in sure:
        in_order = reversed(ws) if cut else iter(ws)
        for w in list(in_order):
            fitting = [h for h in hs if fits(window[w], held[h])]
            if fitting:
                h = fitting[-1] if cut else fitting[0]
                pairs.append((w, h))
                ws.remove(w)
                hs.remove(h)
    return pairs


def _equal(replayed: Line, held: Line) -> bool:
    return replayed.text == held.text and replayed.time in {held.time, None}


def _timely(replayed: Line, held: Line) -> bool:
    return replayed.time is not None and replayed.time == held.time


def _akin(replayed: Line, held: Line) -> bool:
    return kinship(replayed, held) > 0


def _possible(replayed: Line, held: Line) -> bool:
    """A line that came about in another way is another line, and so is one that says itself who it is."""
    return None in {replayed.source, held.source} or replayed.source == held.source


def _unnumbered(places: list[int], held: Sequence[Line], window: Sequence[Line]) -> None:
    """Finds lines without a number whose neighbours have slid out of the window."""
    left = set(range(len(held))).difference(places)
    for w, line in enumerate(window):
        if places[w] == NEW and line.number is None:
            h = next((h for h in sorted(left) if held[h].number is None and held[h].key == line.key), None)
            if h is not None:
                places[w] = h
                left.discard(h)
