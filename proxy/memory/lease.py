"""Who does a piece of work: one process at a time, as long as it lives."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from proxy.memory import holder
from proxy.memory.faults import StoreError
from proxy.memory.store import Held, Key, Put, Store

# No key's name begins like this, so that no caller sees what stands here.
_TENANT: Final = "~leases"
TTL: Final = 10.0
"""How long a process that was killed still holds a lease, in seconds, where nobody sees that it has died."""


@asynccontextmanager
async def lease(store: Store, work: str, key: Key, *, ttl: float = TTL) -> AsyncIterator[bool]:
    """Whether the work on a session is ours until we leave; False where another process has it."""
    name = hashlib.sha256("\n".join((work, *key)).encode()).hexdigest()
    own = Key(_TENANT, name)
    mark = holder.mark()
    if not await _taken(store, own, mark, ttl):
        yield False
        return
    renewing = asyncio.create_task(_renewed(store, own, mark, ttl))
    try:
        yield True
    finally:
        renewing.cancel()
        await asyncio.wait({renewing})
        with suppress(StoreError):
            if await _ours(store, own, mark):
                await store.delete(own)


async def _taken(store: Store, own: Key, mark: bytes, ttl: float) -> bool:
    """Whether nobody had it, or one who has died."""
    if await store.write(own, Put(mark, version=0, ttl=ttl, leisure=True)):
        return True
    held = await store.read(own, leisure=True)
    if held is None or not holder.has_died(held.blob):
        return False
    return await store.write(own, Put(mark, version=held.version, ttl=ttl, leisure=True))


async def _renewed(store: Store, own: Key, mark: bytes, ttl: float) -> None:
    while True:
        await asyncio.sleep(ttl / 4)
        with suppress(StoreError):
            if held := await _ours(store, own, mark):
                await store.write(own, Put(mark, version=held.version, ttl=ttl, leisure=True))


async def _ours(store: Store, own: Key, mark: bytes) -> Held | None:
    """The lease, unless it has ended, or ended and is another's by now."""
    held = await store.read(own, leisure=True)
    return held if held and held.blob == mark else None
