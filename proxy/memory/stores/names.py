"""Sessions whose names are encrypted in the store."""

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence
from typing import Any, Final

from proxy.memory.errors import StoreError
from proxy.memory.stores.codec import Codec, Names
from proxy.memory.stores.store import (
    KEEP_EXPIRY,
    BlobWrite,
    DueSession,
    Key,
    ListedSession,
    Store,
    StoredBlob,
)
from proxy.memory.tasks import Tasks, retrieve_exception
from proxy.newest import Newest

_MOST_FORMER: Final = 10_000
_SOON: Final = 0.001


def with_names(codec: Codec, driver: Store, background: Store | None) -> tuple[Store, Store | None]:
    """Returns drivers of one store that encrypt names; without encryption, the drivers themselves."""
    names = codec.names()
    if names is None:
        return driver, background
    former = Newest[Key, Key](_MOST_FORMER)
    return NamedStore(driver, names, former), background and NamedStore(background, names, former)


class NamedStore:
    """A store that encrypts the names of sessions, and lists sessions in the order of the encrypted names.

    A session may be stored under its plain name, or under the name that an older key gives. It is looked for
    there if the newest key's name has none, which costs the first turn of a session another read. The next
    write moves it. ``former`` are such sessions, and where they are stored. Internal tenants, such as that of
    users' values, have no names of people in their keys, and these are not encrypted.
    """

    def __init__(self, store: Store, names: Names, former: Newest[Key, Key]) -> None:
        self._store = store
        self._names = names
        self._former = former
        self._writes = Tasks()

    async def read(self, key: Key, *, background: bool = False) -> StoredBlob | None:
        """Reads the hot part, under the newest key's name or else under another."""
        first, *others = self._places(key)
        stored = await self._store.read(first, background=background)
        if stored is None:
            reads = (self._store.read(other, background=background) for other in others)
            for other, stored in zip(others, await asyncio.gather(*reads), strict=True):
                if stored is not None:
                    self._former.put(key, other)
                    return stored
        self._former.pop(key, None)
        return stored

    async def write(self, key: Key, put: BlobWrite) -> bool:
        """Writes both parts where the session is stored, and moves it to the newest key's name."""
        if put.version and key not in self._former:
            return await self._store.write(self._places(key)[0], put)
        return await self._to_its_end(self._write(key, put))

    async def replace(self, key: Key, put: BlobWrite) -> bool:
        """Replaces both parts where the session is stored."""
        return await self._to_its_end(self._replace(key, put))

    async def cold(self, key: Key, *, start: int = 0, limit: int = 1000) -> list[bytes]:
        """Reads the cold part where the session was found last."""
        return await self._store.cold(self._place(key), start=start, limit=limit)

    async def delete(self, key: Key) -> bool:
        """Deletes the session under all its names; encrypted names get tombstones, for other servers."""
        *encrypted, plain = self._places(key)
        # A tombstone contains its name, so the plain name gets one only if a session was stored under it.
        places = [*encrypted]
        if not encrypted or await self._store.read(plain, background=True) is not None:
            places.append(plain)
        # The newest name is the last, because a session that is being moved is copied there before it leaves.
        deleted = [await self._store.delete(place) for place in reversed(places)]
        self._former.pop(key, None)
        return any(deleted)

    async def deleted(self, key: Key) -> float | None:
        """Returns when the session was deleted last, in seconds since 1970; ``None`` without a tombstone."""
        return await self._store.deleted(self._places(key)[0])

    async def list(self, tenant: str, *, after: str = "", limit: int = 100) -> list[ListedSession]:
        """Lists a tenant's sessions, in the order of their names in the store."""
        if after:
            after = await self._position(Key(tenant, after))
        lines = await self._store.list(tenant, after=after, limit=limit)
        return [line._replace(session=self._names.decrypted(line.session)) for line in lines]

    async def take_due(self, tenants: Sequence[str], *, limit: int, lease: float) -> Sequence[DueSession]:
        """Takes sessions that are due, and decrypts their names."""
        taken = await self._store.take_due(tenants, limit=limit, lease=lease)
        due = []
        for each in taken:
            key = each.key._replace(session=self._names.decrypted(each.key.session))
            if each.key != self._place(key):
                self._former.put(key, each.key)
            due.append(each._replace(key=key))
        return due

    async def settle(self, session: DueSession, due: float) -> DueSession | None:
        """Sets when a taken session is due again, and returns it with its new lease."""
        settled = await self._store.settle(session._replace(key=self._place(session.key)), due)
        return settled and settled._replace(key=session.key)

    async def acquire(self, name: str, token: bytes, *, ttl: float, former: bytes = b"") -> bytes | None:
        """Takes or renews a lease; its name is a hash, and is not encrypted."""
        return await self._store.acquire(name, token, ttl=ttl, former=former)

    async def release(self, name: str, token: bytes) -> None:
        """Ends a lease."""
        await self._store.release(name, token)

    async def ping(self) -> None:
        """Returns if a turn could be written now; else raises StoreError."""
        await self._store.ping()

    async def aclose(self) -> None:
        """Closes the store once the writes in flight have ended."""
        if self._writes:
            await asyncio.wait(self._writes)
        await self._store.aclose()

    def _places(self, key: Key) -> tuple[Key, ...]:
        """Returns where a session may be stored: first the newest key's name, last the plain name."""
        if "/" in key.tenant or key.tenant.startswith("~"):
            return (key,)
        return tuple(Key(key.tenant, form) for form in self._names.forms(*key))

    def _place(self, key: Key) -> Key:
        return self._former.get(key) or self._places(key)[0]

    async def _to_its_end(self, write: Coroutine[Any, Any, bool]) -> bool:
        """Returns the result of a write of several steps, which continues if its caller is cancelled."""
        task = self._writes.start(write)
        task.add_done_callback(retrieve_exception)
        return await asyncio.shield(task)

    async def _write(self, key: Key, put: BlobWrite) -> bool:
        if put.version == 0 and await self._is_elsewhere(key):
            return False
        place = self._place(key)
        if not await self._store.write(place, put):
            return False
        if place != (current := self._places(key)[0]) and put.ttl != KEEP_EXPIRY:
            with contextlib.suppress(StoreError):  # the write succeeded, and a later one moves the session
                if await self._move(place, current, put):
                    self._former.pop(key, None)
        return True

    async def _replace(self, key: Key, put: BlobWrite) -> bool:
        if put.version == 0 and await self._is_elsewhere(key):
            return False
        return await self._store.replace(self._place(key), put)

    async def _move(self, place: Key, current: Key, put: BlobWrite) -> bool:
        """Moves a session that was just written to its current name; false if another write came between."""
        stored = await self._store.read(place, background=True)
        if stored is None:
            return False
        cold: list[bytes] = []
        while page := await self._store.cold(place, start=len(cold)):
            cold += page
        moved = BlobWrite(stored.blob, 0, put.ttl, cold, new_version=stored.version, due=put.due)
        # A late earlier move may have left a copy of the version that was just replaced.
        for version in dict.fromkeys((0, put.version)):
            if await self._store.replace(current, moved._replace(version=version)):
                break
        else:
            return False
        # Expiry leaves no tombstone, which would contain the former name.
        removed = BlobWrite(b"", stored.version, _SOON, background=True)
        if await self._store.replace(place, removed):
            return True
        await self._store.replace(current, removed)
        return False

    async def _is_elsewhere(self, key: Key) -> bool:
        """Whether a session that is to be created exists under a former name."""
        _, *others = self._places(key)
        reads = (self._store.read(other, background=True) for other in others)
        return any(stored is not None for stored in await asyncio.gather(*reads))

    async def _position(self, key: Key) -> str:
        """Returns the stored name after which a list continues; for a session that is gone, its first one."""
        places = self._places(key)
        for place in places:
            if await self._store.read(place, background=True) is not None:
                return place.session
        return min(place.session for place in places)
