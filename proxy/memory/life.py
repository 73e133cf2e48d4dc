"""When an engine begins to count its turns anew: the same channel, another conversation."""

from collections.abc import Sequence

from filters.message import epoch_seconds
from proxy.memory.line import Line
from proxy.memory.newest import Newest
from proxy.memory.wording import goes_on, same

_OPENING = 2  # a greeting and the first words
_AGREEING = (0, 2, 1)


def begins_anew(held: Sequence[Line], window: Sequence[Line]) -> bool:
    """Whether the window's turn numbers are those of another life than the held ones.

    One revised text is no new life. A number that goes back is, with other words at another time; so are
    several turns that say something else, more of them than say the same.
    """
    newest, last = _newest(window), _newest(held)
    if newest is None or last is None:
        return False
    same_, other, moved = _evidence(held, window)
    if newest < last:
        return _goes_back(held, window, newest, (same_, other, moved))
    return other > max(1, same_) or bool(other and moved and not same_)


def starts_over(
    held: Sequence[Line], window: Sequence[Line], places: Sequence[int], newest: Newest | None
) -> bool:
    """Whether a window without turn numbers is the beginning of another talk than the one that is held.

    It is nothing but a greeting and the first words. It shows the held greeting and not the words that were
    answered aloud after it; or it shows nothing that is held, though windows have not slid so far and were no
    shorter.
    """
    if len(window) < _OPENING or any(line.lane != "assistant" for line in window[:-1]) or not held:
        return False
    first = next((i for i, line in enumerate(held) if line.lane == "user"), len(held))
    matched = [h for h in places if h >= 0]
    if not matched:
        whole = newest is not None and newest.whole and len(window) <= newest.lines
        return whole and window[-1].lane == "user" and first < len(held)
    greeted = any(h < first for h in places[:-1] if h >= 0)
    aloud = (h for h, line in enumerate(held) if h > first and line.lane == "assistant" and not line.pending)
    return greeted and window[-1].lane == "user" and any(h not in matched for h in aloud)


def _goes_back(
    held: Sequence[Line], window: Sequence[Line], newest: int, evidence: tuple[int, int, int]
) -> bool:
    same_, other, moved = evidence
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
            for a in lines
            for b in known.get(lane, ())
            if None in {a.source, b.source} or a.source == b.source
        ]
        if pairs:
            found[min((_verdict(*pair) for pair in pairs), key=_AGREEING.index)] += 1
    return found[0], found[1], found[2]


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
    )
    if not agrees:
        return 1
    return 2 if timed else 0


def _newest(lines: Sequence[Line]) -> int | None:
    return max((line.number for line in lines if line.number is not None), default=None)


def _time(lines: Sequence[Line]) -> float | None:
    return max((t for line in lines if (t := epoch_seconds(line.time)) is not None), default=None)
