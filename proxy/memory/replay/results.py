"""Which replayed tool result is which held one: a result goes with its call."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence

from proxy.memory.replay.line import NEW, Line

_Group = tuple[int | None, tuple[str | None, ...]]


def paired(places: list[int], held: Sequence[Line], window: Sequence[Line]) -> None:
    """Gives a window's results their places, in place, where those of its other lines are known.

    A result is one of its own call's, or new. Where that call has slid out of the window, it is the last held
    one that bears the result's id before whatever the window shows next.
    """
    shown = [w for w, line in enumerate(window) if line.lane == "tool"]
    if not shown:
        return
    asked, known = _callers(window), _Results(held)
    for w in shown:
        if w in asked:
            places[w] = known.first(window[w], places[asked[w]])
    end = len(held)
    for w in range(len(places) - 1, -1, -1):
        if window[w].lane == "tool" and w not in asked:
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
            if line.lane == "tool":
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
        if line.lane == "tool" and line.ids[-1] in calls:
            found[i] = calls[line.ids[-1]]
    return found


def _called(line: Line) -> tuple[str | None, ...]:
    return line.ids[:-1] if line.lane == "call" else ()
