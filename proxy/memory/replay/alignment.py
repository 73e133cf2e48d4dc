"""Which replayed line is which held line, where engines do not number their turns."""

from collections.abc import Sequence
from typing import Final

from proxy.memory.replay.fixed import Gap, settled
from proxy.memory.replay.gap import pairs
from proxy.memory.replay.line import CUT, NEW, Line, kinship, says_again
from proxy.memory.replay.results import paired
from proxy.memory.speech.wording import same

AGAIN: Final = -2

_SENTENCE = 3


def align(held: Sequence[Line], window: Sequence[Line], *, moved: bool = False) -> list[int]:
    """For each line of the window its place in ``held``; ``NEW``, or ``AGAIN`` for a second copy.

    What the window shows before all of it may be older, where the oldest has ``moved`` to the cold part.

    Lines that occur once on both sides and are equal to the letter are fixed points; what stands between
    two of them is matched by likeness in order, and what is left then by likeness out of order. Results of
    tools go with their calls.
    """
    places = [AGAIN if _echoes(window, w) else NEW for w in range(len(window))]
    once = [w for w, line in enumerate(window) if line.lane != "tool" and places[w] == NEW]
    own = [h for h, line in enumerate(held) if line.lane != "tool"]
    older = moved and _words(window) > _words(held) + 1
    found = _aligned([held[h] for h in own], [window[w] for w in once], moved=moved, older=older)
    for w, place in zip(once, found, strict=True):
        places[w] = own[place] if place >= 0 else NEW
    paired(places, held, window)
    repeated(places, held, window)
    return places


def _words(lines: Sequence[Line]) -> int:
    """How many of the lines the user said."""
    return sum(line.lane == "user" for line in lines)


def _echoes(window: Sequence[Line], w: int) -> bool:
    """Whether an answer says word by word what the line before it says."""
    line, before = window[w], window[w - 1]
    return w > 0 and line.lane == before.lane == "assistant" and same(line.text, before.text)


def _aligned(held: Sequence[Line], window: Sequence[Line], *, moved: bool, older: bool) -> list[int]:
    places = [NEW] * len(window)
    fixed, gaps = settled(held, window)
    for w, h in fixed:
        places[w] = h
    for gap in gaps:
        _fill(places, held, window, gap, older=older and gap[0].start == 0)
    _earliest(places, window, older=older)
    _swapped(places, held, window, moved=moved)
    return places


def _fill(places: list[int], held: Sequence[Line], window: Sequence[Line], gap: Gap, *, older: bool) -> None:
    ws, hs = gap
    ends = {"at_start": ws.start == 0, "at_end": ws.stop == len(window)}
    for w, h in pairs(window[ws.start : ws.stop], held[hs.start : hs.stop], older=older, **ends):
        places[ws[w]] = hs[h]


def _earliest(places: list[int], window: Sequence[Line], *, older: bool) -> None:
    """Of equal words of the user in a row, the first are the ones that are held: the last are new.

    What stands before all that is held may be older, and stays so.
    """
    first = next((w for w, place in enumerate(places) if place >= 0), 0) if older else 0
    for w in range(len(window) - 1, first, -1):
        words = window[w - 1].lane == "user" and window[w - 1].key == window[w].key
        if words and places[w] >= 0 and places[w - 1] == NEW:
            places[w - 1], places[w] = places[w], NEW


def _swapped(places: list[int], held: Sequence[Line], window: Sequence[Line], *, moved: bool) -> None:
    """Matches what stands close by but out of order; not what stands before all that has not moved."""
    left = set(range(len(held))).difference(places)
    first = next((w for w, place in enumerate(places) if place >= 0), 0) if moved else 0
    for w, place in enumerate(places):
        if place == NEW and left and w >= first:
            near = [h for h in _near(places, w) if h in left and _movable(held[h], window[w])]
            if near:
                places[w] = near[0]
                left.discard(near[0])


def _movable(held: Line, line: Line) -> bool:
    """Whether ``line`` can be the held one elsewhere; call ids are counted anew, so calls stay in order."""
    return line.lane != "call" and kinship(line, held) >= CUT


def _near(places: list[int], w: int) -> range:
    around = [h for h in places[max(0, w - 2) : w + 3] if h >= 0]
    return range(max(0, min(around) - 2), max(around) + 3) if around else range(0)


def repeated(places: list[int], held: Sequence[Line], window: Sequence[Line]) -> None:
    """Marks answers that say once more what an answer close by says as ``AGAIN``, in place."""
    for w, place in enumerate(places):
        if place == NEW and window[w].lane == "assistant" and _said_nearby(places, held, window, w):
            places[w] = AGAIN


def _said_nearby(places: list[int], held: Sequence[Line], window: Sequence[Line], w: int) -> bool:
    return any(
        _repeats(places, held, window, (w, other))
        for other in (w - 1, w + 1, w - 2, w + 2)
        if 0 <= other < len(window) and window[other].lane in {"assistant", "call"}
    )


def _repeats(places: list[int], held: Sequence[Line], window: Sequence[Line], pair: tuple[int, int]) -> bool:
    """Whether the first of the pair is a copy of the second; of two that are both new, the first stays."""
    copy, other = pair
    if places[other] < 0:
        return other == copy - 1 and places[other] == NEW and same(window[copy].text, window[other].text)
    if abs(other - copy) > 1 and len(window[copy].text.split()) < _SENTENCE:
        return False
    return says_again(window[copy].text, held[places[other]])
