"""Sessions on Redis: one server, Sentinel or Cluster.

A session is two keys in one hash slot: a hash with its version, its hot part and when it was written, and a
list with its cold part. A tenant's list of sessions stands in another slot: a session's place in it may be
lost, which its next write puts right, and may outlive the session, which the list does not show.
"""

import asyncio
import contextlib
import hashlib
import math
import secrets
import time
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from redis.exceptions import NoScriptError, RedisClusterException, RedisError

from proxy.memory.errors import SessionDeleted, StoreError
from proxy.memory.stores.counts import Count
from proxy.memory.stores.redis_client import Address, Argument, Client, PipelinedRedis, client_factory
from proxy.memory.stores.redis_link import Link
from proxy.memory.stores.store import (
    BACKGROUND_DEADLINE,
    CLOCK_TOLERANCE,
    KEEP_EXPIRY,
    TOMBSTONE_SECONDS,
    BlobWrite,
    Key,
    ListedSession,
    Store,
    StoredBlob,
    draw_version,
)

REFUSED: Final = -1
"""What a swap returns for a session that was deleted since."""
MORE, WHOLE = "more", "whole"
"""Whether the entries of a swap are appended to the cold part, or replace it."""

_MAX_TTL: Final = 100 * 365 * 86400.0
_END_OF_TIME: Final = 1e12
_PAGE: Final = 100
_PING_MILLISECONDS: Final = 1000
# Longer than sessions are mostly kept. There is one key for each limit of a tenant, and no more.
_COUNTER_MILLISECONDS: Final = 7 * 86400 * 1000


def open(  # noqa: A001  (a driver is opened, as a file is)
    url: str, *, deadline: float, background_deadline: float = BACKGROUND_DEADLINE
) -> Store:
    """The store at an address, whose operations end within ``deadline`` or ``background_deadline`` seconds.

    Background operations have connections of their own: how long a reply may take is a connection's matter,
    and calls shall not wait behind long replies.

    Nothing is connected before the first operation. Raises ValueError, which never shows the address, for
    one that cannot be parsed.
    """
    place = Address.parse(url)
    background_deadline = max(deadline, background_deadline)
    link, writing = (Link(client_factory(place, deadline), deadline=deadline) for _ in range(2))
    background = Link(client_factory(place, background_deadline), deadline=background_deadline)
    return RedisStore(link, writing, background, KeyNames(place.prefix))


class KeyPair(NamedTuple):
    """Two keys in one hash slot."""

    first: str
    second: str


class KeyNames:
    """The keys under one prefix.

    Ids are percent-encoded, down to letters, digits and ``_.-~``: no two sessions share a key, whatever their
    ids are, and no id leaves its place within the hash tag.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def session(self, key: Key) -> KeyPair:
        """The hash with the hot part, and the list with the cold part."""
        tag = f"{self._prefix}{{{_escaped(key.tenant)}:{_escaped(key.session)}}}"
        return KeyPair(tag + ":hot", tag + ":cold")

    def index(self, tenant: str) -> KeyPair:
        """The sorted sets with a tenant's session ids: by id, and by when they expire."""
        tag = f"{self._prefix}{{={_escaped(tenant)}}}"  # an empty tag would be none
        return KeyPair(tag + ":ids", tag + ":due")

    def count(self, key: str) -> KeyPair:
        """A counter, under a tag that no session has."""
        tag = f"{self._prefix}{{#{_escaped(key)}}}"
        return KeyPair(tag + ":window", tag + ":unused")

    def leases(self, key: str) -> KeyPair:
        """A sorted set of leases by when they expire, beside a counter's keys."""
        tag = f"{self._prefix}{{#{_escaped(key)}}}"
        return KeyPair(tag + ":leases", tag + ":unused")

    def ping(self, name: str) -> KeyPair:
        """Two keys of no session: an index begins otherwise, and a session has a colon."""
        tag = f"{self._prefix}{{{name}}}"
        return KeyPair(tag + ":hot", tag + ":cold")


def member(session: str) -> bytes:
    """A session's id in an index: bytes, whose order is that of the ids."""
    return session.encode("utf-8", "surrogatepass")


