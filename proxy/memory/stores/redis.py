"""What the keys are called."""

import asyncio
import contextlib
import hashlib
import math
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from redis.exceptions import NoScriptError, RedisClusterException, RedisError

from proxy.memory.errors import SessionDeleted, StoreError
from proxy.memory.stores.counts import Count
from proxy.memory.stores.redis_client import Address, Argument, Client, Direct, clients
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
)

REFUSED = -1
"""What a swap says of a session that was deleted since."""
MORE, WHOLE = "more", "whole"
"""Whether the entries that a swap brings are appended to the cold part, or are all of it."""
_LONGEST = 100 * 365 * 86400.0
_TRIAL = 1000
_END_OF_TIME = 1e12
_AT_ONCE = 100
# Longer than sessions are mostly kept. There is one key for each limit of a tenant, and no more.
_KEPT: Final = 7 * 86400 * 1000


def open(  # noqa: A001  (a driver is opened, as a file is)
    url: str, *, deadline: float, background_deadline: float = BACKGROUND_DEADLINE
) -> Store:
    """The store at this address, whose operations end within ``deadline`` or ``background_deadline`` seconds.

    Those that have leisure go over connections of their own: how long a reply may take is a connection's
    matter, and calls shall not wait behind what is long.

    Nothing is connected before the first operation. Raises ValueError, which never shows the address, for
    one that cannot be understood.
    """
    place = Address.of(url)
    background_deadline = max(deadline, background_deadline)
    link, writing = (Link(clients(place, deadline), deadline=deadline) for _ in range(2))
    background = Link(clients(place, background_deadline), deadline=background_deadline)
    return RedisStore(link, writing, background, Names(place.prefix))


class Pair(NamedTuple):
    """Two keys in one hash slot."""

    first: str
    second: str


class Names:
    """The keys under one prefix.

    Ids are percent-encoded, down to letters, digits and ``_.-~``: no two sessions share a key, whatever their
    ids hold, and no id reaches beyond its place within the hash tag.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def session(self, key: Key) -> Pair:
        """The hash with the hot part, and the list with the cold part."""
        tag = f"{self._prefix}{{{_escaped(key.tenant)}:{_escaped(key.session)}}}"
        return Pair(tag + ":hot", tag + ":cold")

    def index(self, tenant: str) -> Pair:
        """The sorted sets with a tenant's session ids: by id, and by when they expire."""
        tag = f"{self._prefix}{{={_escaped(tenant)}}}"  # an empty tag would be none
        return Pair(tag + ":ids", tag + ":due")

    def count(self, key: str) -> Pair:
        """A number that is counted up, under a tag that no session has."""
        tag = f"{self._prefix}{{#{_escaped(key)}}}"
        return Pair(tag + ":window", tag + ":unused")

    def trial(self, mark: str) -> Pair:
        """Two keys that belong to no session: an index is called otherwise, and a session has a colon."""
        tag = f"{self._prefix}{{{mark}}}"
        return Pair(tag + ":hot", tag + ":cold")


def member(session: str) -> bytes:
    """A session's id as an index holds it: bytes, whose order is that of the ids."""
    return session.encode("utf-8", "surrogatepass")


def _escaped(name: str) -> str:
    return quote(name.encode("utf-8", "surrogatepass"), safe="")


class Script:
    """A Lua script over two keys of one slot."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._digest = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()

    async def __call__(self, client: Client, keys: Pair, *arguments: Argument) -> Any:
        """The script's answer: one round trip, two where the server does not know the script yet."""
        try:
            return await client.execute_command(*self.called(keys, *arguments))
        except NoScriptError:
            return await client.execute_command("EVAL", self._source, 2, *keys, *arguments)

    def called(self, keys: Pair, *arguments: Argument) -> tuple[Argument, ...]:
        """The command for a server that knows the script."""
        return ("EVALSHA", self._digest, 2, *keys, *arguments)


class ScriptCall(NamedTuple):
    """A script with all that it is given."""

    script: Script
    keys: Pair
    arguments: tuple[Argument, ...]


async def in_a_row(client: Client, *calls: ScriptCall) -> list[Any]:
    """What the calls answer, one after the other; what a server says is wrong stands among the answers.

    One round trip for all of them, but one for each on a Cluster, where keys may be on several servers, and
    for those whose script the server does not know yet.
    """
    if not isinstance(client, Direct):
        return [await _tried(client, call) for call in calls]
    answers = await client.answers(*(call.script.called(call.keys, *call.arguments) for call in calls))
    return [
        await _tried(client, call) if isinstance(answer, NoScriptError) else answer
        for call, answer in zip(calls, answers, strict=True)
    ]


async def _tried(client: Client, call: ScriptCall) -> Any:
    try:
        return await call.script(client, call.keys, *call.arguments)
    except (RedisError, RedisClusterException) as fault:
        return fault


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


# GT: a writer that loses the swap shortens nobody's place. Members leave by when they expire, in the step
# that renews them: whoever cleaned up after having looked for the session would race with the write that
# brings it back.
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


