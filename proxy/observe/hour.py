"""The last hour in minutes: how many turns there were, how they ended, and how long first tokens took."""

import math
from collections import deque
from collections.abc import Sequence

from proxy.observe.observation import TurnReport

_MINUTES = 60
_STEP = 1.25
_BINS = 64
_SHORTEST = 0.0001


class MinuteStats:
    """Counts of one minute; ``start`` is in seconds since 1970."""

    __slots__ = ("first_tokens", "start", "states", "turns")

    def __init__(self, start: int) -> None:
        self.start = start
        self.turns = 0
        self.states: dict[str, int] = {}
        self.first_tokens = [0] * _BINS

    def first_token(self, share: float) -> float | None:
        """The seconds within which this share of the minute's first tokens came, 12 % off at most."""
        wanted = share * sum(self.first_tokens)
        seen = 0
        for place, count in enumerate(self.first_tokens):
            seen += count
            if count and seen >= wanted:
                return float(_SHORTEST * _STEP ** (place + 0.5))
        return None


class Hour:
    """One minute after another, for each tenant; the oldest is let go."""

    def __init__(self) -> None:
        self._minutes: dict[str, deque[MinuteStats]] = {}

    def add(self, now: float, account: TurnReport) -> None:
        """Counts a turn that ended at ``now``, for its tenant."""
        minute = self._at(int(now) // 60 * 60, account.tenant)
        minute.turns += 1
        state = account.state
        minute.states[state] = minute.states.get(state, 0) + 1
        if account.first_token is not None:
            minute.first_tokens[_bin(account.first_token)] += 1

    def minutes(self, now: float, tenant: str) -> Sequence[MinuteStats]:
        """The last sixty minutes of a tenant, the present one last; those without turns are empty."""
        there = {minute.start: minute for minute in self._minutes.get(tenant, ())}
        last = int(now) // 60 * 60
        starts = range(last - 60 * (_MINUTES - 1), last + 60, 60)
        return [there.get(start) or MinuteStats(start) for start in starts]

    def _at(self, start: int, tenant: str) -> MinuteStats:
        minutes = self._minutes.setdefault(tenant, deque(maxlen=_MINUTES))
        while minutes and minutes[-1].start > start:  # the clock was set back: nobody would look there
            minutes.pop()
        if not minutes or minutes[-1].start < start:
            minutes.append(MinuteStats(start))
        return minutes[-1]


def _bin(seconds: float) -> int:
    if seconds <= _SHORTEST:
        return 0
    return min(_BINS - 1, int(math.log(seconds / _SHORTEST, _STEP)))