def _escaped(name: str) -> str:
    return quote(name.encode("utf-8", "surrogatepass"), safe="")


class Script:
    """A Lua script over two keys of one slot."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._digest = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()

    async def __call__(self, client: Client, keys: KeyPair, *arguments: Argument) -> Any:
        """The script's result: one round trip, two where the server does not know the script yet."""
        try:
            return await client.execute_command(*self.command(keys, *arguments))
        except NoScriptError:
            return await client.execute_command("EVAL", self._source, 2, *keys, *arguments)

    def command(self, keys: KeyPair, *arguments: Argument) -> tuple[Argument, ...]:
        """The command for a server that knows the script."""
        return ("EVALSHA", self._digest, 2, *keys, *arguments)


class ScriptCall(NamedTuple):
    """A script with its keys and arguments."""

    script: Script
    keys: KeyPair
    arguments: tuple[Argument, ...]


async def run_scripts(client: Client, *calls: ScriptCall) -> list[Any]:
    """The results of the calls, one after the other; an error of the server stands among the results.

    One round trip for all of them, but one for each on a Cluster, where keys may be on several servers, and
    for those whose script the server does not know yet.
    """
    if isinstance(client, PipelinedRedis):
        commands = (call.script.command(call.keys, *call.arguments) for call in calls)
        results = await client.execute_all(*commands)
    else:
        results = [NoScriptError() for _ in calls]
    for at, call in enumerate(calls):
        if isinstance(results[at], NoScriptError):
            try:
                results[at] = await call.script(client, call.keys, *call.arguments)
            except (RedisError, RedisClusterException) as error:
                results[at] = error
    return results


# Lasting 0 milliseconds is as long as before, of the cold part too, which may be new.
# A server that is full, read-only or without its replicas refuses a script's first write alone: HSET comes
# first, and then nothing has changed. A cold part without its hot part is what eviction has left of an older
# session.
SWAP = Script("""
local deleted = redis.call('HGET', KEYS[1], 'deleted')
if deleted and tonumber(deleted) >= tonumber(ARGV[6]) and tonumber(deleted) <= tonumber(ARGV[7]) then
  return -1
end
local held = redis.call('HGET', KEYS[1], 'version') or '0'
if held ~= ARGV[1] then return 0 end
local now = redis.call('TIME')
local lasting = tonumber(ARGV[3])
if lasting == 0 then lasting = math.max(1, redis.call('PTTL', KEYS[1])) end
redis.call('HSET', KEYS[1], 'version', ARGV[2], 'blob', ARGV[4], 'size', #ARGV[4],
           'updated', string.format('%d.%06d', now[1], now[2]))
if held == '0' or ARGV[5] == 'whole' then redis.call('DEL', KEYS[2]) end
for first = 8, #ARGV, 1000 do
  redis.call('RPUSH', KEYS[2], unpack(ARGV, first, math.min(first + 999, #ARGV)))
end
redis.call('PEXPIRE', KEYS[1], lasting)
redis.call('PEXPIRE', KEYS[2], lasting)
return 1
""")


# GT: a writer that loses the swap shortens no other's place. Members leave by when they expire, in the step
# that renews them: a clean-up after a look for the session would race with the write that brings it back.
ENTER = Script("""
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', KEYS[1], 0, ARGV[1])
redis.call('ZADD', KEYS[2], 'GT', now + ARGV[2], ARGV[1])
local expired = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, 100)
if #expired > 0 then
  redis.call('ZREM', KEYS[1], unpack(expired))
  redis.call('ZREM', KEYS[2], unpack(expired))
end
local last = redis.call('ZREVRANGE', KEYS[2], 0, 0, 'WITHSCORES')
redis.call('PEXPIREAT', KEYS[1], last[2])
redis.call('PEXPIREAT', KEYS[2], last[2])
return 1
""")
LEAVE = Script("""
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
return 1
""")


