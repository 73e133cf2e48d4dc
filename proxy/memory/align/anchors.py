"""Which replayed line is which held line, where engines do not number their turns."""

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise, takewhile
from typing import Final

from proxy.memory.align.line import CUT, NEW, Key, Line, repeats, similarity
from proxy.memory.wording import same_words, text_hash

AGAIN: Final = -2
_SENTENCE = 3
# To compare all lines of a gap with each other takes a tenth of a second from so many pairs on, in which all
# callers wait. A turn of hundreds of calls makes such gaps; a talk does not.
_WIDE: Final = 400_000
_NEWEST: Final = 600
Pair = tuple[int, int]
Gap = tuple[range, range]
# What it costs to pass over a line: one that is replayed, one that is held, and both behind the last match,
# where new lines are to be expected and answers wait for their replay.
_REPLAYED, _HELD, _NEXT, _WAITING = 6, 5, 2, 3
_WORD: Final = re.compile(r"\w+")
_START: Final = 4
# So few pairs are compared in less time than it takes to sort the lines by their words.
_FEW: Final = 64
Kin = dict[int, int]
"""By the place of a held line, how sure it is; those that it cannot be are left out."""
_Group = tuple[int | None, tuple[str | None, ...]]


def align_lines(held: Sequence[Line], window: Sequence[Line], *, moved: bool = False) -> list[int]:
    """For each line of the window its place in ``held``; ``NEW``, or ``AGAIN`` for a second copy.

    What the window shows before all of it may be older, where the oldest has ``moved`` to the cold part.

    Lines that occur once on both sides and are equal to the letter are fixed points; what stands between
    two of them is matched by likeness in order, and what is left then by likeness out of order. Results of
    tools go with their calls.
    """
    places = [AGAIN if _echoes(window, w) else NEW for w in range(len(window))]
    once = [w for w, line in enumerate(window) if line.role != "tool" and places[w] == NEW]
    own = [h for h, line in enumerate(held) if line.role != "tool"]
    older = moved and _words(window) > _words(held) + 1
    found = _aligned([held[h] for h in own], [window[w] for w in once], moved=moved, older=older)
    for w, place in zip(once, found, strict=True):
        places[w] = own[place] if place >= 0 else NEW
    place_results(places, held, window)
    mark_repeated(places, held, window)
    return places


def _words(lines: Sequence[Line]) -> int:
    """How many of the lines the user said."""
    return sum(line.role == "user" for line in lines)


def _echoes(window: Sequence[Line], w: int) -> bool:
    """Whether an answer says word by word what the line before it says."""
    line, before = window[w], window[w - 1]
    return w > 0 and line.role == before.role == "assistant" and same_words(line.text, before.text)


def _aligned(held: Sequence[Line], window: Sequence[Line], *, moved: bool, older: bool) -> list[int]:
    places = [NEW] * len(window)
    fixed, gaps = anchors_and_gaps(held, window)
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
        words = window[w - 1].role == "user" and window[w - 1].key == window[w].key
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
    return line.role != "call" and similarity(line, held) >= CUT


def _near(places: list[int], w: int) -> range:
    around = [h for h in places[max(0, w - 2) : w + 3] if h >= 0]
    return range(max(0, min(around) - 2), max(around) + 3) if around else range(0)


def mark_repeated(places: list[int], held: Sequence[Line], window: Sequence[Line]) -> None:
    """Marks answers that say once more what an answer close by says as ``AGAIN``, in place."""
    for w, place in enumerate(places):
        if place == NEW and window[w].role == "assistant" and _said_nearby(places, held, window, w):
            places[w] = AGAIN


def _said_nearby(places: list[int], held: Sequence[Line], window: Sequence[Line], w: int) -> bool:
    return any(
        _repeats(places, held, window, (w, other))
        for other in (w - 1, w + 1, w - 2, w + 2)
        if 0 <= other < len(window) and window[other].role in {"assistant", "call"}
    )


def _repeats(places: list[int], held: Sequence[Line], window: Sequence[Line], pair: tuple[int, int]) -> bool:
    """Whether the first of the pair is a copy of the second; of two that are both new, the first stays."""
    copy, other = pair
    if places[other] < 0:
        return (
            other == copy - 1 and places[other] == NEW and same_words(window[copy].text, window[other].text)
        )
    if abs(other - copy) > 1 and len(window[copy].text.split()) < _SENTENCE:
        return False
    return repeats(window[copy].text, held[places[other]])


def anchors_and_gaps(held: Sequence[Line], window: Sequence[Line]) -> tuple[list[Pair], list[Gap]]:
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


# A window with more words of the user than a cut session has left shows older lines first. Were they dearer
# than new ones, a long history would be taken for new, behind the first of its lines that happen to be equal.
_OLDER: Final = _NEXT


