"""Counts on a Redis for the ``limits`` library, over the link that sessions use: all addresses have them."""

import time

from limits.aio.storage import Storage

from proxy.memory.faults import StoreError
from proxy.memory.redis.address import Address
from proxy.memory.redis.client import clients
from proxy.memory.redis.link import Link
from proxy.memory.redis.names import Names, Pair
from proxy.memory.redis.scripts import COUNT, COUNTED

# Longer than sessions are mostly kept. There is one key for each limit of a tenant, and no more.
_KEPT = 7 * 86400 * 1000


class Counts(Storage):
    """Numbers that expire, by key. Raises StoreError, after one deadline at the latest."""

    STORAGE_SCHEME = None

    def __init__(self, url: str, *, deadline: float) -> None:
        super().__init__(wrap_exceptions=False)
        place = Address.of(url)
        self._link = Link(clients(place, deadline), deadline=deadline)
        self._names = Names(place.prefix)

    @property
    def base_exceptions(self) -> type[Exception]:
        """What goes wrong."""
        return StoreError

    async def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        """Adds to a number, which expires ``expiry`` seconds after it was first added to."""
        what = amount, expiry * 1000, _KEPT
        return int(await self._link.ask(lambda client: COUNT(client, self._pair(key), *what)))

    async def get(self, key: str) -> int:
        """A number; 0 where there is none."""
        count, _ = await self._counted(key)
        return count

    async def get_expiry(self, key: str) -> float:
        """When a number expires, in seconds since 1970; now where there is none."""
        _, left = await self._counted(key)
        return time.time() + left / 1000

    async def check(self) -> bool:
        """Whether Redis answers."""
        try:
            await self.get("check")
        except StoreError:
            return False
        return True

    async def reset(self) -> int | None:
        """Nothing: other servers count here too."""
        return None

    async def clear(self, key: str) -> None:
        """Forgets a number."""
        await self._link.command("DEL", self._pair(key).first)

    async def aclose(self) -> None:
        """Closes all connections."""
        await self._link.aclose()

    async def _counted(self, key: str) -> tuple[int, int]:
        count, left = await self._link.ask(lambda client: COUNTED(client, self._pair(key)))
        return int(count), int(left)

    def _pair(self, key: str) -> Pair:
        return self._names.count(key)
