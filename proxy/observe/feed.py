"""The live feed of turns, which never waits for a subscriber."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Final

import msgspec

from proxy.clock import wall_time
from proxy.observe.observation import Excerpt, State, TurnReport

_MOST_RECENT: Final = 200
_MOST_BEHIND: Final = 500


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One turn in the API, without its text. ``at`` is in seconds since 1970."""

    id: str
    request: str
    session: str | None
    user: str | None
    turn_id: int | None = msgspec.field(name="turn")
    model: str | None
    pipeline: str
    state: State
    status: int
    code: str | None
    degraded: Sequence[str]
    first_token_ms: float | None
    duration_ms: float
    at: float

    @classmethod
    def of(cls, turn: TurnReport) -> "Event":
        """Makes the event for a turn."""
        first = turn.first_token
        return cls(
            id=turn.id,
            request=turn.request,
            session=turn.session,
            user=turn.user,
            turn_id=turn.turn_id,
            model=turn.model,
            pipeline=turn.pipeline,
            state=turn.state,
            status=turn.status,
            code=turn.code,
            degraded=turn.degraded,
            first_token_ms=None if first is None else round(first * 1000, 1),
            duration_ms=round(turn.duration * 1000, 1),
            at=turn.at,
        )


class _Published(msgspec.Struct, frozen=True, gc=False):
    """A turn, when it was published by ``time.perf_counter``, and whether it may have an excerpt."""

    turn: TurnReport
    at: float
    may_have_excerpt: bool = True

    @property
    def arrival(self) -> float:
        """The arrival in seconds since 1970, corrected if the clock was set back since."""
        return min(self.turn.at, wall_time() - (time.perf_counter() - self.at + self.turn.duration))

    def without_excerpt(self) -> "_Published":
        """The turn without its excerpt."""
        bare = self.turn if self.turn.excerpt is None else msgspec.structs.replace(self.turn, excerpt=None)
        return _Published(bare, self.at, may_have_excerpt=False)


class Feed:
    """The newest turns of each tenant, and subscriptions to later ones.

    It keeps the last 200 reports of all tenants together, the newest of them with excerpts. A subscriber that
    is 500 events behind misses the oldest.
    """

    def __init__(self) -> None:
        self._recent: deque[_Published] = deque(maxlen=_MOST_RECENT)
        self._excerpts = _MOST_RECENT
        self.subscribers: set[_Subscriber] = set()
        self._closed = False

    def publish(self, turn: TurnReport, *, keep: bool = True) -> None:
        """Sends a turn to its tenant's subscribers; with ``keep``, later ones get it too if it has ended."""
        published = _Published(turn, time.perf_counter())
        if keep and turn.outcome is not None:
            self._recent.append(published)
            if len(self._recent) > self._excerpts:  # the oldest excerpt is one too many
                oldest = len(self._recent) - 1 - self._excerpts
                if self._recent[oldest].turn.excerpt is not None:
                    self._recent[oldest] = self._recent[oldest].without_excerpt()
        for subscriber in self.subscribers:
            subscriber.add(published)

    def include(self, turns: Iterable[TurnReport]) -> None:
        """Adds turns that have ended in other processes, for later readers."""
        ids = {each.turn.id for each in self._recent}
        now = time.perf_counter()
        others = [_Published(turn, now) for turn in turns if turn.id not in ids]
        if others:
            newest = sorted((*self._recent, *others), key=lambda each: each.turn.at)
            self._recent = deque(newest, maxlen=_MOST_RECENT)
            self.keep_excerpts(self._excerpts)

    def newest(self, tenant: str) -> Iterator[TurnReport]:
        """A tenant's turns that have ended, the newest first."""
        return (each.turn for each in reversed(self._recent) if each.turn.tenant == tenant)

    def oldest(self) -> Mapping[str, float]:
        """The arrival of each tenant's oldest turn, in seconds since 1970."""
        oldest: dict[str, float] = {}
        for each in self._recent:
            tenant = each.turn.tenant
            oldest[tenant] = min(each.arrival, oldest.get(tenant, each.arrival))
        return oldest

    def remove(self, tenant: str, matches: Callable[[TurnReport, float], bool]) -> None:
        """Removes a tenant's turns whose report and arrival match."""

        def stays(each: _Published) -> bool:
            return each.turn.tenant != tenant or not matches(each.turn, each.arrival)

        self._recent = deque(filter(stays, self._recent), maxlen=_MOST_RECENT)
        for subscriber in self.subscribers:
            subscriber.retain(stays)

    def add_excerpts(self, excerpt: Callable[[TurnReport], Excerpt | None]) -> None:
        """Adds excerpts to turns that were published without one, since few turns are ever read."""
        for place in range(max(0, len(self._recent) - self._excerpts), len(self._recent)):
            each = self._recent[place]
            if each.turn.excerpt is None and each.may_have_excerpt:
                turn = msgspec.structs.replace(each.turn, excerpt=excerpt(each.turn))
                self._recent[place] = _Published(turn, each.at)

    def keep_excerpts(self, count: int) -> None:
        """Keeps excerpts of the newest ``count`` turns only, from now on."""
        self._excerpts = count
        last = len(self._recent) - count
        self._without_excerpts(lambda place, _: place < last)

    def remove_excerpts(self, tenant: str, session: str | None) -> None:
        """Removes the excerpts of a session's turns."""
        self._without_excerpts(lambda _, turn: turn.tenant == tenant and turn.session == session)

    def _without_excerpts(self, matches: Callable[[int, TurnReport], bool]) -> None:
        for place, each in enumerate(self._recent):
            if each.may_have_excerpt and matches(place, each.turn):
                self._recent[place] = each.without_excerpt()

    async def subscribe(self, tenant: str) -> AsyncIterator[Event]:
        """A tenant's turns as events, each from its first token on."""
        async with aclosing(self.reports(tenant)) as turns:
            async for turn in turns:
                if turn.outcome is not None or turn.first_token is not None:
                    yield Event.of(turn)

    async def reports(self, tenant: str) -> AsyncGenerator[TurnReport]:
        """Yields a tenant's newest turns, then all later ones, until the feed is closed."""
        subscriber = _Subscriber(tenant, closed=self._closed)
        for each in self._recent:
            subscriber.add(each)
        self.subscribers.add(subscriber)
        try:
            while (turn := await subscriber.next()) is not None:
                yield turn
        finally:
            self.subscribers.discard(subscriber)

    def close(self) -> None:
        """Ends all subscriptions after the turns that were already published."""
        self._closed = True
        for subscriber in self.subscribers:
            subscriber.close()


class _Subscriber:
    """One subscriber, and the turns that it has not read yet."""

    def __init__(self, tenant: str, *, closed: bool) -> None:
        self._tenant = tenant
        self._closed = closed
        self._ahead: deque[_Published] = deque(maxlen=_MOST_BEHIND)
        self._news = asyncio.Event()

    def add(self, published: _Published) -> None:
        if published.turn.tenant == self._tenant:
            self._ahead.append(published)
            self._news.set()

    def retain(self, stays: Callable[[_Published], bool]) -> None:
        self._ahead = deque(filter(stays, self._ahead), maxlen=_MOST_BEHIND)

    def close(self) -> None:
        self._closed = True
        self._news.set()

    async def next(self) -> TurnReport | None:
        while not self._ahead:
            if self._closed:
                return None
            self._news.clear()
            await self._news.wait()
        return self._ahead.popleft().turn