def pairs(
    window: Sequence[Line], held: Sequence[Line], *, at_start: bool, at_end: bool, older: bool
) -> list[Pair]:
    """Which lines are one, by their places; ``at_start`` and ``at_end`` say what the window begins and ends.

    ``older`` is whether the window may begin with lines that are older than all that is held.
    """
    kin = kin_of(window, held)
    score = _Scores(kin, len(held), open_end=at_end, older=older)
    found: list[Pair] = []
    i, j = 0, _start(score.row(0), open_start=at_start)
    while i < len(window) and j < len(held):
        best = score.at(i, j)
        # What a window shows before the oldest that is held may be equal to it: the latest is the one.
        if at_start and best == score.at(i + 1, j) - (_OLDER if older and not j else _REPLAYED):
            i += 1
        elif j in kin[i] and best == kin[i][j] + score.at(i + 1, j + 1):
            found.append((i, j))
            i, j = i + 1, j + 1
        elif best == score.at(i, j + 1) - _HELD:
            j += 1
        elif best == score.at(i + 1, j) - _REPLAYED:
            i += 1
        else:
            break
    return found


def _start(scores: list[int], *, open_start: bool) -> int:
    """Where matching begins: windows slide, so what is held before it costs nothing, and the last is best."""
    if not open_start:
        return 0
    return max(range(len(scores)), key=lambda j: (scores[j], j))


class _Scores:
    """The best that can be made of the rest, from each pair of positions on.

    Rows of lines that are nobody's kin are not kept: such lines can only be passed over.
    """

    def __init__(self, kin: Sequence[Kin], width: int, *, open_end: bool, older: bool) -> None:
        self._height, self._older = len(kin), older
        self._new, waiting = (_NEXT, _WAITING) if open_end else (_REPLAYED, _HELD)
        # Where older lines cost what new ones do, the last line decides: it is rather new than held.
        self._free = open_end and older
        self._waiting = [-waiting * (width - j) for j in range(width + 1)]
        self._rows = {self._height: self._ended(self._height)}
        self._below = [self._height] * (self._height + 1)
        for i in range(self._height - 1, -1, -1):
            if kin[i]:
                self._rows[i] = self._kept(i, kin[i])
            self._below[i] = i if kin[i] else self._below[i + 1]

    def at(self, i: int, j: int) -> int:
        """The best from one pair of positions on."""
        below = self._below[i]
        passed, best = below - i, self._rows[below][j]
        if not passed:
            return best
        cost = _OLDER if self._older and not j else _REPLAYED
        return max(best - cost * passed, self._waiting[j] - self._rest(i))

    def row(self, i: int) -> list[int]:
        """The best from one line of the window on."""
        below = self._below[i]
        rest, cost = self._rest(i), _REPLAYED * (below - i)
        if below == i:
            return self._rows[i]
        row = [
            max(best - cost, end - rest) for best, end in zip(self._rows[below], self._waiting, strict=True)
        ]
        row[0] = self.at(i, 0)
        return row

    def _kept(self, i: int, kin: Kin) -> list[int]:
        below, rest = self.row(i + 1), self._rest(i)
        row = [max(best - _REPLAYED, end - rest) for best, end in zip(below, self._waiting, strict=True)]
        for place in sorted(kin, reverse=True):
            best, j = kin[place] + below[place + 1], place
            while j >= 0 and best > row[j]:
                row[j] = best
                best, j = best - _HELD, j - 1
        if self._older:
            row[0] = max(row[0], below[0] - _OLDER)
        return row

    def _ended(self, i: int) -> list[int]:
        return [end - self._rest(i) for end in self._waiting]

    def _rest(self, i: int) -> int:
        """What it costs to match nothing more from here on."""
        return self._new * max(self._height - i - self._free, 0)


def kin_of(window: Sequence[Line], held: Sequence[Line]) -> list[Kin]:
    """For each line of a window its kin."""
    if len(window) * len(held) <= _FEW:
        return [
            {place: sure for place, other in enumerate(held) if (sure := similarity(line, other))}
            for line in window
        ]
    found = _Kinship(held)
    return [found.of(line) for line in window]


