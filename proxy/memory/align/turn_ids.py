"""Windows of platforms that number their turns: matching by turn id, and ids that contradict each other."""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Final

from filters.message import Message, epoch_seconds
from proxy.memory.align.alignment import NEW
from proxy.memory.align.anchors import align_lines, mark_repeated, place_results
from proxy.memory.align.line import CUT, Line, LineKey, similarity
from proxy.memory.wording import continues, same_words

# More pairs of lines of one turn and role are not compared by similarity, which would block the event loop.
_MAX_PAIRS: Final = 100_000
# Of many lines of one turn and role, so many at either end show whether it is another turn.
_TELLING: Final = 8
# Words are corrected within seconds; after this many, other words are no revision.
_LONG_AFTER: Final = 300.0
_AGREES, _DIFFERS, _RETIMED = 0, 1, 2
_BEST_FIRST = (_AGREES, _RETIMED, _DIFFERS)
_turn_id: Final = attrgetter("turn_id")

Group = tuple[int, str, object]
Fit = Callable[[Line, Line], bool]


def match_turn_ids(recorded: Sequence[Line], window: Sequence[Line]) -> list[int]:
    """Returns the place of each line in ``recorded``; ``NEW``, or ``REPEATED`` for a copy of an answer.

    Lines are matched by turn id and role; within these by time and words, and then by order. A line without
    an id belongs to the turn of the line before it.
    """
    places = [NEW] * len(window)
    entries, lines = _grouped(recorded), _grouped(window)
    opening = next(iter(lines))[0] if lines else None
    first = next((i for i, line in enumerate(window) if line.turn_id is not None), 0)
    # The places of the user's words bound those of the others.
    groups = sorted(lines.items(), key=lambda item: item[0][1] != "user")
    for fits in _SURE, _LIKELY:
        taken = set(places)
        for group, indices in groups:
            free = (
                [i for i in indices if places[i] == NEW],
                [place for place in entries.get(group, []) if place not in taken],
            )
            for i, place in _pairs(recorded, window, free, fits, cut=group[0] == opening):
                # Lines before the first id may be of an earlier turn. Their pairs, and unsure ones, must be
                # on the same side of all matched words of the user.
                if (fits is _SURE and i >= first) or _in_order(places, window, i, place):
                    places[i] = place
        _match_unnumbered(places, recorded, window)
    place_results(places, recorded, window)
    mark_repeated(places, recorded, window)
    return places


def order_by_turn(lines: Sequence[Message]) -> list[int] | None:
    """Returns the indices of lines in the order of their turns; ``None`` if they are in that order.

    A line without an id stays after the line before it.
    """
    ids = [*map(_turn_id, lines)]
    if not any(ids):
        return None
    turns = _filled(ids)
    return None if sorted(turns) == turns else sorted(range(len(lines)), key=turns.__getitem__)


def first_newer(recorded: Sequence[Line], window: Sequence[Line]) -> int:
    """Returns the place from which on entries are of newer turns than all of the window's."""
    newest = max(_turns(window), default=0)
    return next((i for i, turn in enumerate(_turns(recorded)) if turn > newest), len(recorded))


def begins_call(recorded: Sequence[Line], window: Sequence[Line]) -> bool:
    """Whether the turn ids of a latest request are those of another call.

    One revised text does not make another call. Ids that go back do, with other words or at another time; so
    do several turns with other words, if more turns have other words than the same.
    """
    newest, last = _newest(window), _newest(recorded)
    if newest is None or last is None:
        return False
    if newest >= last:
        return contradicts(recorded, window)
    agreeing, differing, retimed = _evidence(recorded, window)
    oldest = min(line.turn_id for line in recorded if line.turn_id is not None)
    if newest < oldest:
        time = _latest_time(window)
        return time is None or (_latest_time(recorded) or 0) < time
    questions = [line for line in window if line.role == "user" and line.turn_id == newest]
    earlier = [line for line in recorded if line.role == "user" and line.turn_id == newest]
    differing += bool(questions) and all(_verdict(a, b) == _DIFFERS for a in questions for b in earlier)
    return (differing > 0 and differing >= agreeing) or (retimed > 0 and agreeing == 0)


def contradicts(recorded: Sequence[Line], window: Sequence[Line]) -> bool:
    """Whether a window has recorded turn ids, but for other turns.

    That is so if more lines with the same id and role differ in words and time than agree, and at least two.
    One is enough if none agrees, and if others differ only in time or the whole window was said long after
    the entries.
    """
    agreeing, differing, retimed = _evidence(recorded, window)
    if differing > max(1, agreeing):
        return True
    if agreeing or not differing:
        return False
    times = [epoch_seconds(line.time) for line in window if line.turn_id is not None]
    stamps, last = [time for time in times if time is not None], _latest_time(recorded)
    is_long_after = last is not None and len(stamps) == len(times) and min(stamps) - last > _LONG_AFTER
    return retimed > 0 or is_long_after


def _turns(lines: Sequence[Line]) -> list[int]:
    return _filled([line.turn_id for line in lines])


def _filled(ids: Sequence[object]) -> list[int]:
    """Returns each line's turn: its own id, else that of the line before; before the first id, the first."""
    turns: list[int] = []
    last: int | None = None
    for turn_id in ids:
        if isinstance(turn_id, int):
            if last is None:
                turns = [turn_id] * len(turns)
            last = turn_id
        turns.append(last or 0)
    return turns


# --- matching -----------------------------------------------------------------------------------------------


