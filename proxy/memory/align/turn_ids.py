"""Which replayed line is which held line, where the engine numbers its turns."""

from collections.abc import Callable, Sequence
from typing import Final, cast

from filters.message import Message, epoch_seconds
from proxy.memory.align.anchors import mark_repeated
from proxy.memory.align.line import ALIKE, CUT, NEW, Key, Line, is_replaced, similarity, turn_id_of
from proxy.memory.session import Entry, LatestRequest
from proxy.memory.wording import continues, same_words

# So many lines of one turn and speaker are not compared with each other, for which all callers would wait.
_WIDE: Final = 100_000
Lane = tuple[int, str, object]
Fit = Callable[[Line, Line], bool]
Judge = Callable[[Sequence[Line], Sequence[Line]], bool]
"""Tells of held lines and a window's whether they belong to two lives."""
_AGREEING = (0, 2, 1)
_TELLING = 8
_LONG = 300.0


def match_turn_ids(held: Sequence[Line], window: Sequence[Line]) -> list[int]:
    """For each line of the window its place in ``held``, or ``NEW``.

    Lines are known by turn number and speaker; within these by time and words, and only then by their order.
    A line without a number counts to the turn of the line before it.
    """
    places = [NEW] * len(window)
    known, shown = _lanes(held), _lanes(window)
    opening = next(iter(shown))[0] if shown else None
    first = next((w for w, line in enumerate(window) if line.turn_id is not None), 0)
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
    mark_repeated(places, held, window)
    return places


def numbers(lines: Sequence[Line]) -> list[int]:
    """The turn of each line: its own number, or that of its neighbour."""
    return filled([line.turn_id for line in lines])


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
    given = [turn_id_of(message) for message in spoken]
    if not any(given):
        return spoken
    numbers = filled(given) if None in given else cast("list[int]", given)
    if sorted(numbers) == numbers:
        return spoken
    return [spoken[i] for i in sorted(range(len(spoken)), key=numbers.__getitem__)]


def _lanes(lines: Sequence[Line]) -> dict[Lane, list[int]]:
    lanes: dict[Lane, list[int]] = {}
    for i, (number, line) in enumerate(zip(numbers(lines), lines, strict=True)):
        which = line.ids if line.role in {"call", "tool"} else None
        lanes.setdefault((number, line.role, which), []).append(i)
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
    users = ((i, place) for i, place in enumerate(places) if place >= 0 and window[i].role == "user")
    return all((i < w) == (place < h) for i, place in users)


def _equal(replayed: Line, held: Line) -> bool:
    return replayed.key == held.key and replayed.time in {held.time, None}


def _timely(replayed: Line, held: Line) -> bool:
    return replayed.time is not None and replayed.time == held.time


def _akin(replayed: Line, held: Line) -> bool:
    """Of a line whose number is but its neighbour's, a likeness to another turn's words tells little."""
    return similarity(replayed, held) >= (CUT if replayed.turn_id is None else 1)


def _possible(replayed: Line, held: Line) -> bool:
    """A line that came about in another way is another line, and so is one that says itself who it is."""
    return None in {replayed.source, held.source} or replayed.source == held.source


_SURE: tuple[Fit, ...] = (_equal, _timely, _akin)


_LIKELY: tuple[Fit, ...] = (_possible,)


def _unnumbered(places: list[int], held: Sequence[Line], window: Sequence[Line]) -> None:
    """Finds lines without a number under another turn than their neighbours', on either side."""
    left = set(range(len(held))).difference(places)
    bare = {held[h].key for h in left if held[h].turn_id is None}
    following, last = _following(places, len(held)), NEW
    for w, line in enumerate(window):
        if places[w] == NEW and left and (line.turn_id is None or line.key in bare):
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
    if line.turn_id is not None:
        fitting = (h for h in left if held[h].turn_id is None and held[h].key == line.key)
    else:
        # An answer may be shown behind the words that cut it; what stands before all others is older.
        swapped = 1 if line.role == "assistant" and around.start else 0
        reach = left.intersection(range(around.start - swapped, around.stop))
        fitting = (h for h in reach if _fits(line, held[h], beside=h in around and abs(h - near) == 1))
    return min(fitting, key=lambda h: (abs(h - near), h), default=None)


def _fits(replayed: Line, held: Line, *, beside: bool) -> bool:
    if replayed.key == held.key:
        return held.turn_id is None or held.role != "user"
    sure = ALIKE if beside and _possible(replayed, held) else CUT
    return held.role == "assistant" and similarity(replayed, held) >= sure


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
    held: Sequence[Entry], window: Sequence[Message], places: Sequence[int], newest: LatestRequest | None
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
        return (
            newest is not None
            and newest.shows_call_start
            and len(window) <= newest.line_count
            and first < len(held)
        )
    aloud = {h for h, e in enumerate(held) if h > first and e.role == "assistant" and not e.pending}
    return any(0 <= h < first for h in places[:-1]) and not aloud <= matched


def _opens(window: Sequence[Message]) -> bool:
    greeting = all(m.role == "assistant" and not m.tool_calls for m in window[:-1])
    return len(window) > 1 and window[-1].role == "user" and greeting


def _goes_back(held: Sequence[Line], window: Sequence[Line], newest: int) -> bool:
    same_, other, moved = _evidence(held, window)
    oldest = min(line.turn_id for line in held if line.turn_id is not None)
    if newest < oldest:
        return _time(window) is None or (_time(held) or 0) < (_time(window) or 0)
    asked = [line for line in window if line.role == "user" and line.turn_id == newest]
    agreeing = (_verdict(a, b) != 1 for a in asked for b in held if b.role == "user" and b.turn_id == newest)
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
        if line.turn_id is not None:
            turns.setdefault((line.turn_id, line.role), []).append(line)
    return turns


def _verdict(replayed: Line, held: Line) -> int:
    timed = replayed.time is not None and held.time is not None
    if timed and replayed.time == held.time:
        return 0
    agrees = (
        same_words(replayed.text, held.generated)
        or continues(held.generated, replayed.text)
        or continues(replayed.text, held.generated)
        or (held.role == "assistant" and held.replaced is not None)
        or is_replaced(replayed.text, held)
    )
    if not agrees:
        return 1
    return 2 if timed else 0


def _newest(lines: Sequence[Line]) -> int | None:
    return max((line.turn_id for line in lines if line.turn_id is not None), default=None)


def _long_after(held: Sequence[Line], window: Sequence[Line]) -> bool:
    """Whether so long lies between them that no turn was revised: words are corrected within seconds."""
    times = [epoch_seconds(line.time) for line in window if line.turn_id is not None]
    known, last = [t for t in times if t is not None], _time(held)
    return last is not None and len(known) == len(times) and min(known) - last > _LONG


def _time(lines: Sequence[Line]) -> float | None:
    return max((t for line in lines if (t := epoch_seconds(line.time)) is not None), default=None)
