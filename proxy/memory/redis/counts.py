"""Counts on a Redis for the ``limits`` library, over the link that sessions use: all addresses have them."""

import time

from limits.aio.storage import Storage

from proxy.memory.faults import StoreError
from proxy.memory.redis.address import Address
from proxy.memory.redis.client import clients
from proxy.memory.redis.link import Link
from proxy.memory.redis.names import Names, Pair
from proxy.memory.redis.scripts import COUNT


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
        return int(await self._link.ask(lambda client: COUNT(client, self._pair(key), amount, expiry * 1000)))

    async def get(self, key: str) -> int:
        """A number; 0 where there is none."""
        return int(await self._ask("GET", key) or 0)

    async def get_expiry(self, key: str) -> float:
        """When a number expires, in seconds since 1970; now where there is none."""
        return time.time() + max(0, int(await self._ask("PTTL", key) or 0)) / 1000

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
        await self._ask("DEL", key)

    async def aclose(self) -> None:
        """Closes all connections."""
        await self._link.aclose()

    async def _ask(self, command: str, key: str) -> bytes | int | None:
        answer: bytes | int | None = await self._link.command(command, self._pair(key).first)
        return answer

    def _pair(self, key: str) -> Pair:
        return self._names.count(key)
