"""Sessions on a Redis, by the store's words."""

import asyncio
import contextlib
import math
import secrets
import time

from redis.exceptions import RedisClusterException, RedisError

from proxy.memory.faults import Deleted, StoreError
from proxy.memory.redis.link import Link
from proxy.memory.redis.listing import page
from proxy.memory.redis.names import Names, member
from proxy.memory.redis.scripts import (
    ENTER,
    LEAVE,
    MORE,
    REFUSED,
    REMOVE,
    SWAP,
    WHOLE,
    Argument,
    Client,
    ScriptCall,
    in_a_row,
)
from proxy.memory.store import APART, DELETION_KEPT, UNRENEWED, Held, Key, Listed, Put

_LONGEST = 100 * 365 * 86400.0
_TRIAL = 1000
_END_OF_TIME = 1e12


class RedisStore:
    """Sessions on a Redis. A write is as durable as Redis is set up to be (``appendfsync``, replicas).

    Writes have a link of their own: a Redis that holds them up, as before a failover, goes on reading.
    """

    def __init__(self, link: Link, writing: Link, leisurely: Link, names: Names) -> None:
        self._link = link
        self._writing = writing
        self._leisurely = leisurely
        self._names = names

    async def read(self, key: Key, *, leisure: bool = False) -> Held | None:
        """The hot part with its version."""
        hot = self._names.session(key).first
        link = self._leisurely if leisure else self._link
        return _held(*await link.command("HMGET", hot, "version", "blob"))

    async def write(self, key: Key, put: Put) -> bool:
        """Replaces the hot part and appends to the cold part if ``put.version`` is still held.

        A write whose answer came too late may have been made, or be made within twelve deadlines.
        """
        return await self._swap(self._leisurely if put.leisure else self._writing, key, put, MORE)

    async def replace(self, key: Key, put: Put) -> bool:
        """Replaces both parts if ``put.version`` is still held; else as ``write``."""
        return await self._swap(self._leisurely, key, put._replace(at=math.inf), WHOLE)

    async def _swap(self, link: Link, key: Key, put: Put, how: str) -> bool:
        pair, index = self._names.session(key), self._names.index(key.tenant)
        lasting, since = _milliseconds(put.ttl), _since(put.at)
        what: tuple[Argument, ...] = (put.version, _another(), lasting, put.blob, how, *since, *put.cold)

        async def work(client: Client) -> int:
            # The place in the list comes first: without its session it is not shown. Where it is refused, in
            # another slot than the session's, the next write makes it.
            enter = (ScriptCall(ENTER, index, (member(key.session), lasting)),) if lasting else ()
            *_, swapped = await in_a_row(client, *enter, ScriptCall(SWAP, pair, what))
            if isinstance(swapped, Exception):
                raise swapped
            return int(swapped)

        swapped = await link.ask(work)
        if swapped == REFUSED:
            raise Deleted("the session was deleted")
        return bool(swapped)

    async def cold(self, key: Key, *, start: int = 0, limit: int = 1000) -> list[bytes]:
        """The cold part from the entry ``start`` on."""
        if limit <= 0:
            return []
        name = self._names.session(key).second
        found: list[bytes] = await self._leisurely.command("LRANGE", name, start, start + limit - 1)
        return found

    async def delete(self, key: Key) -> bool:
        """Removes both parts, then the session's place in its tenant's list."""
        pair, index = self._names.session(key), self._names.index(key.tenant)

        async def work(client: Client) -> bool:
            there = bool(await REMOVE(client, pair, _written(time.time()), _milliseconds(DELETION_KEPT)))
            # A place without a session is not shown, and goes when the session would have expired.
            with contextlib.suppress(RedisError, RedisClusterException):
                await LEAVE(client, index, member(key.session))
            return there

        return await self._leisurely.ask(work)

    async def deleted(self, key: Key) -> float | None:
        """As the protocol has it."""
        found = await self._link.command("HGET", self._names.session(key).first, "deleted")
        return None if found is None else float(found)

    async def list(self, tenant: str, *, after: str = "", limit: int = 100) -> list[Listed]:
        """A tenant's sessions: a page of ids, then what is still there of them, until there are enough."""
        return await self._leisurely.ask(lambda client: page(client, self._names, tenant, after, limit))

    async def ping(self) -> None:
        """Returns if a turn could be read and written: one is written, for a second, as all of them are."""
        pair = self._names.trial(f"trial-{secrets.token_hex(8)}")
        trial = self._writing.ask(
            lambda client: SWAP(client, pair, 0, 1, _TRIAL, b"", MORE, *_since(math.inf))
        )
        await asyncio.gather(trial, self._link.command("HMGET", pair.first, "version", "blob"))

    async def aclose(self) -> None:
        """Ends what is under way and closes all connections."""
        await asyncio.gather(self._link.aclose(), self._writing.aclose(), self._leisurely.aclose())


def _held(version: bytes | None, blob: bytes | None) -> Held | None:
    if version is None and blob is None:
        return None
    if version is None or blob is None or not version.isdigit():
        raise StoreError("Redis holds something under a session's key that is not a session")
    return Held(blob, int(version))


def _another() -> int:
    """A version that no state of any session had; counted ones come again after an expiry or a failover."""
    return secrets.randbits(62) + 1


def _since(at: float) -> tuple[str, str]:
    """Between which two times a deletion would forbid what arrived ``at`` one."""
    return _written(at), _written(time.time() + APART)


def _written(at: float) -> str:
    """A time as a script reads it."""
    return f"{min(at, _END_OF_TIME):.6f}"


def _milliseconds(ttl: float) -> int:
    """For how long, as a script reads it; 0 is as long as before."""
    return 0 if ttl == UNRENEWED else max(1, int(min(ttl, _LONGEST) * 1000))
