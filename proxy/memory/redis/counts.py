"""Counts on a Redis, over the link that sessions use: all addresses have them."""

from typing import Final

from proxy.memory.counts import Count
from proxy.memory.redis.address import Address
from proxy.memory.redis.client import clients
from proxy.memory.redis.link import Link
from proxy.memory.redis.names import Names
from proxy.memory.redis.scripts import COUNT

# Longer than sessions are mostly kept. There is one key for each limit of a tenant, and no more.
_KEPT: Final = 7 * 86400 * 1000


class RedisCounts:
    """Numbers by key, each asked for in one round trip; StoreError after one deadline at the latest."""

    def __init__(self, url: str, *, deadline: float) -> None:
        place = Address.of(url)
        self._link = Link(clients(place, deadline), deadline=deadline)
        self._names = Names(place.prefix)

    async def add(self, key: str, amount: int, *, lasting: float) -> Count:
        """As the protocol has it."""
        what = amount, int(lasting * 1000), _KEPT
        number, left = await self._link.ask(lambda client: COUNT(client, self._names.count(key), *what))
        return Count(int(number), int(left) / 1000)

    async def aclose(self) -> None:
        """Closes all connections."""
        await self._link.aclose()
