"""One value for each user, kept in the session store: under every kind of store the same few operations."""

import asyncio
import hmac
import math
import random
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Final, Generic, TypeVar

import msgspec

from proxy.memory import extensible
from proxy.memory.errors import SessionDeleted, StoreError, Unreadable
from proxy.memory.stores.store import BlobWrite, Key, Owner, Store, all_sessions


class UserValue(extensible.Extensible, frozen=True, kw_only=True):
    """A value, and whose it is; no name where an older version wrote it."""

    user: str = ""


T = TypeVar("T", bound=UserValue)

LASTING: Final = 10 * 365 * 86_400.0
"""The seconds for which a value is kept that has no end of its own; each write renews it."""
_ATTEMPTS: Final = 50
_MAX_PAUSE: Final = 0.01
_NAME_BYTES: Final = 16
# No tenant has such a name.
_SECRET: Final = Key("~users", "secret")


class UserValues(Generic[T]):
    """Values of one kind in a store, each of a user. Every method may raise StoreError.

    They stand under ``TENANT/KIND``, which no tenant is called, and go through the store's own encryption.
    What an erased one leaves is a keyed hash in the place of the user's id. ``empty`` is the value of a user
    who has none.
    """

    def __init__(self, store: Store, kind: str, empty: T) -> None:
        self._store = store
        self._kind = kind
        self._empty = empty
        self._secret = b""

    async def read(self, user: Owner, *, background: bool = False) -> T:
        """The value of a user; a ``background`` read may take as long as a list."""
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
        """Replace a value by what ``change`` makes of it; whether it differs.

        It is kept for ``ttl`` seconds, and nothing is written where it is the same. Raises SessionDeleted
        where the user was erased after ``at``, in seconds since 1970, else is never refused.
        """
        return await self._change(await self._key(user), change, at, ttl, user.user)

    async def change_all(
        self,
        tenant: str,
        change: Callable[[T], T],
        *,
        at: float,
        ttl: Callable[[T], float] = lambda _: LASTING,
    ) -> None:
        """Change the values of all users of a tenant; one that cannot be read is removed."""
        place = f"{tenant}/{self._kind}"
        async for listed in all_sessions(self._store, place):
            key = Key(place, listed.session)
            try:
                await self._change(key, change, at, ttl)
            except SessionDeleted:
                continue
            except Unreadable:
                await self._store.delete(key)

    async def users(self, tenant: str) -> AsyncIterator[str]:
        """The users of a tenant who have a value; one that cannot be read tells none."""
        place = f"{tenant}/{self._kind}"
        async for listed in all_sessions(self._store, place):
            with suppress(Unreadable):
                value, _ = await self._load(Key(place, listed.session), background=True)
                if value.user and msgspec.structs.replace(value, user="") != self._empty:
                    yield value.user

    async def delete(self, user: Owner) -> bool:
        """Remove a user's value, and refuse what arrived before and comes later; whether there was one.

        Where nothing can be read that tells whose the values are, all that cannot be read are removed.
        """
        try:
            key = await self._key(user)
        except Unreadable:
            await self.change_all(user.tenant, lambda value: value, at=math.inf)
            return False
        return await self._store.delete(key)

    async def erased_at(self, user: Owner) -> float | None:
        """When a user was erased last, in seconds since 1970, while that is remembered."""
        if not await self._has_secret(background=True):
            return None
        return await self._store.deleted(self._hashed(user))

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
        raise StoreError("others are writing what is kept of this user")

    async def _load(self, key: Key, *, background: bool) -> tuple[T, int]:
        stored = await self._store.read(key, background=background)
        if stored is None:
            return self._empty, 0
        try:
            return extensible.decode(stored.blob, type(self._empty)), stored.version
        except msgspec.DecodeError as error:
            raise Unreadable("What is kept of a user cannot be read.") from error

    async def _key(self, user: Owner) -> Key:
        """Where a user's value stands; the key of the hashes is made where the store has none."""
        while not await self._has_secret(background=True):
            await self._store.write(_SECRET, BlobWrite(secrets.token_bytes(32), 0, LASTING, background=True))
        return self._hashed(user)

    async def _has_secret(self, *, background: bool) -> bool:
        """Whether there is a key of the hashes, which the store keeps."""
        if not self._secret and (stored := await self._store.read(_SECRET, background=background)):
            self._secret = stored.blob
        return bool(self._secret)

    def _hashed(self, user: Owner) -> Key:
        digest = hmac.digest(self._secret, user.user.encode("utf-8", "surrogatepass"), "sha256")
        return Key(f"{user.tenant}/{self._kind}", digest[:_NAME_BYTES].hex())
