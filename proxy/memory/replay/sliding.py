"""A window that has slid: where the talk repeats itself, it shows the end of what is held.

Engines show what was said last. So lines that are equal to what is held at its end are these lines, however
many others are equal too; and whoever would take back several turns on the strength of a few such lines has
mistaken a new turn for an old one.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from proxy.memory.replay.alignment import repeated
from proxy.memory.replay.line import CUT, KIN, NEW, Line, kinship
from proxy.memory.speech.wording import goes_on

# So many lines may be of turns that failed: of them nothing is held.
_FAILED: Final = 6


def slid(held: Sequence[Line], window: Sequence[Line]) -> list[int] | None:
    """The places of a window that ends with new words of the user behind the end of all that is held.

    It may not show answers that are yet to be confirmed: those were not heard. Words before the newest that
    are not held are of turns that failed.
    """
    if not window or window[-1].lane != "user":
        return None
    least = 1 if window[0].lane == "assistant" else 2
    return _behind(held, window, 1) or _after_failures(held, window, least=least)


def likelier(held: Sequence[Line], window: Sequence[Line], places: list[int], *, since: int) -> list[int]:
    """The places; where too little speaks for what they take back, the last lines count as new, or all.

    ``since`` is where in ``held`` the newest window begins.
    """
    if not window or window[-1].lane != "user" or not _doubtful(held, window, places, since):
        return places
    return _after_failures(held, window, least=1) or [NEW] * len(window)


def _after_failures(held: Sequence[Line], window: Sequence[Line], *, least: int) -> list[int] | None:
    """As ``_behind``, where the last 2 to 6 lines are new: of turns that failed nothing is held.

    At least ``least`` lines stand before them, and what was answered among them is not held.
    """
    for new in range(2, min(_FAILED, len(window) - least) + 1):
        line = window[-new]
        if line.lane != "user" and any(kinship(line, other) for other in held):
            return None
        if places := _behind(held, window, new):
            repeated(places, held, window)
            return places
    return None


def _behind(held: Sequence[Line], window: Sequence[Line], new: int) -> list[int] | None:
    """The places, where all but the last lines are the end of what is held, or of what was heard of it."""
    shown, least = window[: len(window) - new], KIN if new == 1 else CUT
    for heard in _heard(held, confirmed=new == 1) if shown else ():
        end = heard[-len(shown) :]
        pairs = zip(shown, end, strict=False)
        if len(end) == len(shown) and all(kinship(line, held[h]) >= least for line, h in pairs):
            return [*end, *[NEW] * new]
    return None


def _heard(held: Sequence[Line], *, confirmed: bool) -> Iterator[Sequence[int]]:
    """Which lines may have been heard: all or the ``confirmed`` ones, with the last answers or without."""
    end = len(held)
    yield range(end)
    while end and held[end - 1].pending:
        end -= 1
    if end < len(held):
        yield range(end)
    if confirmed and any(line.pending for line in held[:end]):
        before = [h for h, line in enumerate(held[:end]) if not line.pending]
        yield from ([*before, *range(end, len(held))], before)


def _doubtful(held: Sequence[Line], window: Sequence[Line], places: Sequence[int], since: int) -> bool:
    """Whether places take back more turns than they find lines, or as many in a window that begins elsewhere.

    So do those by which the newest words are older than others, though something before them is new.
    """
    matched = {place for place in places if place >= 0}
    if not matched:
        return False
    users = [h for h, line in enumerate(held) if line.lane == "user"]
    first = min(matched.intersection(users), default=max(matched))
    known = matched.union(_grown(held, window, places))
    taken = sum(h > first and h not in known for h in users)
    new = places.count(NEW)
    return (
        taken > len(matched)
        or (taken == len(matched) and new > 1 and places[0] != since)
        or (new > 0 and 0 <= places[-1] < users[-1])
    )


def _grown(held: Sequence[Line], window: Sequence[Line], places: Sequence[int]) -> Iterator[int]:
    """Where words are held that the window shows in the same place, and more: those are not taken back."""
    for (_, before), (line, place) in pairwise(zip(window, places, strict=True)):
        if before >= 0 and place == NEW and line.lane == "user":
            after = next((h for h in range(before + 1, len(held)) if held[h].lane == "user"), None)
            if after is not None and goes_on(line.text, held[after].text):
                yield after
