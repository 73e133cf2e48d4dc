"""Turns as they go by, for whoever looks on: a broadcast that waits for nobody and keeps little."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping

import msgspec

from proxy.observe.observation import State, TurnReport

_KEPT = 200
_BEHIND = 500


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One turn, as an onlooker sees it: no word of what was said. ``at`` is in seconds since 1970."""

    id: str
    request: str
    session: str | None
    user: str | None
    turn: int | None
    model: str | None
    pipeline: str
    state: State
    status: int
    code: str | None
    degraded: tuple[str, ...]
    first_token_ms: float | None
    duration_ms: float
    at: float

    @classmethod
    def of(cls, account: TurnReport) -> "Event":
        """What an onlooker sees of an account."""
        first = account.first_token
        return cls(
            id=account.id,
            request=account.request,
            session=account.session,
            user=account.user,
            turn=account.turn,
            model=account.model,
            pipeline=account.pipeline,
            state=account.state,
            status=account.status,
            code=account.code,
            degraded=account.degraded,
            first_token_ms=None if first is None else round(first * 1000, 1),
            duration_ms=round(account.duration * 1000, 1),
            at=account.at,
        )


class _Passed(msgspec.Struct, frozen=True, gc=False):
    """A turn that went by; ``told`` is when, by ``time.perf_counter``."""

    account: TurnReport
    told: float

    @property
    def arrived(self) -> float:
        """When it arrived, in seconds since 1970, as the clock counts that now: it may have been set back."""
        since = time.perf_counter() - self.told + self.account.duration
        return min(self.account.at, time.time() - since)


class Feed:
    """The newest turns of each tenant's, and those to come.

    It keeps the last 200 accounts of all tenants together. An onlooker who falls 500 events behind misses
    the oldest; nobody waits for one.
    """

    def __init__(self) -> None:
        self._recent: deque[_Passed] = deque(maxlen=_KEPT)
        self._onlookers: set[_Onlooker] = set()
        self._closed = False

    @property
    def has_subscribers(self) -> bool:
        """Whether anyone looks on."""
        return bool(self._onlookers)

    def publish(self, account: TurnReport, *, keep: bool = True) -> None:
        """Shows a turn to whoever looks on under its tenant, and with ``keep``, to who comes later."""
        passed = _Passed(account, time.perf_counter())
        if keep and account.outcome is not None:
            self._recent.append(passed)
        for onlooker in self._onlookers:
            onlooker.show(passed)

    def newest(self, tenant: str) -> Iterator[TurnReport]:
        """A tenant's turns that have ended, the newest first."""
        return (passed.account for passed in reversed(self._recent) if passed.account.tenant == tenant)

    def oldest(self) -> Mapping[str, float]:
        """When the oldest turn arrived that is kept of each tenant, in seconds since 1970."""
        found: dict[str, float] = {}
        for passed in self._recent:
            tenant = passed.account.tenant
            found[tenant] = min(passed.arrived, found.get(tenant, passed.arrived))
        return found

    def remove(self, tenant: str, goes: Callable[[TurnReport, float], bool]) -> None:
        """Nobody is shown some of a tenant's turns from now on: each is told by its account and arrival."""

        def stays(passed: _Passed) -> bool:
            return passed.account.tenant != tenant or not goes(passed.account, passed.arrived)

        self._recent = deque(filter(stays, self._recent), maxlen=_KEPT)
        for onlooker in self._onlookers:
            onlooker.keep(stays)

    async def subscribe(self, tenant: str) -> AsyncIterator[Event]:
        """A tenant's newest turns, then what follows, until the feed is closed."""
        onlooker = _Onlooker(tenant, gone=self._closed)
        for passed in self._recent:
            onlooker.show(passed)
        self._onlookers.add(onlooker)
        try:
            while (shown := await onlooker.next()) is not None:
                yield Event.of(shown)
        finally:
            self._onlookers.discard(onlooker)

    def close(self) -> None:
        """Everybody goes home."""
        self._closed = True
        for onlooker in self._onlookers:
            onlooker.leave()


class _Onlooker:
    """One who looks on, and the turns not looked at yet."""

    def __init__(self, tenant: str, *, gone: bool) -> None:
        self._tenant = tenant
        self._gone = gone
        self._ahead: deque[_Passed] = deque(maxlen=_BEHIND)
        self._news = asyncio.Event()

    def show(self, passed: _Passed) -> None:
        if passed.account.tenant == self._tenant:
            self._ahead.append(passed)
            self._news.set()

    def keep(self, stays: Callable[[_Passed], bool]) -> None:
        self._ahead = deque(filter(stays, self._ahead), maxlen=_BEHIND)

    def leave(self) -> None:
        self._gone = True
        self._news.set()

    async def next(self) -> TurnReport | None:
        while not self._ahead:
            if self._gone:
                return None
            self._news.clear()
            await self._news.wait()
        return self._ahead.popleft().account
