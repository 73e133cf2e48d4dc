"""Limits of API keys: requests and tokens in a minute, and answers at once."""

import asyncio
import contextlib
import itertools
import math
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple, NoReturn

import msgspec

from proxy.circuit import Backoff, Outage
from proxy.errors import LimitExceeded
from proxy.http.reply import Reply
from proxy.memory.errors import StoreError
from proxy.memory.stores.counts import Counts, LocalCounts
from proxy.memory.tasks import wait_for
from proxy.observe.observation import AnswerCopy, usage_of

_MINUTE: Final = 60.0
_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0
_SOON: Final = 60.0
_LEASE: Final = 45.0
_RENEW_EVERY: Final = 15.0
_BYTES_OF_A_TOKEN: Final = 4
_BYTES_OF_A_REQUEST: Final = 64_000


class RateLimits(msgspec.Struct, frozen=True):
    """The limits of one key; 0 is no limit."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    concurrent_streams: int = 0


class Remaining(NamedTuple):
    """What remains of one limit, and in how many seconds all of it is there again."""

    limit: int
    remaining: int
    reset: float


def weight(size: int) -> int:
    """How many requests one counts as that asks no model: one for each 64 KB of its body and answer begun."""
    return max(1, -(-size // _BYTES_OF_A_REQUEST))


class Quota:
    """Admits requests by tenant, the name of a key.

    They may be counted with other servers: an answer has a lease there, which is renewed while it lasts and
    expires within a minute of its server's death. While ``counts`` fail, or take longer than ``deadline``
    seconds if there is one, this process counts alone.
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
        self._windows = FallbackWindows(limits, counts, deadline=deadline)
        self._on_refusal = refused
        self._open: Counter[str] = Counter()
        self._lease_names = (f"{secrets.token_hex(8)}:{number}" for number in itertools.count(1))
        self._leases: dict[str, str] = {}
        self._renewing: asyncio.Task[None] | None = None
        self._has_leases = counts is not None and limits.concurrent_streams > 0
        self._spending: set[asyncio.Task[object]] = set()

    @property
    def degraded(self) -> bool:
        """Whether this process counts alone what all servers should count together."""
        return self._windows.is_alone

    @asynccontextmanager
    async def admit(self, tenant: str, size: int, reply: Reply) -> AsyncIterator[None]:
        """Admits a turn for as long as it is entered, and counts its tokens; ``size`` is its body's in bytes.

        Raises LimitExceeded. The answer's headers say what remains.
        """
        lease = self._open_answer(tenant)
        try:
            self._report(tenant, await self._windows.count_request(tenant, lease), reply)
            yield
        finally:
            self._close_answer(tenant, lease)
            if self._limits.tokens_per_minute and reply.observation.answer.count:
                self._spend(self._windows.add_tokens(tenant, _tokens(reply.observation.answer, size)))

    @asynccontextmanager
    async def admit_by_size(self, tenant: str, size: int, reply: Reply) -> AsyncIterator[None]:
        """Admits a request that asks no model, for as long as it is entered; it counts by its ``weight``.

        ``size`` is its body's in bytes; what its answer weighs beside that is counted when it has been sent.
        A request is admitted while any are left, however much it weighs. Raises LimitExceeded.
        """
        lease = self._open_answer(tenant)
        try:
            remaining = await self._windows.count_by_weight(tenant, weight(size), lease)
            self._report(tenant, remaining, reply, cost=weight(size))
            yield
        finally:
            self._close_answer(tenant, lease)
            more = weight(size + reply.size) - weight(size)
            if more:
                self._spend(self._windows.count_by_weight(tenant, more))

    async def aclose(self) -> None:
        """Counts what is yet to be counted, then closes the counts."""
        if self._renewing:
            self._renewing.cancel()
            await asyncio.wait({self._renewing})
        await asyncio.gather(*self._spending)
        await self._windows.aclose()

    def _open_answer(self, tenant: str) -> str | None:
        """The name of its lease, where other servers count it too."""
        # Counted before anything is awaited: of a burst, all would find the same room.
        limit = self._limits.concurrent_streams
        if limit and self._open[tenant] >= limit:
            self._refuse_stream()
        self._open[tenant] += 1
        if not self._has_leases:
            return None
        lease = next(self._lease_names)
        self._leases[lease] = tenant
        if self._renewing is None:
            self._renewing = asyncio.get_running_loop().create_task(self._renew())
        return lease

    def _close_answer(self, tenant: str, lease: str | None) -> None:
        self._open[tenant] -= 1
        if lease is not None:
            del self._leases[lease]
            self._spend(self._windows.free(tenant, lease))

    async def _renew(self) -> None:
        """Renews the leases, also of answers that began while this process counted alone."""
        while True:
            await asyncio.sleep(_RENEW_EVERY)
            for lease, tenant in tuple(self._leases.items()):
                if lease in self._leases:
                    await self._windows.renew(tenant, lease)
                    if lease not in self._leases:  # it may have been given back before it was renewed
                        await self._windows.free(tenant, lease)

    def _refuse_stream(self) -> NoReturn:
        limit = self._limits.concurrent_streams
        self._refuse("streams", f"This key may have {limit} answers at once.", 1.0)

    def _spend(self, counting: Coroutine[Any, Any, object]) -> None:
        task = asyncio.get_running_loop().create_task(counting)
        self._spending.add(task)
        task.add_done_callback(self._spending.discard)

    def _report(self, tenant: str, remaining: dict[str, Remaining], reply: Reply, *, cost: int = 1) -> None:
        if self._windows.is_alone:
            reply.add_degraded("limits")
        streams = remaining.pop("streams", None)
        if streams and streams.remaining < 0:
            self._spend(
                self._windows.count_by_weight(tenant, -cost)
            )  # it was counted together with its lease
            self._refuse_stream()
        for kind, each in remaining.items():
            reply.add_header(f"x-ratelimit-limit-{kind}", str(each.limit))
            reply.add_header(f"x-ratelimit-remaining-{kind}", str(max(0, each.remaining)))
            reply.add_header(f"x-ratelimit-reset-{kind}", duration(each.reset))
        for kind, each in remaining.items():
            if each.remaining < 0:
                self._refuse(kind, f"This key may have {each.limit} {kind} in a minute.", each.reset)

    def _refuse(self, kind: str, message: str, retry_after: float) -> NoReturn:
        self._on_refusal(kind)
        raise LimitExceeded(message, kind=kind, retry_after=retry_after)


