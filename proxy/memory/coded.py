"""A store whose bytes pass through a codec."""

import asyncio

from proxy.memory.codec import Codec
from proxy.memory.store import Held, Key, Listed, Put, Store


class CodedStore:
    """Another store, at whose edge everything is encoded; ids and times are not."""

    def __init__(self, store: Store, codec: Codec) -> None:
        self._store = store
        self._codec = codec

    async def read(self, key: Key, *, leisure: bool = False) -> Held | None:
        """The hot part, decoded."""
        held = await self._store.read(key, leisure=leisure)
        return None if held is None else Held(self._codec.decode(key, held.blob), held.version)

    async def write(self, key: Key, put: Put) -> bool:
        """Both parts, encoded."""
        return await self._store.write(key, self._encoded(key, put))

    async def replace(self, key: Key, put: Put) -> bool:
        """Both parts, encoded on a thread: they may be large."""
        return await self._store.replace(key, await asyncio.to_thread(self._encoded, key, put))

    async def cold(self, key: Key, *, start: int = 0, limit: int = 1000) -> list[bytes]:
        """The cold part, decoded on a thread."""
        found = await self._store.cold(key, start=start, limit=limit)
        return await asyncio.to_thread(lambda: [self._codec.decode(key, blob) for blob in found])

    async def delete(self, key: Key) -> bool:
        """As the store has it."""
        return await self._store.delete(key)

    async def deleted(self, key: Key) -> float | None:
        """As the store has it."""
        return await self._store.deleted(key)

    async def list(self, tenant: str, *, after: str = "", limit: int = 100) -> list[Listed]:
        """As the store has it: sizes are those of the encoded bytes."""
        return await self._store.list(tenant, after=after, limit=limit)

    async def ping(self) -> None:
        """As the store has it."""
        await self._store.ping()

    async def aclose(self) -> None:
        """As the store has it."""
        await self._store.aclose()

    def _encoded(self, key: Key, put: Put) -> Put:
        blob, *cold = [self._codec.encode(key, blob) for blob in (put.blob, *put.cold)]
        return put._replace(blob=blob, cold=cold)