# When it was deleted is all that is left of the hash. DEL comes first: a full server takes a script's later
# writes, as long as it took one.
REMOVE = Script("""
local there = redis.call('HGET', KEYS[1], 'version')
redis.call('DEL', KEYS[1], KEYS[2])
redis.call('HSET', KEYS[1], 'deleted', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return there and 1 or 0
""")


# A Redis that makes room takes the keys that would expire first (volatile-ttl), and a minute is shorter than
# all that is kept of a session: so the key outlives its window, whose end stands in it.
COUNT = Script("""
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local over = tonumber(redis.call('HGET', KEYS[1], 'until') or 0)
if over <= now or over > now + ARGV[2] then
  over = now + ARGV[2]
  redis.call('HSET', KEYS[1], 'count', 0, 'until', over)
end
local count = redis.call('HINCRBY', KEYS[1], 'count', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {count, over - now}
""")


# By the server's clock alone. The key outlives its leases for the reason that a counter's does.
TAKE: Final = Script("""
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local most = tonumber(ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
local open = redis.call('ZSCORE', KEYS[1], ARGV[1])
if most >= 0 and not open and redis.call('ZCARD', KEYS[1]) >= most then return 0 end
redis.call('ZADD', KEYS[1], now + ARGV[3], ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return 1
""")


class RedisStore:
    """Sessions on a Redis. A write is as durable as Redis is set up to be (``appendfsync``, replicas).

    Writes have a link of their own: a Redis that holds them up, as before a failover, goes on reading.
    """

    def __init__(self, link: Link, writing: Link, background: Link, names: KeyNames) -> None:
        self._link = link
        self._writing = writing
        self._background = background
        self._names = names

    async def read(self, key: Key, *, background: bool = False) -> StoredBlob | None:
        """The hot part with its version."""
        link = self._background if background else self._link
        version, blob = await link.command("HMGET", self._names.session(key).first, "version", "blob")
        if version is None and blob is None:
            return None
        if version is None or blob is None or not version.isdigit():
            raise StoreError("Redis holds something under a session's key that is not a session")
        return StoredBlob(blob, int(version))

    async def write(self, key: Key, put: BlobWrite) -> bool:
        """Replaces the hot part and appends to the cold part.

        A write whose reply came too late may have been made, or be made within twelve deadlines.
        """
        return await self._swap(self._background if put.background else self._writing, key, put, MORE)

    async def replace(self, key: Key, put: BlobWrite) -> bool:
        """Replaces both parts."""
        return await self._swap(self._background, key, put._replace(at=math.inf), WHOLE)

    async def cold(self, key: Key, *, start: int = 0, limit: int = 1000) -> list[bytes]:
        """The cold part from the entry ``start`` on."""
        if limit <= 0:
            return []
        name = self._names.session(key).second
        blobs: list[bytes] = await self._background.command("LRANGE", name, start, start + limit - 1)
        return blobs

    async def delete(self, key: Key) -> bool:
        """Removes both parts, then the session's place in its tenant's list."""
        keys, index = self._names.session(key), self._names.index(key.tenant)

        async def work(client: Client) -> bool:
            now, ttl = _timestamp(time.time()), _milliseconds(TOMBSTONE_SECONDS)
            existed = bool(await REMOVE(client, keys, now, ttl))
            # A place without a session is not shown, and goes when the session would have expired.
            with contextlib.suppress(RedisError, RedisClusterException):
                await LEAVE(client, index, member(key.session))
            return existed

        return await self._background.run(work)

    async def deleted(self, key: Key) -> float | None:
        """When the session was deleted last."""
        deleted = await self._link.command("HGET", self._names.session(key).first, "deleted")
        return None if deleted is None else float(deleted)

    async def list(self, tenant: str, *, after: str = "", limit: int = 100) -> list[ListedSession]:
        """A tenant's sessions: pages of ids, then what is still there of them, until there are enough."""
        index = self._names.index(tenant).first

        async def work(client: Client) -> list[ListedSession]:
            listed: list[ListedSession] = []
            bound = b"(" + member(after) if after else b"-"
            while len(listed) < limit:
                members = await client.execute_command("ZRANGEBYLEX", index, bound, "+", "LIMIT", 0, _PAGE)
                if not members:
                    break
                bound = b"(" + members[-1]
                ids = [each.decode("utf-8", "surrogatepass") for each in members]
                pipeline = client.pipeline(transaction=False)
                for each in ids:
                    hot = self._names.session(Key(tenant, each)).first
                    pipeline.execute_command("HMGET", hot, "updated", "size")
                for each, (updated, size) in zip(ids, await pipeline.execute(), strict=True):
                    if updated:
                        listed.append(ListedSession(each, float(updated), int(size)))
            return listed[:limit]

        return await self._background.run(work) if limit > 0 else []

    async def ping(self) -> None:
        """Reads, and writes for a second as all writes are made."""
        keys = self._names.ping(f"trial-{secrets.token_hex(8)}")
        since = _deletion_bounds(math.inf)
        write = self._writing.run(
            lambda client: SWAP(client, keys, 0, 1, _PING_MILLISECONDS, b"", MORE, *since)
        )
        await asyncio.gather(write, self._link.command("HMGET", keys.first, "version", "blob"))

    async def aclose(self) -> None:
        """Ends what is in flight and closes all connections."""
        await asyncio.gather(self._link.aclose(), self._writing.aclose(), self._background.aclose())

    async def _swap(self, link: Link, key: Key, put: BlobWrite, cold: str) -> bool:
        keys, index = self._names.session(key), self._names.index(key.tenant)
        ttl, bounds = _milliseconds(put.ttl), _deletion_bounds(put.at)
        version = put.new_version or draw_version()
        arguments: tuple[Argument, ...] = (put.version, version, ttl, put.blob, cold, *bounds, *put.cold)

        async def work(client: Client) -> int:
            # The place in the list comes first: without its session it is not shown. Where it is refused, in
            # another slot than the session's, the next write makes it.
            enter = (ScriptCall(ENTER, index, (member(key.session), ttl)),) if ttl else ()
            *_, swapped = await run_scripts(client, *enter, ScriptCall(SWAP, keys, arguments))
            if isinstance(swapped, Exception):
                raise swapped
            return int(swapped)

        swapped = await link.run(work)
        if swapped == REFUSED:
            raise SessionDeleted("the session was deleted")
        return bool(swapped)


