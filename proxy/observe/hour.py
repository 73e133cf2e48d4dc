"""Statistics of the last hour by minute: turns, their states and tokens, and durations."""

import math
import operator
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import Final

from proxy.observe.observation import TurnReport

_MINUTES: Final = 60
_STEP: Final = 1.25
_BINS: Final = 64
_SHORTEST: Final = 0.0001


class Histogram:
    """``counts`` of durations in bins, each a quarter longer than the one before, from 0.1 ms on."""

    __slots__ = ("counts",)

    def __init__(self, parts: Iterable["Histogram"] = ()) -> None:
        self.counts = [0] * _BINS
        for part in parts:
            self.counts = [*map(operator.add, self.counts, part.counts)]

    def add(self, seconds: float) -> None:
        """Counts a duration in seconds."""
        place = int(math.log(seconds / _SHORTEST, _STEP)) if seconds > _SHORTEST else 0
        self.counts[min(place, _BINS - 1)] += 1

    def quantile(self, share: float) -> float | None:
        """The quantile ``share`` in seconds, within 12 %; ``None`` where nothing was counted."""
        least = share * sum(self.counts)
        total = 0
        for place, count in enumerate(self.counts):
            total += count
            if count and total >= least:
                return float(_SHORTEST * _STEP ** (place + 0.5))
        return None


class MinuteStats:
    """The statistics of one minute, which starts at ``start``, in seconds since 1970.

    ``first_token`` is the time from a request to its first token: ``added`` is the proxy's own part of it
    before an upstream is asked, and ``upstreams`` the rest, by upstream. Tokens are those that upstreams
    report.
    """

    __slots__ = ("added", "cached", "first_token", "input", "output", "start", "states", "turns", "upstreams")

    def __init__(self, start: int) -> None:
        self.start = start
        self.turns = self.input = self.cached = self.output = 0
        self.states: dict[str, int] = {}
        self.first_token, self.added = Histogram(), Histogram()
        self.upstreams: dict[str, Histogram] = {}

    def add(self, turn: TurnReport) -> None:
        """Counts a turn."""
        self.turns += 1
        state = turn.state
        self.states[state] = self.states.get(state, 0) + 1
        self.input += turn.input_tokens or 0
        self.cached += turn.cached_tokens or 0
        self.output += turn.output_tokens or 0
        if turn.first_token is not None:
            self.first_token.add(turn.first_token)
        if turn.upstream is None:
            return
        added = turn.overhead
        self.added.add(added)
        if turn.first_token is not None:
            if turn.upstream not in self.upstreams:
                self.upstreams[turn.upstream] = Histogram()
            self.upstreams[turn.upstream].add(turn.first_token - added)


class Hour:
    """The statistics of the last sixty minutes, by tenant."""

    def __init__(self) -> None:
        self._minutes: defaultdict[str, deque[MinuteStats]] = defaultdict(lambda: deque(maxlen=_MINUTES))

    def add(self, now: float, turn: TurnReport) -> None:
        """Counts a turn that ended at ``now``, in seconds since 1970."""
        start = int(now) // 60 * 60
        minutes = self._minutes[turn.tenant]
        while minutes and minutes[-1].start > start:  # the clock was set back
            minutes.pop()
        if not minutes or minutes[-1].start < start:
            minutes.append(MinuteStats(start))
        minutes[-1].add(turn)

    def minutes(self, now: float, tenant: str) -> Sequence[MinuteStats]:
        """A tenant's last sixty minutes, the current one last; those without turns are empty."""
        by_start = {minute.start: minute for minute in self._minutes.get(tenant, ())}
        last = int(now) // 60 * 60
        starts = range(last - 60 * (_MINUTES - 1), last + 60, 60)
        return [by_start.get(start) or MinuteStats(start) for start in starts]
