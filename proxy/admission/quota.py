"""Requests and tokens of a minute, by tenant, as one place counts them."""

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import msgspec

from proxy.errors import LimitExceeded
from proxy.http.reply import Reply
from proxy.memory.errors import StoreError
from proxy.memory.stores.counts import Counts, OwnCounts
from proxy.memory.tasks import wait_for
from proxy.observe.observation import usage_of

_MINUTE: Final = 60.0
_REST: Final = 1.0
_LONGEST_REST: Final = 60.0
_SOON: Final = 60.0
_log: Final = logging.getLogger("turnkeeper")
_BYTES_OF_A_TOKEN = 4


class RateLimits(msgspec.Struct, frozen=True):
    """What one key may have; 0 is no limit."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    concurrent_streams: int = 0


class Remaining(NamedTuple):
    """One limit: how much of it is left, and for how many seconds until all of it is there again."""

    limit: int
    remaining: int
    reset: float


class Windows:
    """Windows of a minute that begin with their first request. Raises StoreError where ``counts`` does."""

    def __init__(self, limits: RateLimits, counts: Counts) -> None:
        self._limits = limits
        self._counts = counts

    async def count_request(self, tenant: str) -> dict[str, Remaining]:
        """What is left of each limit, once this request has been counted."""
        requests, tokens = self._limits.requests_per_minute, self._limits.tokens_per_minute
        asked = {}
        if requests:
            asked["requests"] = self._left("requests", tenant, requests, cost=1)
        if tokens:
            asked["tokens"] = self._left("tokens", tenant, tokens, cost=0)
        return dict(zip(asked, await asyncio.gather(*asked.values()), strict=True))

    async def add_tokens(self, tenant: str, tokens: int) -> None:
        """So many tokens have been taken; none asks whether there is somebody who counts."""
        await self._counts.add(_key("tokens", tenant), tokens, lasting=_MINUTE)

    async def aclose(self) -> None:
        """Lets the counts go."""
        await self._counts.aclose()

    async def _left(self, kind: str, tenant: str, limit: int, *, cost: int) -> Remaining:
        number, reset = await self._counts.add(_key(kind, tenant), cost, lasting=_MINUTE)
        remaining = limit - number
        # What this request costs has been counted; of what it will cost there must be something left.
        within = remaining >= 0 if cost else remaining > 0
        return Remaining(limit, remaining if within else -1, reset)


def _key(kind: str, tenant: str) -> str:
    return f"{kind}/{tenant}"


class FallbackWindows:
    """Counts in the process where ``shared`` is ``None``, and for as long as that fails.

    It has failed where it raises StoreError, or takes longer than ``deadline`` seconds if there is one. It
    is then asked every ``rest`` seconds, beside the calls, until it counts again; where it fails again
    within a minute it has twice the rest, up to a minute, so that it does not come and go all the time.
    """

    def __init__(
        self,
        limits: RateLimits,
        shared: Counts | None,
        *,
        deadline: float | None = None,
        rest: float = _REST,
    ) -> None:
        self._own = Windows(limits, OwnCounts())
        self._shared = Windows(limits, shared) if shared else None
        self._deadline = deadline
        self._probe: asyncio.Task[None] | None = None
        self._rest = self._shortest = rest
        self._back = -math.inf

    @property
    def is_alone(self) -> bool:
        """Whether this process counts by itself what all servers should count together."""
        return self._probe is not None and not self._probe.done()

    async def count_request(self, tenant: str) -> dict[str, Remaining]:
        """What is left of each limit, once this request has been counted."""
        if self._shared and not self.is_alone:
            try:
                return await wait_for(self._shared.count_request(tenant), self._deadline)
            except (StoreError, TimeoutError) as error:
                self._fails(self._shared, tenant, error)
        return await self._own.count_request(tenant)

    async def add_tokens(self, tenant: str, tokens: int) -> None:
        """So many tokens have been taken."""
        if self._shared and not self.is_alone:
            try:
                await self._shared.add_tokens(tenant, tokens)
            except StoreError as error:
                self._fails(self._shared, tenant, error)
            else:
                return
        await self._own.add_tokens(tenant, tokens)

    async def aclose(self) -> None:
        """Ends the probe, then lets the counts go."""
        if self._probe:
            self._probe.cancel()
            await asyncio.wait({self._probe})
        if self._shared:
            await self._shared.aclose()

    def _fails(self, shared: Windows, tenant: str, error: Exception) -> None:
        if not self.is_alone:
            _log.warning(
                "Limits are counted in this process alone: %s", str(error) or "nobody counts in time"
            )
            came_and_went = time.monotonic() < self._back + _SOON
            self._rest = min(2 * self._rest, _LONGEST_REST) if came_and_went else self._shortest
            self._probe = asyncio.create_task(self._watch(shared, tenant))

    async def _watch(self, shared: Windows, tenant: str) -> None:
        """Until it counts for the tenant that it failed for: of a cluster, others may be well."""
        while True:
            await asyncio.sleep(self._rest)
            if await self._counts(shared, tenant):
                self._back = time.monotonic()
                _log.warning("Limits are counted on Redis again")
                return

    async def _counts(self, shared: Windows, tenant: str) -> bool:
        try:
            await wait_for(shared.add_tokens(tenant, 0), self._deadline)
        except (StoreError, TimeoutError):
            return False
        return True


class Quota:
    """Counts by tenant, the name of a key, in windows of a minute that begin with their first request.

    Counts may be shared with other servers; turns at once are this process's own. Where ``counts`` fail,
    or take longer than ``deadline`` seconds if there is one, this process counts alone until they are back.
    """

    def __init__(
        self,
        limits: RateLimits,
        counts: Counts | None = None,
        *,
        deadline: float | None = None,
        refused: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._limits = limits
        self._tally = FallbackWindows(limits, counts, deadline=deadline)
        self._refused = refused
        self._open: Counter[str] = Counter()
        self._spending: set[asyncio.Task[None]] = set()

    @property
    def degraded(self) -> bool:
        """Whether this process counts alone what all servers should count together."""
        return self._tally.is_alone

    @asynccontextmanager
    async def admit(self, tenant: str, asked: int, reply: Reply) -> AsyncIterator[None]:
        """Admits a turn of ``asked`` bytes, for as long as it is entered, and counts what it took.

        Raises LimitExceeded. The answer's headers say what is left.
        """
        self._take_place(tenant)
        try:
            await self._admit(tenant, reply)
            yield
        finally:
            self._open[tenant] -= 1
            if self._limits.tokens_per_minute and reply.observation.chunks:
                self._spend(tenant, _taken(reply, asked))

    async def aclose(self) -> None:
        """Counts what is yet to be counted, then lets the counts go."""
        await asyncio.gather(*self._spending)
        await self._tally.aclose()

    def _take_place(self, tenant: str) -> None:
        # Taken before anybody is waited for: of a burst, all would find the same place free.
        most = self._limits.concurrent_streams
        if most and self._open[tenant] >= most:
            self._refuse("streams", f"This key may have {most} answers at once.", 1.0)
        self._open[tenant] += 1

    async def _admit(self, tenant: str, reply: Reply) -> None:
        left = await self._tally.count_request(tenant)
        if self._tally.is_alone:
            reply.add_degraded("limits")
        for kind, each in left.items():
            reply.add_header(f"x-ratelimit-limit-{kind}", str(each.limit))
            reply.add_header(f"x-ratelimit-remaining-{kind}", str(max(0, each.remaining)))
            reply.add_header(f"x-ratelimit-reset-{kind}", duration(each.reset))
        for kind, each in left.items():
            if each.remaining < 0:
                self._refuse(kind, f"This key may have {each.limit} {kind} in a minute.", each.reset)

    def _refuse(self, kind: str, message: str, after: float) -> None:
        self._refused(kind)
        raise LimitExceeded(message, kind=kind, retry_after=after)

    def _spend(self, tenant: str, tokens: int) -> None:
        task = asyncio.get_running_loop().create_task(self._tally.add_tokens(tenant, tokens))
        self._spending.add(task)
        task.add_done_callback(self._spending.discard)


def duration(seconds: float) -> str:
    """A length of time as OpenAI's headers have it: 120ms, 8.64s, 6m0s."""
    milliseconds = round(seconds * 1000)
    if milliseconds < 1000:  # noqa: PLR2004
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes}m{rest // 1000}s" if minutes else f"{rest / 1000:g}s"


def _taken(reply: Reply, asked: int) -> int:
    """The upstream's own count, or a guess: four bytes of a prompt are a token, and so is each piece sent."""
    counted = usage_of(reply.observation.chunks)
    if counted.input is not None or counted.output is not None:
        return (counted.input or 0) + (counted.output or 0)
    return asked // _BYTES_OF_A_TOKEN + len(reply.observation.chunks)
