"""How much each key may ask for: requests and tokens in a minute, and turns at once."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec
from limits import RateLimitItemPerMinute
from limits.aio.storage import Storage
from limits.aio.strategies import FixedWindowRateLimiter

from proxy.admission.counts import OwnCounts
from proxy.edge.reply import Reply
from proxy.errors import LimitExceeded
from proxy.memory.faults import StoreError
from proxy.telemetry.usage import usage_of

_REST = 1.0
_BYTES_OF_A_TOKEN = 4
_log = logging.getLogger("turnkeeper")


class Allowance(msgspec.Struct, frozen=True):
    """What one key may have; 0 is no limit."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    concurrent_streams: int = 0


class Left(NamedTuple):
    """One limit: how much of it is left, and for how many seconds until all of it is there again."""

    limit: int
    remaining: int
    reset: float


class Quota:
    """Counts by tenant, the name of a key, in windows of a minute that begin with their first request.

    Counts may be shared with other servers; turns at once are this process's own. Where ``storage`` fails,
    or takes longer than ``deadline`` seconds if there is one, everybody is let in; it is asked again after a
    second.
    """

    def __init__(
        self,
        limits: Allowance,
        storage: Storage | None = None,
        *,
        deadline: float | None = None,
        refused: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._limits = limits
        self._deadline = deadline
        self._storage = storage or OwnCounts()
        self._windows = FixedWindowRateLimiter(self._storage)
        self._requests = RateLimitItemPerMinute(limits.requests_per_minute or 1, namespace="requests")
        self._tokens = RateLimitItemPerMinute(limits.tokens_per_minute or 1, namespace="tokens")
        self._refused = refused
        self._open: Counter[str] = Counter()
        self._rests_until = 0.0
        self._spending: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def turn(self, tenant: str, asked: int, reply: Reply) -> AsyncIterator[None]:
        """Admits a turn of ``asked`` bytes, for as long as it is entered, and counts what it took.

        Raises LimitExceeded. The answer's headers say what is left.
        """
        self._take_place(tenant)
        try:
            await self._admit(tenant, reply)
            yield
        finally:
            self._open[tenant] -= 1
            if self._limits.tokens_per_minute and reply.watch.sent:
                self._spend(tenant, _taken(reply, asked))

    async def aclose(self) -> None:
        """Counts what is yet to be counted, then lets the storage go."""
        await asyncio.gather(*self._spending)
        close: Callable[[], Awaitable[None]] | None = getattr(self._storage, "aclose", None)
        if close:
            await close()

    def _take_place(self, tenant: str) -> None:
        # Taken before anybody is waited for: of a burst, all would find the same place free.
        most = self._limits.concurrent_streams
        if most and self._open[tenant] >= most:
            self._refuse("streams", f"This key may have {most} answers at once.", 1.0)
        self._open[tenant] += 1

    async def _admit(self, tenant: str, reply: Reply) -> None:
        left = await self._asked(tenant, reply)
        for kind, each in left.items():
            reply.add(f"x-ratelimit-limit-{kind}", str(each.limit))
            reply.add(f"x-ratelimit-remaining-{kind}", str(max(0, each.remaining)))
            reply.add(f"x-ratelimit-reset-{kind}", duration(each.reset))
        for kind, each in left.items():
            if each.remaining < 0:
                self._refuse(kind, f"This key may have {each.limit} {kind} in a minute.", each.reset)

    async def _asked(self, tenant: str, reply: Reply) -> dict[str, Left]:
        """What is left once this request has been counted; nothing where nobody can tell."""
        if time.monotonic() >= self._rests_until:
            try:
                async with asyncio.timeout(self._deadline):
                    return dict(await asyncio.gather(*self._counted(tenant)))
            except (StoreError, TimeoutError) as error:
                self._rests_until = time.monotonic() + _REST
                _log.warning("Limits are not kept now: %s", str(error) or "nobody counts in time")
        reply.degraded("limits")
        return {}

    def _counted(self, tenant: str) -> Iterator[Awaitable[tuple[str, Left]]]:
        if self._limits.requests_per_minute:
            yield self._left("requests", self._requests, tenant, cost=1)
        if self._limits.tokens_per_minute:
            yield self._left("tokens", self._tokens, tenant, cost=0)

    async def _left(
        self, kind: str, item: RateLimitItemPerMinute, tenant: str, *, cost: int
    ) -> tuple[str, Left]:
        within = not cost or await self._windows.hit(item, tenant, cost=cost)
        reset, remaining = await self._windows.get_window_stats(item, tenant)
        within = within and (cost > 0 or remaining > 0)
        return kind, Left(item.amount, remaining if within else -1, max(0.0, reset - time.time()))

    def _refuse(self, kind: str, message: str, after: float) -> None:
        self._refused(kind)
        raise LimitExceeded(message, kind=kind, retry_after=after)

    def _spend(self, tenant: str, tokens: int) -> None:
        task = asyncio.get_running_loop().create_task(self._spent(tenant, tokens))
        self._spending.add(task)
        task.add_done_callback(self._spending.discard)

    async def _spent(self, tenant: str, tokens: int) -> None:
        try:
            await self._windows.hit(self._tokens, tenant, cost=tokens)
        except StoreError as error:
            _log.warning("%d tokens were not counted: %s", tokens, error)


def duration(seconds: float) -> str:
    """A length of time as OpenAI's headers have it: 120ms, 8.64s, 6m0s."""
    milliseconds = round(seconds * 1000)
    if milliseconds < 1000:  # noqa: PLR2004
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes}m{rest // 1000}s" if minutes else f"{rest / 1000:g}s"


def _taken(reply: Reply, asked: int) -> int:
    """The upstream's own count, or a guess: four bytes of a prompt are a token, and so is each piece sent."""
    counted = usage_of(reply.watch.sent)
    if counted.input is not None or counted.output is not None:
        return (counted.input or 0) + (counted.output or 0)
    return asked // _BYTES_OF_A_TOKEN + len(reply.watch.sent)
