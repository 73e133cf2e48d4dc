"""Who does a piece of work: one process at a time, as long as it lives."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from proxy.memory.store import Key, Store, StoreError

# No key's name begins like this, so that no caller sees what stands here.
_TENANT: Final = "~leases"
TTL: Final = 10.0
"""How long a process that was killed still holds a lease, in seconds."""


@asynccontextmanager
async def lease(store: Store, work: str, key: Key, *, ttl: float = TTL) -> AsyncIterator[bool]:
    """Whether the work on a session is ours until we leave; False where another process has it."""
    name = hashlib.sha256("\n".join((work, *key)).encode()).hexdigest()
    own = Key(_TENANT, name)
    if not await store.write(own, b"", version=0, ttl=ttl):
        yield False
        return
    renewing = asyncio.create_task(_renewed(store, own, ttl))
    try:
        yield True
    finally:
        renewing.cancel()
        await asyncio.wait({renewing})
        with suppress(StoreError):
            await store.delete(own)


async def _renewed(store: Store, own: Key, ttl: float) -> None:
    while True:
        await asyncio.sleep(ttl / 4)
        with suppress(StoreError):
            held = await store.read(own)
            if held:
                await store.write(own, b"", version=held.version, ttl=ttl)
