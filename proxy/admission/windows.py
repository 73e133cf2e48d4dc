"""Requests and tokens of a minute, by tenant, as one storage counts them."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple

import msgspec
from limits import RateLimitItemPerMinute
from limits.aio.storage import Storage
from limits.aio.strategies import FixedWindowRateLimiter


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


class Windows:
    """Windows of a minute that begin with their first request. Raises what the storage raises."""

    def __init__(self, limits: Allowance, storage: Storage) -> None:
        self._limits = limits
        self._storage = storage
        self._windows = FixedWindowRateLimiter(storage)
        self._requests = RateLimitItemPerMinute(limits.requests_per_minute or 1, namespace="requests")
        self._tokens = RateLimitItemPerMinute(limits.tokens_per_minute or 1, namespace="tokens")

    async def asked(self, tenant: str) -> dict[str, Left]:
        """What is left of each limit, once this request has been counted."""
        return dict(await asyncio.gather(*self._counted(tenant)))

    async def spend(self, tenant: str, tokens: int) -> None:
        """So many tokens have been taken; none asks whether the storage counts."""
        await self._windows.hit(self._tokens, tenant, cost=tokens)

    async def aclose(self) -> None:
        """Lets the storage go."""
        close: Callable[[], Awaitable[None]] | None = getattr(self._storage, "aclose", None)
        if close:
            await close()

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
