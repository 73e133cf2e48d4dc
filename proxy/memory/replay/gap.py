"""What stands between two fixed points: the likeliest pairs of replayed and held lines, in order."""

from collections.abc import Sequence
from typing import Final

from proxy.memory.replay.kin import Kin, kin_of
from proxy.memory.replay.line import Line

# What it costs to pass over a line: one that is replayed, one that is held, and both behind the last match,
# where new lines are to be expected and answers wait for their replay.
_REPLAYED, _HELD, _NEXT, _WAITING = 6, 5, 2, 3
# A window with more words of the user than a cut session has left shows older lines first. Were they dearer
# than new ones, a long history would be taken for new, behind the first of its lines that happen to be equal.
_OLDER: Final = _NEXT

Pair = tuple[int, int]


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
