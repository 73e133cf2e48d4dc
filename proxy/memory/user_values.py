"""One value for each user, kept in the session store: under every kind of store the same few operations."""

import asyncio
import math
import random
from collections.abc import AsyncIterator, Callable
from typing import Final, Generic, TypeVar

import msgspec

from proxy.memory.errors import StoreError, Unreadable
from proxy.memory.stores.store import BlobWrite, Key, Owner, Store

T = TypeVar("T")

LASTING: Final = 10 * 365 * 86_400.0
"""The seconds for which a value is kept that has no end of its own; each write renews it."""
_ATTEMPTS: Final = 50
_MAX_PAUSE: Final = 0.01
_PAGE: Final = 100


class UserValues(Generic[T]):
    """Values of one kind in a store, each of a user. Every method may raise StoreError.

    They stand under ``TENANT/KIND``, which no tenant is called, and go through the store's own encryption.
    ``empty`` is the value of a user who has none.
    """

    def __init__(self, store: Store, kind: str, empty: T) -> None:
        self._store = store
        self._kind = kind
        self._empty = empty
        self._decoder = msgspec.msgpack.Decoder(type(empty))

    async def read(self, user: Owner, *, background: bool = False) -> T:
        """The value of a user; a ``background`` read may take as long as a list."""
        return (await self._load(user, background=background))[0]

    async def change(
        self,
        user: Owner,
        change: Callable[[T], T],
        *,
        at: float = math.inf,
        ttl: Callable[[T], float] = lambda _: LASTING,
    ) -> bool:
        """Replace a value by what ``change`` makes of it; whether it differs.

        It is kept for ``ttl`` seconds, and nothing is written where it is the same. Raises SessionDeleted
        where the user was erased after ``at``, in seconds since 1970, else is never refused.
        """
        key = self._key(user)
        for _ in range(_ATTEMPTS):
            former, version = await self._load(user, background=True)
            changed = change(former)
            if changed == former:
                return False
            blob = msgspec.msgpack.encode(changed)
            if await self._store.write(key, BlobWrite(blob, version, ttl(changed), at=at, background=True)):
                return True
            await asyncio.sleep(random.uniform(0, _MAX_PAUSE))  # noqa: S311 - so that two writers part
        raise StoreError("others are writing what is kept of this user")

    async def delete(self, user: Owner) -> bool:
        """Remove a user's value, and refuse what arrived before and comes later; whether there was one."""
        return await self._store.delete(self._key(user))

    async def users(self, tenant: str) -> AsyncIterator[Owner]:
        """The users of a tenant who have a value."""
        after = ""
        while page := await self._store.list(f"{tenant}/{self._kind}", after=after, limit=_PAGE):
            for line in page:
                yield Owner(tenant, line.session)
                await asyncio.sleep(0)  # a store in this process would hold up all calls
            after = page[-1].session

    async def _load(self, user: Owner, *, background: bool) -> tuple[T, int]:
        stored = await self._store.read(self._key(user), background=background)
        if stored is None:
            return self._empty, 0
        try:
            return self._decoder.decode(stored.blob), stored.version
        except msgspec.DecodeError as error:
            raise Unreadable("What is kept of a user cannot be read.") from error

    def _key(self, user: Owner) -> Key:
        return Key(f"{user.tenant}/{self._kind}", user.user)
