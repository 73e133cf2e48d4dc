"""Alignment by content: anchors, which are equal to the letter, and similar lines in the gaps between."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise, takewhile
from typing import Final

from proxy.memory.align.alignment import NEW, REPEATED
from proxy.memory.align.line import CUT, Line, LineKey, repeats, similarity
from proxy.memory.wording import same_words

# Comparing this many pairs of lines blocks the event loop for a tenth of a second. Only a turn of hundreds of
# tool calls has such gaps.
_MAX_PAIRS: Final = 100_000
_NEWEST: Final = 300
# The costs of skipping a shown or a recorded line, and of skipping them after the last match. New lines are
# expected there, and answers that no window has shown yet.
_SHOWN_COST, _RECORDED_COST, _NEXT_COST, _WAITING_COST = 6, 5, 2, 3
# A window with more words of the user than the hot part begins with older lines. If these cost more than new
# ones, a long history would count as new after the first of its lines that is equal by chance.
_OLDER_COST: Final = _NEXT_COST
# Shorter answers may be repeated by chance.
_SENTENCE_WORDS: Final = 3

Pair = tuple[int, int]
"""An index in the window, and a place among the recorded lines."""
Gap = tuple[range, range]
"""The indices in the window, and the places among the recorded lines."""
_Group = tuple[int | None, tuple[str | None, ...]]


def align_lines(recorded: Sequence[Line], window: Sequence[Line], *, moved: bool = False) -> list[int]:
    """Returns the place of each line in ``recorded``; ``NEW``, or ``REPEATED`` for a copy of an answer.

    Lines that occur once on both sides and are equal to the letter are anchors. Between two anchors, lines
    are matched by similarity, first in order, then out of order. Tool results go with their calls. ``moved``
    is whether older entries are in the cold part, so that the window may begin with lines of these.
    """
    places = [NEW] * len(window)
    for i, (before, line) in enumerate(pairwise(window), start=1):
        if line.role == before.role == "assistant" and same_words(line.text, before.text):
            places[i] = REPEATED
    indices = [i for i, line in enumerate(window) if line.role != "tool" and places[i] == NEW]
    spoken = [place for place, line in enumerate(recorded) if line.role != "tool"]
    users = (sum(line.role == "user" for line in lines) for lines in (window, recorded))
    older = moved and next(users) > next(users) + 1
    matched = _align([recorded[p] for p in spoken], [window[i] for i in indices], moved=moved, older=older)
    for i, place in zip(indices, matched, strict=True):
        places[i] = spoken[place] if place >= 0 else NEW
    place_results(places, recorded, window)
    mark_repeated(places, recorded, window)
    return places


def mark_repeated(places: list[int], recorded: Sequence[Line], window: Sequence[Line]) -> None:
    """Marks answers that repeat an answer close by as ``REPEATED``, in place."""
    for i, place in enumerate(places):
        line = window[i]
        if place != NEW or line.role != "assistant":
            continue
        for other in (i - 1, i + 1, i - 2, i + 2):
            if not 0 <= other < len(window) or window[other].role not in {"assistant", "call"}:
                continue
            if window[other].turn_id != line.turn_id:  # another turn may say the same
                continue
            if places[other] >= 0:
                is_near = abs(other - i) == 1 or len(line.text.split()) >= _SENTENCE_WORDS
                is_copy = is_near and repeats(line.text, recorded[places[other]])
            else:  # of two that are both new, the first stays
                is_first = other == i - 1 and places[other] == NEW
                is_copy = is_first and same_words(line.text, window[other].text)
            if is_copy:
                places[i] = REPEATED
                break


def _align(recorded: Sequence[Line], window: Sequence[Line], *, moved: bool, older: bool) -> list[int]:
    places = [NEW] * len(window)
    anchors, gaps = _anchors_and_gaps(recorded, window)
    for i, place in anchors:
        places[i] = place
    for indices, gap in gaps:
        for i, place in gap_pairs(
            window[indices.start : indices.stop],
            recorded[gap.start : gap.stop],
            at_start=indices.start == 0,
            at_end=indices.stop == len(window),
            older=older and indices.start == 0,
        ):
            places[indices[i]] = gap[place]
    first = next((i for i, place in enumerate(places) if place >= 0), 0)
    # Of equal consecutive words of the user, the first are the recorded ones and the last are new. Lines
    # before all recorded ones may be older, and are left alone.
    for i in range(len(window) - 1, first if older else 0, -1):
        equal = window[i - 1].role == "user" and window[i - 1].key == window[i].key
        if equal and places[i] >= 0 and places[i - 1] == NEW:
            places[i - 1], places[i] = places[i], NEW
    # Matches nearby lines in another order, except before the first match if there is a cold part. Tool calls
    # stay in order, because voice platforms may use their ids again.
    unmatched = set(range(len(recorded))).difference(places)
    first = next((i for i, place in enumerate(places) if place >= 0), 0) if moved else 0
    for i, line in enumerate(window):
        if places[i] != NEW or not unmatched or i < first or line.role == "call":
            continue
        around = [place for place in places[max(0, i - 2) : i + 3] if place >= 0]
        near = range(max(0, min(around) - 2), max(around) + 3) if around else range(0)
        match = next((p for p in near if p in unmatched and similarity(line, recorded[p]) >= CUT), None)
        if match is not None:
            places[i] = match
            unmatched.discard(match)
    return places


# --- anchors ------------------------------------------------------------------------------------------------


def _anchors_and_gaps(recorded: Sequence[Line], window: Sequence[Line]) -> tuple[list[Pair], list[Gap]]:
    """Returns the anchors, and the gaps between them.

    Lines that occur once on both sides are anchors. In a wide gap, calls and then equal lines from its
    beginning are anchors too, and only the newest of the other lines are compared.
    """
    anchors = _equal_once(recorded, window)
    pairs, gaps = list(anchors), []
    for gap in _gaps(anchors, (range(len(window)), range(len(recorded)))):
        if not _is_wide(gap):
            gaps.append(gap)
            continue
        # A single id that is used again would mislead; hundreds of them in order do not.
        indices, places = gap
        calls = [
            (indices[i], places[place])
            for i, place in _equal_once(
                recorded[places.start : places.stop], window[indices.start : indices.stop], calls=True
            )
        ]
        pairs += calls
        for narrower in _gaps(calls, gap):
            run: list[Pair] = []
            if _is_wide(narrower):
                both = zip(*narrower, strict=False)
                run = list(takewhile(lambda pair: window[pair[0]].key == recorded[pair[1]].key, both))
            pairs += run
            rest = narrower[0][len(run) :], narrower[1][len(run) :]
            if rest[0] and rest[1]:
                gaps.append((rest[0][-_NEWEST:], rest[1][-_NEWEST:]) if _is_wide(rest) else rest)
    return pairs, gaps


def _is_wide(gap: Gap) -> bool:
    return len(gap[0]) * len(gap[1]) > _MAX_PAIRS


def _equal_once(recorded: Sequence[Line], window: Sequence[Line], *, calls: bool = False) -> list[Pair]:
    """Returns the longest increasing run of pairs that occur once on both sides (patience sorting)."""
    once = _singles(recorded, calls=calls)
    pairs = [(i, once[key]) for key, i in _singles(window, calls=calls).items() if key in once]
    tops: list[int] = []
    piles: list[int] = []
    before: list[int | None] = []
    for i, (_, place) in enumerate(pairs):
        pile = bisect_left(tops, place)
        tops[pile : pile + 1] = [place]
        piles[pile : pile + 1] = [i]
        before.append(piles[pile - 1] if pile else None)
    run: list[Pair] = []
    last = piles[-1] if piles else None
    while last is not None:
        run.append(pairs[last])
        last = before[last]
    return run[::-1]


def _singles(lines: Sequence[Line], *, calls: bool) -> dict[LineKey, int]:
    """Returns the positions of the lines that occur once, by their keys."""
    keys = [line.key for line in lines]
    count = Counter(keys)
    return {key: i for i, key in enumerate(keys) if count[key] == 1 and (calls or key[0] != "call")}


def _gaps(anchors: Sequence[Pair], within: Gap) -> list[Gap]:
    indices, places = within
    ends = [(indices.start - 1, places.start - 1), *anchors, (indices.stop, places.stop)]
    gaps = [(range(i + 1, to_i), range(p + 1, to_p)) for (i, p), (to_i, to_p) in pairwise(ends)]
    return [gap for gap in gaps if gap[0] and gap[1]]


# --- gaps ---------------------------------------------------------------------------------------------------


def gap_pairs(
    window: Sequence[Line], recorded: Sequence[Line], *, at_start: bool, at_end: bool, older: bool
) -> list[Pair]:
    """Returns the most similar pairs of a gap that keep the order.

    ``at_start`` and ``at_end`` are whether the gap is at the start and at the end of the window. ``older`` is
    whether the window may begin with lines that are older than all entries.
    """
    by_key: dict[LineKey, dict[int, int]] = {}
    for line in window:
        if line.key not in by_key:
            sures = ((place, similarity(line, other)) for place, other in enumerate(recorded))
            by_key[line.key] = {place: sure for place, sure in sures if sure}
    similar = [by_key[line.key] for line in window]
    scores = _scores(similar, len(recorded), at_end=at_end, older=older)
    pairs: list[Pair] = []
    # Windows slide, so entries before a window cost nothing; it starts at the last of the best places.
    i, j = 0, max(range(len(recorded) + 1), key=lambda j: (scores[0][j], j)) if at_start else 0
    while i < len(window) and j < len(recorded):
        best = scores[i][j]
        # Older lines may equal the oldest entry, so the latest equal line is matched with it.
        if at_start and best == scores[i + 1][j] - (_OLDER_COST if older and not j else _SHOWN_COST):
            i += 1
        elif j in similar[i] and best == similar[i][j] + scores[i + 1][j + 1]:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif best == scores[i][j + 1] - _RECORDED_COST:
            j += 1
        elif best == scores[i + 1][j] - _SHOWN_COST:
            i += 1
        else:
            break
    return pairs


def _scores(similar: Sequence[dict[int, int]], width: int, *, at_end: bool, older: bool) -> list[list[int]]:
    """Returns for each pair of positions the best score of the lines that follow."""
    height = len(similar)
    new_cost, waiting_cost = (_NEXT_COST, _WAITING_COST) if at_end else (_SHOWN_COST, _RECORDED_COST)
    # Older lines cost as much as new ones. The last line costs nothing: it is rather new than recorded.
    free = at_end and older
    waiting = [-waiting_cost * (width - j) for j in range(width + 1)]
    rows = [waiting]
    for i in range(height - 1, -1, -1):
        below = rows[-1]
        unmatched = new_cost * max(height - i - free, 0)
        row = [max(best - _SHOWN_COST, rest - unmatched) for best, rest in zip(below, waiting, strict=True)]
        for place in sorted(similar[i], reverse=True):
            best, j = similar[i][place] + below[place + 1], place
            while j >= 0 and best > row[j]:
                row[j] = best
                best, j = best - _RECORDED_COST, j - 1
        if older:
            row[0] = max(row[0], below[0] - _OLDER_COST)
        rows.append(row)
    return rows[::-1]


# --- results ------------------------------------------------------------------------------------------------


def place_results(places: list[int], recorded: Sequence[Line], window: Sequence[Line]) -> None:
    """Sets the places of new tool results, once those of the other lines are set.

    A result is matched with a recorded one of its call, or it is new. Where the call has slid out of the
    window, that is the last recorded call with the result's id before the next line that is matched.
    """
    results = {i for i, line in enumerate(window) if line.role == "tool" and places[i] == NEW}
    if not results:
        return
    callers, unmatched = _callers(window), _Results(recorded, places)
    for i in sorted(results):
        if i in callers:
            places[i] = unmatched.first(window[i], places[callers[i]])
    end = len(recorded)
    for i in range(len(places) - 1, -1, -1):
        if i in results and i not in callers:
            places[i] = unmatched.last(window[i], end)
        end = places[i] if places[i] >= 0 else end


class _Results:
    """The recorded results that are not matched yet, by their call and their id."""

    def __init__(self, recorded: Sequence[Line], places: Sequence[int]) -> None:
        self._recorded = recorded
        self._calls: dict[str | None, list[int]] = defaultdict(list)
        self._unanswered: dict[_Group, list[int]] = defaultdict(list)
        callers, taken = _callers(recorded), set(places)
        for place, line in enumerate(recorded):
            for call in dict.fromkeys(_calls_of(line)):
                self._calls[call].append(place)
            if line.role == "tool" and place not in taken:
                self._unanswered[callers.get(place), line.ids].append(place)

    def first(self, line: Line, caller: int) -> int:
        """Returns the call's first result with the line's words, else its first; ``NEW`` if none is left."""
        places = self._unanswered.get((caller, line.ids), [])
        equal = (i for i, place in enumerate(places) if self._recorded[place].text == line.text)
        return places.pop(next(equal, 0)) if places else NEW

    def last(self, line: Line, end: int) -> int:
        """Returns the last result, before ``end``, of the last call with the line's id; else ``NEW``."""
        calls = self._calls.get(line.ids[-1], [])
        before = bisect_left(calls, end)
        places = self._unanswered.get((calls[before - 1] if before else None, line.ids), [])
        at = bisect_left(places, end)
        return places.pop(at - 1) if at else NEW


def _callers(lines: Sequence[Line]) -> dict[int, int]:
    """Returns the call of each result: the nearest before it with its id, if there is one."""
    calls: dict[str | None, int] = {}
    callers = {}
    for i, line in enumerate(lines):
        calls |= dict.fromkeys(_calls_of(line), i)
        if line.role == "tool" and line.ids[-1] in calls:
            callers[i] = calls[line.ids[-1]]
    return callers


def _calls_of(line: Line) -> tuple[str | None, ...]:
    return line.ids[:-1] if line.role == "call" else ()