class RedisStore:
    """Sessions on a Redis. A write is as durable as Redis is set up to be (``appendfsync``, replicas).

    Writes have a link of their own: a Redis that holds them up, as before a failover, goes on reading.
    """

    def __init__(self, link: Link, writing: Link, background: Link, names: Names) -> None:
        self._link = link
        self._writing = writing
        self._background = background
        self._names = names

    async def read(self, key: Key, *, background: bool = False) -> StoredBlob | None:
        """The hot part with its version."""
        hot = self._names.session(key).first
        link = self._background if background else self._link
        return _stored(*await link.command("HMGET", hot, "version", "blob"))

    async def write(self, key: Key, put: BlobWrite) -> bool:
        """Replaces the hot part and appends to the cold part if ``put.version`` is still held.

        A write whose answer came too late may have been made, or be made within twelve deadlines.
        """
        return await self._swap(self._background if put.background else self._writing, key, put, MORE)

    async def replace(self, key: Key, put: BlobWrite) -> bool:
        """Replaces both parts if ``put.version`` is still held; else as ``write``."""
        return await self._swap(self._background, key, put._replace(at=math.inf), WHOLE)

    async def _swap(self, link: Link, key: Key, put: BlobWrite, how: str) -> bool:
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
            raise SessionDeleted("the session was deleted")
        return bool(swapped)

    async def cold(self, key: Key, *, start: int = 0, limit: int = 1000) -> list[bytes]:
        """The cold part from the entry ``start`` on."""
        if limit <= 0:
            return []
        name = self._names.session(key).second
        found: list[bytes] = await self._background.command("LRANGE", name, start, start + limit - 1)
        return found

    async def delete(self, key: Key) -> bool:
        """Removes both parts, then the session's place in its tenant's list."""
        pair, index = self._names.session(key), self._names.index(key.tenant)

        async def work(client: Client) -> bool:
            there = bool(await REMOVE(client, pair, _written(time.time()), _milliseconds(TOMBSTONE_SECONDS)))
            # A place without a session is not shown, and goes when the session would have expired.
            with contextlib.suppress(RedisError, RedisClusterException):
                await LEAVE(client, index, member(key.session))
            return there

        return await self._background.ask(work)

    async def deleted(self, key: Key) -> float | None:
        """As the protocol has it."""
        found = await self._link.command("HGET", self._names.session(key).first, "deleted")
        return None if found is None else float(found)

    async def list(self, tenant: str, *, after: str = "", limit: int = 100) -> list[ListedSession]:
        """A tenant's sessions: a page of ids, then what is still there of them, until there are enough."""
        return await self._background.ask(lambda client: _page(client, self._names, tenant, after, limit))

    async def ping(self) -> None:
        """Returns if a turn could be read and written: one is written, for a second, as all of them are."""
        pair = self._names.trial(f"trial-{secrets.token_hex(8)}")
        trial = self._writing.ask(
            lambda client: SWAP(client, pair, 0, 1, _TRIAL, b"", MORE, *_since(math.inf))
        )
        await asyncio.gather(trial, self._link.command("HMGET", pair.first, "version", "blob"))

    async def aclose(self) -> None:
        """Ends what is under way and closes all connections."""
        await asyncio.gather(self._link.aclose(), self._writing.aclose(), self._background.aclose())


def _stored(version: bytes | None, blob: bytes | None) -> StoredBlob | None:
    if version is None and blob is None:
        return None
    if version is None or blob is None or not version.isdigit():
        raise StoreError("Redis holds something under a session's key that is not a session")
    return StoredBlob(blob, int(version))


def _another() -> int:
    """A version that no state of any session had; counted ones come again after an expiry or a failover."""
    return secrets.randbits(62) + 1


def _since(at: float) -> tuple[str, str]:
    """Between which two times a deletion would forbid what arrived ``at`` one."""
    return _written(at), _written(time.time() + CLOCK_TOLERANCE)


def _written(at: float) -> str:
    """A time as a script reads it."""
    return f"{min(at, _END_OF_TIME):.6f}"


def _milliseconds(ttl: float) -> int:
    """For how long, as a script reads it; 0 is as long as before."""
    return 0 if ttl == KEEP_EXPIRY else max(1, int(min(ttl, _LONGEST) * 1000))


async def _page(client: Client, names: Names, tenant: str, after: str, limit: int) -> list[ListedSession]:
    """Up to ``limit`` sessions behind ``after``: ids first, then what is still there of them."""
    listed: list[ListedSession] = []
    if limit <= 0:
        return listed
    async for ids in _session_ids(client, names.index(tenant).first, after):
        listed += await _existing(client, names, tenant, ids)
        if len(listed) >= limit:
            break
    return listed[:limit]


async def _session_ids(client: Client, index: str, after: str) -> AsyncIterator[list[str]]:
    bound = b"(" + member(after) if after else b"-"
    while found := await client.execute_command("ZRANGEBYLEX", index, bound, "+", "LIMIT", 0, _AT_ONCE):
        yield [one.decode("utf-8", "surrogatepass") for one in found]
        bound = b"(" + found[-1]


async def _existing(client: Client, names: Names, tenant: str, ids: list[str]) -> list[ListedSession]:
    pipeline = client.pipeline(transaction=False)
    for one in ids:
        pipeline.execute_command("HMGET", names.session(Key(tenant, one)).first, "updated", "size")
    found = await pipeline.execute()
    return [
        ListedSession(one, float(at), int(size)) for one, (at, size) in zip(ids, found, strict=True) if at
    ]


class RedisCounts:
    """Numbers by key, each asked for in one round trip; StoreError after one deadline at the latest."""

    def __init__(self, url: str, *, deadline: float) -> None:
        place = Address.of(url)
        self._link = Link(clients(place, deadline), deadline=deadline)
        self._names = Names(place.prefix)

    async def add(self, key: str, amount: int, *, lasting: float) -> Count:
        """As the protocol has it."""
        what = amount, int(lasting * 1000), _KEPT
        number, left = await self._link.ask(lambda client: COUNT(client, self._names.count(key), *what))
        return Count(int(number), int(left) / 1000)

    async def aclose(self) -> None:
        """Closes all connections."""
        await self._link.aclose()