class _Kinship:
    """The kin of replayed lines among some that are held; ``kinship`` has the last word on each."""

    def __init__(self, held: Sequence[Line]) -> None:
        self._held = held
        self._known: dict[Key, Kin] = {}
        self._calls: dict[tuple[str | None, ...], list[int]] = defaultdict(list)
        self._any: dict[str, list[int]] = defaultdict(list)
        self._said: dict[tuple[str, str], list[int]] = defaultdict(list)
        self._replaced: dict[tuple[str, str], list[int]] = defaultdict(list)
        self._words: dict[tuple[str, ...], list[int]] = defaultdict(list)
        self._generated: list[tuple[str, int]] = []
        self._lengths: dict[str, set[int]] = defaultdict(set)
        for place, line in enumerate(held):
            self._learn(place, line)
        self._generated.sort()

    def of(self, line: Line) -> Kin:
        """Its kin; of lines that are equal to the letter, worked out once."""
        key = line.key
        found = self._known.get(key)
        if found is None:
            near = {place: similarity(line, self._held[place]) for place in sorted(set(self._near(line)))}
            found = self._known[key] = {place: sure for place, sure in near.items() if sure}
        return found

    def _learn(self, place: int, line: Line) -> None:
        if line.role == "call":
            self._calls[line.ids].append(place)
            return
        if line.role not in {"user", "assistant"}:
            self._any[line.role].append(place)
            return
        if line.replaced is not None:
            self._replaced[line.role, line.replaced].append(place)
        for text in {line.text, line.generated, line.letters(line.text)}:
            self._said[line.role, text].append(place)
        if line.role == "assistant":
            self._learn_answer(place, line)

    def _learn_answer(self, place: int, line: Line) -> None:
        if line.pending:
            self._any[line.role].append(place)
        self._words[_sorted_words(line)].append(place)
        letters = line.letters(line.generated)
        self._generated.append((letters, place))
        self._lengths[letters[:_START]].add(len(letters))

    def _near(self, line: Line) -> Iterator[int]:
        if line.role == "call":
            yield from self._calls.get(line.ids, ())
            return
        yield from self._any.get(line.role, ())
        letters = line.letters(line.text)
        if self._replaced:
            yield from self._replaced.get((line.role, text_hash(line.text)), ())
        for text in {line.text, letters}:
            yield from self._said.get((line.role, text), ())
        if line.role == "assistant":
            yield from self._words.get(_sorted_words(line), ())
            yield from self._beginning(letters)
            for start in range(1, _START + 1):
                for length in self._lengths.get(letters[:start], ()) if start <= len(letters) else ():
                    yield from self._equal(letters[:length])

    def _beginning(self, letters: str) -> Iterator[int]:
        """Answers that begin with these letters."""
        for found, place in self._from(letters):
            if not letters or not found.startswith(letters):
                return
            yield place

    def _equal(self, letters: str) -> Iterator[int]:
        for found, place in self._from(letters):
            if found != letters:
                return
            yield place

    def _from(self, letters: str) -> Iterator[tuple[str, int]]:
        for index in range(bisect_left(self._generated, (letters, -1)), len(self._generated)):
            yield self._generated[index]


def _sorted_words(line: Line) -> tuple[str, ...]:
    return tuple(sorted(_WORD.findall(line.text.casefold())))


def place_results(places: list[int], held: Sequence[Line], window: Sequence[Line]) -> None:
    """Gives a window's results their places, in place, where those of its other lines are known.

    A result is one of its own call's, or new. Where that call has slid out of the window, it is the last held
    one that bears the result's id before whatever the window shows next.
    """
    shown = [w for w, line in enumerate(window) if line.role == "tool"]
    if not shown:
        return
    asked, known = _callers(window), _Results(held)
    for w in shown:
        if w in asked:
            places[w] = known.first(window[w], places[asked[w]])
    end = len(held)
    for w in range(len(places) - 1, -1, -1):
        if window[w].role == "tool" and w not in asked:
            places[w] = known.last(window[w], end)
        end = places[w] if places[w] >= 0 else end


class _Results:
    """The held results that are not found yet, by their call and the id that they bear."""

    def __init__(self, held: Sequence[Line]) -> None:
        self._held = held
        self._calls: dict[str | None, list[int]] = defaultdict(list)
        self._left: dict[_Group, list[int]] = defaultdict(list)
        callers = _callers(held)
        for h, line in enumerate(held):
            for called in dict.fromkeys(_called(line)):
                self._calls[called].append(h)
            if line.role == "tool":
                self._left[callers.get(h), line.ids].append(h)

    def first(self, line: Line, caller: int) -> int:
        """The first result of a call that has the line's words, or else any; ``NEW`` where none is left."""
        left = self._left.get((caller, line.ids), [])
        equal = (i for i, h in enumerate(left) if self._held[h].text == line.text)
        return left.pop(next(equal, 0)) if left else NEW

    def last(self, line: Line, end: int) -> int:
        """The last result, before ``end``, of the last call that bears the line's id."""
        calls = self._calls.get(line.ids[-1], [])
        before = bisect_left(calls, end)
        left = self._left.get((calls[before - 1] if before else None, line.ids), [])
        at = bisect_left(left, end)
        return left.pop(at - 1) if at else NEW


def _callers(lines: Sequence[Line]) -> dict[int, int]:
    """For each result its call, the nearest before it that bears its id, where there is one."""
    calls: dict[str | None, int] = {}
    found = {}
    for i, line in enumerate(lines):
        calls |= dict.fromkeys(_called(line), i)
        if line.role == "tool" and line.ids[-1] in calls:
            found[i] = calls[line.ids[-1]]
    return found


def _called(line: Line) -> tuple[str | None, ...]:
    return line.ids[:-1] if line.role == "call" else ()