def _grouped(lines: Sequence[Line]) -> dict[Group, list[int]]:
    """Returns the indices of lines by turn and role; those of tool calls and results by their ids as well."""
    groups: dict[Group, list[int]] = {}
    for i, (turn, line) in enumerate(zip(_turns(lines), lines, strict=True)):
        ids = line.ids if line.role in {"call", "tool"} else None
        groups.setdefault((turn, line.role, ids), []).append(i)
    return groups


def _pairs(
    recorded: Sequence[Line],
    window: Sequence[Line],
    free: tuple[list[int], list[int]],
    tests: Sequence[Fit],
    *,
    cut: bool,
) -> list[tuple[int, int]]:
    """Returns the pairs of one group, the surest first; a group that the window cuts is paired from its end.

    In a large group only identical lines are paired.
    """
    indices, places = free
    if len(indices) * len(places) > _MAX_PAIRS:
        if tests is not _SURE:
            return []
        by_key: dict[LineKey, list[int]] = {}
        for p in places:
            by_key.setdefault(recorded[p].key, []).append(p)
        candidates = ((i, by_key.get(window[i].key)) for i in reversed(indices))
        return [(i, equal.pop()) for i, equal in candidates if equal]
    pairs = []
    for fits in tests if places else ():
        for i in indices[::-1] if cut else list(indices):
            order = reversed(places) if cut else places
            place = next((p for p in order if fits(window[i], recorded[p])), None)
            if place is not None:
                pairs.append((i, place))
                indices.remove(i)
                places.remove(place)
    return pairs


def _has_same_source(line: Line, recorded: Line) -> bool:
    """Whether a line has the same source as an entry; an absent source fits any."""
    return None in {line.source, recorded.source} or line.source == recorded.source


_SURE: tuple[Fit, ...] = (
    lambda line, recorded: line.key == recorded.key and line.time in {recorded.time, None},
    lambda line, recorded: line.time is not None and line.time == recorded.time,
    # A line that has only its neighbour's id must be more similar, as it may be of another turn.
    lambda line, recorded: similarity(line, recorded) >= (CUT if line.turn_id is None else 1),
)
_LIKELY: tuple[Fit, ...] = (_has_same_source,)


def _match_unnumbered(places: list[int], recorded: Sequence[Line], window: Sequence[Line]) -> None:
    """Sets the places of new lines by content, if they have no turn id, or if their entries have none."""
    for numbered in False, True:
        unmatched = [
            i
            for i, line in enumerate(window)
            if places[i] == NEW and line.role != "tool" and (line.turn_id is not None) == numbered
        ]
        taken = set(places)
        free = [
            place
            for place, line in enumerate(recorded)
            if place not in taken and not (numbered and line.turn_id is not None)
        ]
        matched = align_lines([recorded[place] for place in free], [window[i] for i in unmatched])
        for i, match in zip(unmatched, matched, strict=True):
            if match >= 0 and _in_order(places, window, i, free[match]):
                places[i] = free[match]


def _in_order(places: Sequence[int], window: Sequence[Line], i: int, place: int) -> bool:
    """Whether a pair is on the same side of all matched words of the user."""
    users = ((u, p) for u, p in enumerate(places) if p >= 0 and window[u].role == "user")
    return all((u < i) == (p < place) for u, p in users)


# --- contradictions -----------------------------------------------------------------------------------------


def _evidence(recorded: Sequence[Line], window: Sequence[Line]) -> tuple[int, int, int]:
    """Counts the lines that agree, those with other words and time, and those with only another time.

    Several lines of one turn and role count once, by the best agreement. Lines with another source than the
    recorded ones do not count.
    """
    entries, counts = _by_turn(recorded), [0, 0, 0]
    for key, lines in _by_turn(window).items():
        verdicts = [
            _verdict(line, other)
            for line in _ends(lines)
            for other in _ends(entries.get(key, ()))
            if _has_same_source(line, other)
        ]
        if verdicts:
            counts[min(verdicts, key=_BEST_FIRST.index)] += 1
    return counts[_AGREES], counts[_DIFFERS], counts[_RETIMED]


def _ends(lines: Sequence[Line]) -> Sequence[Line]:
    """Returns the first and the last of many lines: only a program says so much in one turn."""
    return lines if len(lines) <= 2 * _TELLING else [*lines[:_TELLING], *lines[-_TELLING:]]


def _by_turn(lines: Sequence[Line]) -> dict[tuple[int, str], list[Line]]:
    turns: dict[tuple[int, str], list[Line]] = {}
    for line in lines:
        if line.turn_id is not None:
            turns.setdefault((line.turn_id, line.role), []).append(line)
    return turns


def _verdict(window: Line, recorded: Line) -> int:
    timed = window.time is not None and recorded.time is not None
    if timed and window.time == recorded.time:
        return _AGREES
    agrees = (
        same_words(window.text, recorded.generated)
        or continues(recorded.generated, window.text)
        or continues(window.text, recorded.generated)
        or (recorded.role == "assistant" and recorded.replaced_hash is not None)
        or recorded.replaces(window.text)
    )
    if not agrees:
        return _DIFFERS
    return _RETIMED if timed else _AGREES


def _newest(lines: Sequence[Line]) -> int | None:
    return max((line.turn_id for line in lines if line.turn_id is not None), default=None)


def _latest_time(lines: Sequence[Line]) -> float | None:
    return max((time for line in lines if (time := epoch_seconds(line.time)) is not None), default=None)
