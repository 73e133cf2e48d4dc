"""When an engine begins to count its turns anew: the same channel, another conversation."""

from collections.abc import Callable, Sequence

from filters.message import Message, epoch_seconds
from proxy.memory.replay.line import Line, is_replaced
from proxy.memory.session.entry import Entry
from proxy.memory.session.newest import Newest
from proxy.memory.speech.wording import goes_on, same

Judge = Callable[[Sequence[Line], Sequence[Line]], bool]
"""Tells of held lines and a window's whether they belong to two lives."""

_AGREEING = (0, 2, 1)
_TELLING = 8
_LONG = 300.0


def begins_anew(held: Sequence[Line], window: Sequence[Line]) -> bool:
    """Whether the window's turn numbers are those of another life than the held ones.

    One revised text is no new life. A number that goes back is, with other words at another time; so are
    several turns that say something else, more of them than say the same.
    """
    newest, last = _newest(window), _newest(held)
    if newest is None or last is None:
        return False
    if newest < last:
        return _goes_back(held, window, newest)
    return contradicts(held, window)


def never(held: Sequence[Line], window: Sequence[Line]) -> bool:  # noqa: ARG001 - as a Judge is asked
    """No: it is known whose window this is."""
    return False


def contradicts(held: Sequence[Line], window: Sequence[Line]) -> bool:
    """Whether the numbers of a window are those of other turns than are held.

    More lines of the same number and speaker differ in words and time than agree, two at the least; or one
    does, none agrees, and others differ in time alone or all of the window was said long after what is held.
    """
    same_, other, moved = _evidence(held, window)
    if other > max(1, same_):
        return True
    return bool(other and not same_ and (moved or _long_after(held, window)))


def starts_over(
    held: Sequence[Entry], window: Sequence[Message], places: Sequence[int], newest: Newest | None
) -> bool:
    """Whether a window without turn numbers is the beginning of another talk than the one that is held.

    It is nothing but a greeting and the first words. It shows the held greeting and not what was answered
    aloud after it; or it shows nothing that is held, though windows have not slid so far and were no shorter.
    """
    if not _opens(window):
        return False
    matched = {h for h in places if h >= 0}
    first = next((i for i, entry in enumerate(held) if entry.role == "user"), len(held))
    if not matched:
        return newest is not None and newest.whole and len(window) <= newest.lines and first < len(held)
    aloud = {h for h, e in enumerate(held) if h > first and e.role == "assistant" and not e.pending}
    return any(0 <= h < first for h in places[:-1]) and not aloud <= matched


def _opens(window: Sequence[Message]) -> bool:
    greeting = all(m.role == "assistant" and not m.tool_calls for m in window[:-1])
    return len(window) > 1 and window[-1].role == "user" and greeting


def _goes_back(held: Sequence[Line], window: Sequence[Line], newest: int) -> bool:
    same_, other, moved = _evidence(held, window)
    oldest = min(line.number for line in held if line.number is not None)
    if newest < oldest:
        return _time(window) is None or (_time(held) or 0) < (_time(window) or 0)
    asked = [line for line in window if line.lane == "user" and line.number == newest]
    agreeing = (_verdict(a, b) != 1 for a in asked for b in held if b.lane == "user" and b.number == newest)
    other += bool(asked) and not any(agreeing)
    return (other > 0 and other >= same_) or (moved > 0 and same_ == 0)


def _evidence(held: Sequence[Line], window: Sequence[Line]) -> tuple[int, int, int]:
    """How many lines are as they were, how many have other words and time, how many the time alone.

    Several lines of one turn and speaker count once, as what agrees best; a line that came about in another
    way than the one that is held says nothing.
    """
    known = _by_turn(held)
    found = [0, 0, 0]
    for lane, lines in _by_turn(window).items():
        pairs = [
            (a, b)
            for a in _ends(lines)
            for b in _ends(known.get(lane, ()))
            if None in {a.source, b.source} or a.source == b.source
        ]
        if pairs:
            found[min((_verdict(*pair) for pair in pairs), key=_AGREEING.index)] += 1
    return found[0], found[1], found[2]


def _ends(lines: Sequence[Line]) -> Sequence[Line]:
    """The first and the last of many lines: no turn has so many but one of a program, or of ill will."""
    return lines if len(lines) <= 2 * _TELLING else [*lines[:_TELLING], *lines[-_TELLING:]]


def _by_turn(lines: Sequence[Line]) -> dict[tuple[int, str], list[Line]]:
    turns: dict[tuple[int, str], list[Line]] = {}
    for line in lines:
        if line.number is not None:
            turns.setdefault((line.number, line.lane), []).append(line)
    return turns


def _verdict(replayed: Line, held: Line) -> int:
    timed = replayed.time is not None and held.time is not None
    if timed and replayed.time == held.time:
        return 0
    agrees = (
        same(replayed.text, held.generated)
        or goes_on(held.generated, replayed.text)
        or goes_on(replayed.text, held.generated)
        or (held.lane == "assistant" and held.replaced is not None)
        or is_replaced(replayed.text, held)
    )
    if not agrees:
        return 1
    return 2 if timed else 0


def _newest(lines: Sequence[Line]) -> int | None:
    return max((line.number for line in lines if line.number is not None), default=None)


def _long_after(held: Sequence[Line], window: Sequence[Line]) -> bool:
    """Whether so long lies between them that no turn was revised: words are corrected within seconds."""
    times = [epoch_seconds(line.time) for line in window if line.number is not None]
    known, last = [t for t in times if t is not None], _time(held)
    return last is not None and len(known) == len(times) and min(known) - last > _LONG


def _time(lines: Sequence[Line]) -> float | None:
    return max((t for line in lines if (t := epoch_seconds(line.time)) is not None), default=None)
