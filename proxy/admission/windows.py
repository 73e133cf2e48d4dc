"""Requests and tokens of a minute, by tenant, as one place counts them."""

import asyncio
from typing import Final, NamedTuple

import msgspec

from proxy.memory.stores.counts import Counts

_MINUTE: Final = 60.0


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
    """Windows of a minute that begin with their first request. Raises StoreError where ``counts`` does."""

    def __init__(self, limits: Allowance, counts: Counts) -> None:
        self._limits = limits
        self._counts = counts

    async def asked(self, tenant: str) -> dict[str, Left]:
        """What is left of each limit, once this request has been counted."""
        requests, tokens = self._limits.requests_per_minute, self._limits.tokens_per_minute
        asked = {}
        if requests:
            asked["requests"] = self._left("requests", tenant, requests, cost=1)
        if tokens:
            asked["tokens"] = self._left("tokens", tenant, tokens, cost=0)
        return dict(zip(asked, await asyncio.gather(*asked.values()), strict=True))

    async def spend(self, tenant: str, tokens: int) -> None:
        """So many tokens have been taken; none asks whether there is somebody who counts."""
        await self._counts.add(_key("tokens", tenant), tokens, lasting=_MINUTE)

    async def aclose(self) -> None:
        """Lets the counts go."""
        await self._counts.aclose()

    async def _left(self, kind: str, tenant: str, limit: int, *, cost: int) -> Left:
        number, reset = await self._counts.add(_key(kind, tenant), cost, lasting=_MINUTE)
        remaining = limit - number
        # What this request costs has been counted; of what it will cost there must be something left.
        within = remaining >= 0 if cost else remaining > 0
        return Left(limit, remaining if within else -1, reset)


def _key(kind: str, tenant: str) -> str:
    return f"{kind}/{tenant}"
