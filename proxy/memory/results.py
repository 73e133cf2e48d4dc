"""Which replayed tool result is which held one: a result goes with its call."""

from collections.abc import Sequence

from proxy.memory.line import NEW, Line


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
    """The held results that are not found yet."""

    def __init__(self, held: Sequence[Line]) -> None:
        self._held = held
        self._callers = _callers(held)
        self._left = [h for h, line in enumerate(held) if line.lane == "tool"]

    def first(self, line: Line, caller: int) -> int:
        """The first result of a call that has the line's words, or else any; ``NEW`` where none is left."""
        fitting = [h for h in self._left if self._callers.get(h) == caller and _answers(line, self._held[h])]
        equal = [h for h in fitting if self._held[h].text == line.text]
        return self._taken((equal or fitting)[:1])

    def last(self, line: Line, end: int) -> int:
        """The last result, before ``end``, of the last call that bears the line's id."""
        calls = (h for h in range(end - 1, -1, -1) if line.ids[-1] in _called(self._held[h]))
        caller = next(calls, None)
        fitting = (h for h in self._left if self._callers.get(h) == caller and h < end)
        return self._taken([h for h in fitting if _answers(line, self._held[h])][-1:])

    def _taken(self, found: list[int]) -> int:
        for h in found:
            self._left.remove(h)
        return found[0] if found else NEW


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


def _answers(line: Line, held: Line) -> bool:
    return line.ids == held.ids
