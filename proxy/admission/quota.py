"""Limits of API keys: requests and tokens in a minute, and answers at once."""

import asyncio
import itertools
import math
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final, NamedTuple, NoReturn

import msgspec

from proxy.circuit import Backoff, Outage
from proxy.errors import LimitExceeded
from proxy.http.reply import Reply
from proxy.memory.errors import StoreError
from proxy.memory.stores.counts import Count, Counts, LocalCounts, Permit
from proxy.memory.tasks import Begun, cancel_and_wait, wait_for
from proxy.observe.observation import AnswerCopy, usage_of

_MINUTE: Final = 60.0
_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0
_SOON: Final = 60.0
_PERMIT: Final = 45.0
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

    They may be counted with other servers: an answer has a permit there, which is renewed while it lasts and
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
        self._windows = Windows(limits, counts, deadline=deadline)
        self._on_refusal = refused
        self._open: Counter[str] = Counter()
        self._permit_names = (f"{secrets.token_hex(8)}:{number}" for number in itertools.count(1))
        self._permits: dict[Permit, str] = {}
        self._renewing: asyncio.Task[None] | None = None
        self._has_permits = counts is not None and limits.concurrent_streams > 0
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
        permit = self._open_answer(tenant)
        try:
            self._report(await self._windows.count(tenant, {"requests": 1, "tokens": 0}, permit), reply)
            yield
        finally:
            answer, is_counted = reply.observation.answer, self._limits.tokens_per_minute > 0
            tokens = _tokens(answer, size) if is_counted and answer.count else 0
            self._close_answer(tenant, permit, "tokens", tokens)

    @asynccontextmanager
    async def admit_by_size(self, tenant: str, size: int, reply: Reply) -> AsyncIterator[None]:
        """Admits a request that asks no model, for as long as it is entered; it counts by its ``weight``.

        ``size`` is its body's in bytes; what its answer weighs beside that is counted when it has been sent.
        A request is admitted while any are left, however much it weighs. Raises LimitExceeded.
        """
        permit = self._open_answer(tenant)
        try:
            self._report(await self._windows.count(tenant, {"requests": weight(size)}, permit), reply)
            yield
        finally:
            self._close_answer(tenant, permit, "requests", weight(size + reply.size) - weight(size))

    async def aclose(self) -> None:
        """Counts what is yet to be counted, then closes the counts."""
        await cancel_and_wait(self._renewing)
        await asyncio.gather(*self._spending)
        await self._windows.aclose()

    def _open_answer(self, tenant: str) -> Permit | None:
        """Its permit, where other servers count it too."""
        # Counted before anything is awaited: of a burst, all would find the same room.
        limit = self._limits.concurrent_streams
        if limit and self._open[tenant] >= limit:
            self._refuse_stream()
        self._open[tenant] += 1
        if not self._has_permits:
            return None
        permit = Permit(next(self._permit_names), _PERMIT, limit)
        self._permits[permit] = tenant
        if self._renewing is None:
            self._renewing = asyncio.get_running_loop().create_task(self._renew())
        return permit

    def _close_answer(self, tenant: str, permit: Permit | None, kind: str, amount: int) -> None:
        """Ends its permit, and counts what it took beside its request."""
        self._open[tenant] -= 1
        if permit:
            del self._permits[permit]
        if permit or amount:
            amounts = {kind: amount} if amount else {}
            # Put off before the turn is written, which takes it along.
            counting = Begun(self._windows.count(tenant, amounts, permit and permit.ended, deferrable=True))
            task = asyncio.get_running_loop().create_task(counting.rest())
            self._spending.add(task)
            task.add_done_callback(self._spending.discard)

    async def _renew(self) -> None:
        """Renews the permits, also of answers that began while this process counted alone."""
        while True:
            await asyncio.sleep(_RENEW_EVERY)
            for permit, tenant in tuple(self._permits.items()):
                if permit in self._permits:
                    # Whatever the limit is: its answer is under way.
                    await self._windows.count(tenant, {}, permit._replace(limit=None))
                    if permit not in self._permits:  # it may have been given back before it was renewed
                        await self._windows.count(tenant, {}, permit.ended)

    def _refuse_stream(self) -> NoReturn:
        limit = self._limits.concurrent_streams
        self._refuse("streams", f"This key may have {limit} answers at once.", 1.0)

    def _report(self, remaining: dict[str, Remaining] | None, reply: Reply) -> None:
        if self._windows.is_alone:
            reply.add_degraded("limits")
        if remaining is None:
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


class Windows:
    """Windows of a minute that begin with their first request.

    They are counted in this process where ``shared`` is ``None``, and while it fails: where it raises
    StoreError, or takes longer than ``deadline`` seconds if there is one. It is then probed after ``pause``
    seconds, until it counts again; where it fails again within a minute the pause doubles, up to a minute.
    """

    def __init__(
        self,
        limits: RateLimits,
        shared: Counts | None,
        *,
        deadline: float | None = None,
        pause: float = _PAUSE,
    ) -> None:
        self._limits = {"requests": limits.requests_per_minute, "tokens": limits.tokens_per_minute}
        self._own = LocalCounts()
        self._shared = shared
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

    async def count(
        self,
        tenant: str,
        amounts: Mapping[str, int],
        permit: Permit | None = None,
        *,
        deferrable: bool = False,
    ) -> dict[str, Remaining] | None:
        """Counts what has a limit, and returns what remains of it; ``None`` where there is no permit left.

        A permit that cannot be given back expires.
        """
        limited = {kind: amount for kind, amount in amounts.items() if self._limits[kind]}
        if not limited and permit is None:
            return {}
        counts = await self._count(tenant, limited, permit, deferrable=deferrable)
        if counts is None:
            return None
        remaining = {}
        for kind, (number, reset) in counts.items():
            limit = self._limits[kind]
            # There must have been something left: it may cost more than that, or what is not known yet.
            is_within = number - limited[kind] < limit
            remaining[kind] = Remaining(limit, max(0, limit - number) if is_within else -1, reset)
        return remaining

    async def aclose(self) -> None:
        """Ends the probe, then closes the counts."""
        await cancel_and_wait(self._probe)
        if self._shared:
            await self._shared.aclose()

    async def _count(
        self, tenant: str, amounts: Mapping[str, int], permit: Permit | None, *, deferrable: bool
    ) -> dict[str, Count] | None:
        if self._shared and not self.is_alone:
            counting = self._shared.count(tenant, amounts, permit, ttl=_MINUTE, deferrable=deferrable)
            try:
                return await (counting if deferrable else wait_for(counting, self._deadline))
            except (StoreError, TimeoutError) as error:
                if not self.is_alone:
                    self._outage.begin(str(error) or "the store does not count in time")
                    again = time.monotonic() < self._back_at + _SOON
                    self._failures = self._failures + 1 if again else 1
                    self._probe = asyncio.create_task(self._probe_until_back(self._shared, tenant))
        return await self._own.count(tenant, amounts, ttl=_MINUTE)

    async def _probe_until_back(self, shared: Counts, tenant: str) -> None:
        # For the tenant that it failed for: of a cluster, the others' node may be well.
        while True:
            await asyncio.sleep(self._backoff.pause(self._failures))
            try:
                await wait_for(shared.count(tenant, {"requests": 0}, ttl=_MINUTE), self._deadline)
            except (StoreError, TimeoutError):
                continue
            self._back_at = time.monotonic()
            self._outage.end()
            return


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
