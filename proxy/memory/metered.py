"""A store whose operations are counted: which, how they ended, and how long they took."""

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from proxy.memory.store import Held, Key, Listed, Put, Store

T = TypeVar("T")

_NEVER = object()

Meter = Callable[[str, str, float], None]
"""Told of an operation: its name, how it ended (done, lost or failed), and its seconds."""


class Metered:
    """Another store. An operation is ``lost`` where somebody else wrote first, ``failed`` with StoreError."""

    def __init__(self, store: Store, meter: Meter) -> None:
        self._store = store
        self._meter = meter

    async def read(self, key: Key, *, leisure: bool = False) -> Held | None:
        """As the store does."""
        began = time.perf_counter()
        outcome = "failed"
        try:
            held = await self._store.read(key, leisure=leisure)
            outcome = "done"
        finally:
            self._meter("read", outcome, time.perf_counter() - began)
        return held

    async def write(self, key: Key, put: Put) -> bool:
        """As the store does."""
        write = self._store.write(key, put)
        return await self._metered("write", write, lost=False)

    async def replace(self, key: Key, put: Put) -> bool:
        """As the store does."""
        replace = self._store.replace(key, put)
        return await self._metered("replace", replace, lost=False)

    async def cold(self, key: Key, *, start: int = 0, limit: int = 1000) -> list[bytes]:
        """As the store does."""
        return await self._metered("cold", self._store.cold(key, start=start, limit=limit))

    async def delete(self, key: Key) -> bool:
        """As the store does."""
        return await self._metered("delete", self._store.delete(key))

    async def deleted(self, key: Key) -> float | None:
        """As the store does."""
        return await self._metered("deleted", self._store.deleted(key))

    async def list(self, tenant: str, *, after: str = "", limit: int = 100) -> list[Listed]:
        """As the store does."""
        return await self._metered("list", self._store.list(tenant, after=after, limit=limit))

    async def ping(self) -> None:
        """As the store does."""
        await self._metered("ping", self._store.ping())

    async def aclose(self) -> None:
        """As the store does."""
        await self._store.aclose()

    async def _metered(self, operation: str, asked: Awaitable[T], *, lost: object = _NEVER) -> T:
        began = time.perf_counter()
        outcome = "failed"
        try:
            result = await asked
            outcome = "lost" if result is lost else "done"
        finally:
            self._meter(operation, outcome, time.perf_counter() - began)
        return result
