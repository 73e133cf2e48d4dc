"""One value per user, stored in any kind of session store."""

import asyncio
import hmac
import math
import random
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Final, Generic, TypeVar

import msgspec

from proxy.memory import extensible
from proxy.memory.errors import StoreError, Unreadable
from proxy.memory.stores.store import BlobWrite, Key, Owner, Store, all_sessions


class UserValue(extensible.Extensible, frozen=True, kw_only=True):
    """A value and its user; ``user`` is empty if an older version wrote it."""

    user: str = ""


T = TypeVar("T", bound=UserValue)

LASTING: Final = 10 * 365 * 86_400.0
"""The lifetime in seconds of values without an expiry; each write renews it."""
_ATTEMPTS: Final = 50
_MAX_PAUSE: Final = 0.01
_NAME_BYTES: Final = 16
# No tenant has such a name.
_SECRET: Final = Key("~users", "secret")


class UserValues(Generic[T]):
    """Values of one kind in a store, one per user. Every method may raise StoreError.

    They are stored under ``TENANT/KIND``, which is no tenant's name, with the store's encryption. The id of a
    user is stored as a keyed hash, which is all that an erased value leaves. ``empty`` is the value of other
    users.
    """

    def __init__(self, store: Store, kind: str, empty: T) -> None:
        self._store = store
        self._kind = kind
        self._empty = empty
        self._secret = b""
        self._version = 0  # of the stored secret, until it is renewed

    async def read(self, user: Owner, *, background: bool = False) -> T:
        """Reads the value of a user; a ``background`` read has the longer time-out."""
        if not await self._has_secret(background=background):  # no user has a value yet
            return self._empty
        return (await self._load(self._hashed(user), background=background))[0]

    async def change(
        self,
        user: Owner,
        change: Callable[[T], T],
        *,
        at: float = math.inf,
        ttl: Callable[[T], float] = lambda _: LASTING,
    ) -> bool:
        """Replaces a value by ``change(value)``; returns whether it differs.

        It is stored for ``ttl`` seconds; an equal value is not written. Raises SessionDeleted if the user was
        erased after ``at``, in seconds since 1970.
        """
        return await self._change(await self._key(user), change, at, ttl, user.user)

    async def change_all(
        self,
        tenant: str,
        change: Callable[[T], T],
        *,
        ttl: Callable[[T], float] = lambda _: LASTING,
    ) -> None:
        """Changes the values of all users of a tenant; removes unreadable ones."""
        place = f"{tenant}/{self._kind}"
        async for listed in all_sessions(self._store, place):
            key = Key(place, listed.session)
            try:
                await self._change(key, change, math.inf, ttl)
            except Unreadable:
                await self._store.delete(key)

    async def users(self, tenant: str) -> AsyncIterator[str]:
        """Yields the users of a tenant who have a value; skips unreadable values."""
        place = f"{tenant}/{self._kind}"
        async for listed in all_sessions(self._store, place):
            with suppress(Unreadable):
                value, _ = await self._load(Key(place, listed.session), background=True)
                if value.user and msgspec.structs.replace(value, user="") != self._empty:
                    yield value.user

    async def delete(self, user: Owner) -> bool:
        """Removes a user's value and refuses later writes from before; returns whether there was one.

        If the key of the hashes is unreadable, all unreadable values are removed.
        """
        try:
            key = await self._key(user)
        except Unreadable:
            await self.change_all(user.tenant, lambda value: value)
            return False
        return await self._store.delete(key)

    async def erased_since(self, users: Sequence[Owner], at: float) -> list[Owner]:
        """The users erased after ``at``, in seconds since 1970, while that is remembered.

        Without the key of the hashes, because its encryption key is lost, no erasure is found.
        """
        try:
            if not await self._has_secret(background=True):
                return []
        except Unreadable:
            return []
        return [user for user in users if (await self._store.deleted(self._hashed(user)) or 0.0) > at]

    async def _change(
        self, key: Key, change: Callable[[T], T], at: float, ttl: Callable[[T], float], user: str = ""
    ) -> bool:
        for _ in range(_ATTEMPTS):
            former, version = await self._load(key, background=True)
            changed = change(former)
            if changed == former:
                return False
            if user:
                changed = msgspec.structs.replace(changed, user=user)
            blob = extensible.encode(changed)
            if await self._store.write(key, BlobWrite(blob, version, ttl(changed), at=at, background=True)):
                return True
            await asyncio.sleep(random.uniform(0, _MAX_PAUSE))  # noqa: S311 - so that two writers part
        raise StoreError("other requests are writing this user's data")

    async def _load(self, key: Key, *, background: bool) -> tuple[T, int]:
        stored = await self._store.read(key, background=background)
        if stored is None:
            return self._empty, 0
        return extensible.decode(stored.blob, type(self._empty)), stored.version

    async def _key(self, user: Owner) -> Key:
        """Returns the key of a user's value; creates the key of the hashes if the store has none."""
        while not await self._has_secret(background=True):
            await self._store.write(_SECRET, BlobWrite(secrets.token_bytes(32), 0, LASTING, background=True))
        return self._hashed(user)

    async def _has_secret(self, *, background: bool) -> bool:
        """Whether the store has a key of the hashes; the first time in the background, it is written again.

        Each write uses the newest encryption key, so the key of the hashes outlives a change of keys.
        """
        if not self._secret and (stored := await self._store.read(_SECRET, background=background)):
            self._secret, self._version = stored.blob, stored.version
        if background and self._version:
            put = BlobWrite(self._secret, self._version, LASTING, background=True)
            await self._store.write(_SECRET, put)  # or another process has just written it
            self._version = 0
        return bool(self._secret)

    def _hashed(self, user: Owner) -> Key:
        digest = hmac.digest(self._secret, user.user.encode("utf-8", "surrogatepass"), "sha256")
        return Key(f"{user.tenant}/{self._kind}", digest[:_NAME_BYTES].hex())
