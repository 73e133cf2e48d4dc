"""A store that does not cost every call its deadline while it is dead."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from proxy.memory.faults import StoreError
from proxy.memory.store import Held, Key, Listed, Put, Store

T = TypeVar("T")

_SHORTEST = 0.1
_LONGEST = 1.0


class Guard:
    """Another store, left alone for as long as asking it costs time.

    A read or a write that fails after more than ``patience`` seconds shuts the store off: whoever comes then
    is refused at once. One probe after another asks it in the background, at once and then after pauses of
    0.1 s growing to 1 s; any answer within ``patience`` opens it again, a refusal too, since calls can bear
    what costs nothing. What no call waits for waits up to a second for that.
    """

    def __init__(self, store: Store, *, patience: float) -> None:
        self._store = store
        self._patience = patience
        self._probe: asyncio.Task[None] | None = None

    async def read(self, key: Key, *, leisure: bool = False) -> Held | None:
        """As the store does."""
        if leisure:
            await self._probed()
        self._check()
        began = _now()
        try:
            return await self._store.read(key, leisure=leisure)
        except StoreError:
            self._failed(began)
            raise

    async def write(self, key: Key, put: Put) -> bool:
        """As the store does."""
        return await self._timed(lambda: self._store.write(key, put))

    async def replace(self, key: Key, put: Put) -> bool:
        """As the store does."""
        await self._probed()
        return await self._timed(lambda: self._store.replace(key, put))

    async def cold(self, key: Key, *, start: int = 0, limit: int = 1000) -> list[bytes]:
        """As the store does."""
        await self._probed()
        self._check()
        return await self._store.cold(key, start=start, limit=limit)

    async def delete(self, key: Key) -> bool:
        """As the store does."""
        await self._probed()
        return await self._timed(lambda: self._store.delete(key))

    async def deleted(self, key: Key) -> float | None:
        """As the store does."""
        return await self._timed(lambda: self._store.deleted(key))

    async def list(self, tenant: str, *, after: str = "", limit: int = 100) -> list[Listed]:
        """As the store does. One that takes long says little of the store: the list may be long."""
        await self._probed()
        self._check()
        return await self._store.list(tenant, after=after, limit=limit)

    async def ping(self) -> None:
        """As the store does."""
        await self._timed(self._store.ping)

    async def aclose(self) -> None:
        """Ends the probe, then closes the store."""
        if self._probe:
            self._probe.cancel()
            await asyncio.wait({self._probe})
        await self._store.aclose()

    async def _probed(self) -> None:
        """Whoever has leisure waits a little for a store that is shut off."""
        if self._probe is not None and not self._probe.done():
            await asyncio.wait({self._probe}, timeout=_LONGEST)

    async def _timed(self, ask: Callable[[], Awaitable[T]]) -> T:
        self._check()
        began = _now()
        try:
            return await ask()
        except StoreError:
            self._failed(began)
            raise

    def _failed(self, began: float) -> None:
        if self._is_dear(began) and not self._is_shut():
            self._probe = asyncio.create_task(self._watch())

    def _check(self) -> None:
        if self._probe is not None and not self._probe.done():
            raise StoreError("the store did not answer within memory.deadline, and is asked again in a while")

    def _is_shut(self) -> bool:
        return self._probe is not None and not self._probe.done()

    def _is_dear(self, began: float) -> bool:
        return _now() - began > self._patience

    async def _watch(self) -> None:
        pause = _SHORTEST
        while not await self._answers():
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST)

    async def _answers(self) -> bool:
        began = _now()
        try:
            await self._store.ping()
        except StoreError:
            return not self._is_dear(began)
        return True


def _now() -> float:
    return asyncio.get_running_loop().time()
