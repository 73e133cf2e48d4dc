"""The last hour in minutes: counts of turns, their states and the times to their first tokens."""

import math
from collections import deque
from collections.abc import Sequence
from typing import Final

from proxy.observe.observation import TurnReport

_MINUTES: Final = 60
_STEP: Final = 1.25
_BINS: Final = 64
_SHORTEST: Final = 0.0001


class MinuteStats:
    """Counts of one minute; ``start`` is in seconds since 1970, ``first_tokens`` a histogram."""

    __slots__ = ("first_tokens", "start", "states", "turns")

    def __init__(self, start: int) -> None:
        self.start = start
        self.turns = 0
        self.states: dict[str, int] = {}
        self.first_tokens = [0] * _BINS

    def first_token(self, share: float) -> float | None:
        """The quantile ``share`` of the times to the first token in seconds, 12 % off at most."""
        least = share * sum(self.first_tokens)
        total = 0
        for place, count in enumerate(self.first_tokens):
            total += count
            if count and total >= least:
                return float(_SHORTEST * _STEP ** (place + 0.5))
        return None


class Hour:
    """The stats of the last sixty minutes, by tenant."""

    def __init__(self) -> None:
        self._minutes: dict[str, deque[MinuteStats]] = {}

    def add(self, now: float, turn: TurnReport) -> None:
        """Counts a turn of its tenant that ended at ``now``."""
        start = int(now) // 60 * 60
        minutes = self._minutes.setdefault(turn.tenant, deque(maxlen=_MINUTES))
        while minutes and minutes[-1].start > start:  # the clock was set back
            minutes.pop()
        if not minutes or minutes[-1].start < start:
            minutes.append(MinuteStats(start))
        minute, state, seconds = minutes[-1], turn.state, turn.first_token
        minute.turns += 1
        minute.states[state] = minute.states.get(state, 0) + 1
        if seconds is not None:
            place = int(math.log(seconds / _SHORTEST, _STEP)) if seconds > _SHORTEST else 0
            minute.first_tokens[min(place, _BINS - 1)] += 1

    def minutes(self, now: float, tenant: str) -> Sequence[MinuteStats]:
        """A tenant's last sixty minutes, the present one last; those without turns are empty."""
        by_start = {minute.start: minute for minute in self._minutes.get(tenant, ())}
        last = int(now) // 60 * 60
        starts = range(last - 60 * (_MINUTES - 1), last + 60, 60)
        return [by_start.get(start) or MinuteStats(start) for start in starts]