class FallbackWindows:
    """Counts in the process where ``shared`` is ``None``, and while it fails.

    It fails where it raises StoreError, or takes longer than ``deadline`` seconds if there is one. It is
    then probed after ``pause`` seconds, until it counts again; where it fails again within a minute the pause
    doubles, up to a minute.
    """

    def __init__(
        self,
        limits: RateLimits,
        shared: Counts | None,
        *,
        deadline: float | None = None,
        pause: float = _PAUSE,
    ) -> None:
        self._own = Windows(limits, LocalCounts())
        self._shared = Windows(limits, shared) if shared else None
        self._deadline = deadline
        self._probe: asyncio.Task[None] | None = None
        self._backoff = Backoff(pause, _LONGEST_PAUSE)
        self._failures = 0
        self._back_at = -math.inf
        self._outage = Outage(
            "Limits are counted in this process alone: %s", "Limits are counted on Redis again"
        )

    @property
    def is_alone(self) -> bool:
        """Whether this process counts by itself what all servers should count together."""
        return self._probe is not None and not self._probe.done()

    async def count_request(self, tenant: str, lease: str | None = None) -> dict[str, Remaining]:
        """Counts a turn's request, and takes its lease; returns what remains of each limit."""
        return await self._count(tenant, lambda windows: windows.count_request(tenant, lease))

    async def count_by_weight(
        self, tenant: str, requests: int, lease: str | None = None
    ) -> dict[str, Remaining]:
        """Counts a request as so many ``requests``, and takes its lease; returns what remains of them."""
        return await self._count(tenant, lambda windows: windows.count_by_weight(tenant, requests, lease))

    async def renew(self, tenant: str, lease: str) -> None:
        """Renews a lease where it is shared."""
        if self._shared and not self.is_alone:
            try:
                await self._shared.renew(tenant, lease)
            except StoreError as error:
                self._fall_back(self._shared, tenant, error)

    async def free(self, tenant: str, lease: str) -> None:
        """Gives a lease back; where that fails it expires."""
        await self._own.free(tenant, lease)
        if self._shared and not self.is_alone:
            with contextlib.suppress(StoreError):
                await self._shared.free(tenant, lease)

    async def _count(
        self, tenant: str, count: Callable[["Windows"], Coroutine[Any, Any, dict[str, Remaining]]]
    ) -> dict[str, Remaining]:
        if self._shared and not self.is_alone:
            try:
                return await wait_for(count(self._shared), self._deadline)
            except (StoreError, TimeoutError) as error:
                self._fall_back(self._shared, tenant, error)
        return await count(self._own)

    async def add_tokens(self, tenant: str, tokens: int) -> None:
        """Counts tokens."""
        if self._shared and not self.is_alone:
            try:
                await self._shared.add_tokens(tenant, tokens)
            except StoreError as error:
                self._fall_back(self._shared, tenant, error)
            else:
                return
        await self._own.add_tokens(tenant, tokens)

    async def aclose(self) -> None:
        """Ends the probe, then closes the counts."""
        if self._probe:
            self._probe.cancel()
            await asyncio.wait({self._probe})
        if self._shared:
            await self._shared.aclose()

    def _fall_back(self, shared: "Windows", tenant: str, error: Exception) -> None:
        if not self.is_alone:
            self._outage.begin(str(error) or "the store does not count in time")
            again = time.monotonic() < self._back_at + _SOON
            self._failures = self._failures + 1 if again else 1
            self._probe = asyncio.create_task(self._probe_until_back(shared, tenant))

    async def _probe_until_back(self, shared: "Windows", tenant: str) -> None:
        # For the tenant that it failed for: of a cluster, the others' node may be well.
        while True:
            await asyncio.sleep(self._backoff.pause(self._failures))
            try:
                await wait_for(shared.add_tokens(tenant, 0), self._deadline)
            except (StoreError, TimeoutError):
                continue
            self._back_at = time.monotonic()
            self._outage.end()
            return