def _deletion_bounds(at: float) -> tuple[str, str]:
    """Between which two times a deletion forbids what arrived ``at`` a time."""
    return _timestamp(at), _timestamp(time.time() + CLOCK_TOLERANCE)


def _timestamp(at: float) -> str:
    """A time as a script reads it."""
    return f"{min(at, _END_OF_TIME):.6f}"


def _milliseconds(ttl: float) -> int:
    """A ``ttl`` as a script reads it; 0 keeps the expiry."""
    return 0 if ttl == KEEP_EXPIRY else max(1, int(min(ttl, _MAX_TTL) * 1000))


class RedisCounts:
    """Counters and leases by key, each in one round trip. Raises StoreError after one deadline."""

    def __init__(self, url: str, *, deadline: float) -> None:
        place = Address.parse(url)
        self._link = Link(client_factory(place, deadline), deadline=deadline)
        self._names = KeyNames(place.prefix)

    async def add(self, key: str, amount: int, *, ttl: float) -> Count:
        """Adds to a counter."""
        arguments = amount, int(ttl * 1000), _COUNTER_MILLISECONDS
        number, left = await self._link.run(lambda client: COUNT(client, self._names.count(key), *arguments))
        return Count(int(number), int(left) / 1000)

    async def take(self, key: str, lease: str, *, limit: float, ttl: float) -> bool:
        """Takes or renews a lease."""
        most = -1 if math.isinf(limit) else int(limit)
        arguments = lease, most, int(ttl * 1000), _COUNTER_MILLISECONDS
        keys = self._names.leases(key)
        return bool(await self._link.run(lambda client: TAKE(client, keys, *arguments)))

    async def free(self, key: str, lease: str) -> None:
        """Gives a lease back."""
        await self._link.command("ZREM", self._names.leases(key).first, lease)

    async def aclose(self) -> None:
        """Closes all connections."""
        await self._link.aclose()