class Windows:
    """Windows of a minute that begin with their first request. Raises StoreError where ``counts`` does."""

    def __init__(self, limits: RateLimits, counts: Counts) -> None:
        self._limits = limits
        self._counts = counts

    async def count_request(self, tenant: str, lease: str | None = None) -> dict[str, Remaining]:
        """Counts a turn's request, and takes its lease; returns what remains of each limit."""
        requests, tokens = self._limits.requests_per_minute, self._limits.tokens_per_minute
        counting = {}
        if requests:
            counting["requests"] = self._count("requests", tenant, requests, cost=1)
        if tokens:
            counting["tokens"] = self._count("tokens", tenant, tokens, cost=0)
        return await self._gather(tenant, lease, counting)

    async def count_by_weight(
        self, tenant: str, requests: int, lease: str | None = None
    ) -> dict[str, Remaining]:
        """Counts a request as so many ``requests``, and takes its lease; returns what remains of them."""
        limit = self._limits.requests_per_minute
        counting = {"requests": self._count("requests", tenant, limit, cost=requests)} if limit else {}
        return await self._gather(tenant, lease, counting)

    async def renew(self, tenant: str, lease: str) -> None:
        """Renews a lease, or takes it, whatever the limit is: its answer is under way."""
        await self._counts.take(f"streams/{tenant}", lease, limit=math.inf, ttl=_LEASE)

    async def free(self, tenant: str, lease: str) -> None:
        """Gives a lease back."""
        await self._counts.free(f"streams/{tenant}", lease)

    async def _gather(
        self, tenant: str, lease: str | None, counting: dict[str, Coroutine[Any, Any, Remaining]]
    ) -> dict[str, Remaining]:
        if lease is not None:
            counting["streams"] = self._take(tenant, lease)
        return dict(zip(counting, await asyncio.gather(*counting.values()), strict=True))

    async def _take(self, tenant: str, lease: str) -> Remaining:
        limit = self._limits.concurrent_streams
        taken = await self._counts.take(f"streams/{tenant}", lease, limit=limit, ttl=_LEASE)
        return Remaining(limit, 0 if taken else -1, 0.0)

    async def add_tokens(self, tenant: str, tokens: int) -> None:
        """Counts tokens; 0 probes whether the counts answer."""
        await self._counts.add(f"tokens/{tenant}", tokens, ttl=_MINUTE)

    async def aclose(self) -> None:
        """Closes the counts."""
        await self._counts.aclose()

    async def _count(self, kind: str, tenant: str, limit: int, *, cost: int) -> Remaining:
        number, reset = await self._counts.add(f"{kind}/{tenant}", cost, ttl=_MINUTE)
        # There must have been something left: it may cost more than that, or what is not known yet.
        within = number - cost < limit
        return Remaining(limit, max(0, limit - number) if within else -1, reset)


def duration(seconds: float) -> str:
    """A length of time as OpenAI's headers have it: 120ms, 8.64s, 6m0s."""
    milliseconds = round(seconds * 1000)
    if milliseconds < 1000:  # noqa: PLR2004
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes}m{rest // 1000}s" if minutes else f"{rest / 1000:g}s"


def _tokens(answer: AnswerCopy, size: int) -> int:
    """The upstream's own count, or a guess: four bytes of a prompt are a token, and so is each piece sent."""
    usage = usage_of(answer.tail)
    if usage.input is not None or usage.output is not None:
        return (usage.input or 0) + (usage.output or 0)
    return size // _BYTES_OF_A_TOKEN + answer.count
