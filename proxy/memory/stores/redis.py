"""Sessions on Redis: one server, Sentinel or Cluster.

A session is two keys in one hash slot: a hash with its version, its hot part and the time of its last write,
and a list with its cold part. The index of sessions and the queue of background work are in other slots, in
buckets that are spread evenly over a Cluster. A place in the index may be lost until the next write after a
minute, and may outlive its session, which lists do not show then.
"""

import asyncio
import contextlib
import heapq
import itertools
import math
import re
import secrets
import zlib
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote_to_bytes

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from proxy.circuit import Backoff
from proxy.clock import wall_time
from proxy.memory.errors import SessionDeleted, StoreError
from proxy.memory.stores.addresses import CLUSTER, RedisAddress
from proxy.memory.stores.redis_client import RedisClient
from proxy.memory.stores.redis_link import Link, Piggyback, Script, ScriptCall, run_scripts
from proxy.memory.stores.store import (
    BACKGROUND_DEADLINE,
    CLOCK_TOLERANCE,
    KEEP_EXPIRY,
    NEVER_DUE,
    TOMBSTONE_SECONDS,
    BlobWrite,
    DueSession,
    Key,
    ListedSession,
    Store,
    StoredBlob,
    draw_version,
)
from proxy.memory.tasks import Tasks, retrieve_exception
from proxy.newest import Newest

REFUSED: Final = -1
"""The result of a swap of a session that was deleted since."""
MORE, WHOLE = "more", "whole"
"""The entries of a swap are appended to the cold part, or replace it."""

_MAX_TTL: Final = 100 * 365 * 86400.0
_END_OF_TIME: Final = 1e12
_PAGE: Final = 100
_PING_MILLISECONDS: Final = 1000
_INDEX_BUCKETS: Final = 64
"""The buckets of a Cluster. One server has one bucket of each kind, which it reads with one command."""
_DUE_BUCKETS: Final = 16
_BUCKETS_AT_ONCE: Final = 2
_RENEW_EVERY: Final = 60.0
"""Seconds after which a write renews a session's place in the index, which expires that much later."""
_SETTLING: Final = 1.0
"""The minimum of seconds until a session is due, by which time it is written."""
_LEAST_KEPT: Final = 86400.0
_MAX_PLACES: Final = 10_000
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.~-]*")
_LATE: Final = Backoff(1.0, 60.0)
_LATE_ATTEMPTS: Final = 30
# The index of a version without buckets is moved a page at a time; its sessions become due over 15 minutes.
_MOVED_AT_ONCE: Final = 14
_MOVE_EVERY: Final = 600.0
_MOVE_MILLISECONDS: Final = int(2000 * BACKGROUND_DEADLINE)
_LOOK_WITHIN_MILLISECONDS: Final = 900_000


def open(  # noqa: A001  (a driver is opened, as a file is)
    url: str, *, deadline: float, take_along: Callable[[str], Piggyback | None] = lambda _: None
) -> Store:
    """Returns the store at an address, whose operations end within ``deadline`` seconds.

    ``take_along`` returns a tenant's call that is sent along with a turn's write. Nothing is connected before
    the first operation. Raises ValueError, without the address, if that cannot be parsed.
    """
    return RedisStore(RedisAddress.parse(url), deadline, take_along)


class KeyPair(NamedTuple):
    """Two keys in one hash slot."""

    first: str
    second: str


class KeyNames:
    """The names of keys under one prefix; with ``spread``, buckets are spread over the slots of a Cluster.

    Ids are percent-encoded except for letters, digits and ``_.-~``, so that no two sessions share a key, and
    no id can end the hash tag.
    """

    def __init__(self, prefix: str, *, spread: bool = False) -> None:
        self._prefix = prefix
        # Redis ignores an empty tag; an older version's index has the tenant's name after the sign.
        indexes, due = (_INDEX_BUCKETS, _DUE_BUCKETS) if spread else (1, 1)
        tags = _spread_tags("=:", indexes)
        self.indexes = tuple(KeyPair(f"{prefix}{{{tag}}}:ids", f"{prefix}{{{tag}}}:due") for tag in tags)
        """The sorted sets of the places of sessions, by tenant and id, and by expiry."""
        self.due = tuple(f"{prefix}{{{tag}}}:work" for tag in _spread_tags("@", due))
        """The sorted sets of sessions with background work, by when it is due."""

    def session(self, key: Key) -> KeyPair:
        """Returns the keys of the hash with the hot part, and of the list with the cold part."""
        tag = f"{self._prefix}{{{_escaped(key.tenant)}:{_escaped(key.session)}}}"
        return KeyPair(tag + ":hot", tag + ":cold")

    def index(self, place: bytes) -> KeyPair:
        """Returns the bucket of a place in the index."""
        return self.indexes[zlib.crc32(place) % len(self.indexes)]

    def due_bucket(self, place: bytes) -> str:
        """Returns the bucket of a session with background work."""
        return self.due[zlib.crc32(place) % len(self.due)]

    def former_index(self, tenant: str) -> KeyPair:
        """Returns a tenant's index of a version without buckets: session ids, and their expiry."""
        tag = f"{self._prefix}{{={_escaped(tenant)}}}"
        return KeyPair(tag + ":ids", tag + ":due")

    def lease(self, name: str) -> str:
        """Returns the key of a lease, with a tag that no session has."""
        return f"{self._prefix}{{+{_escaped(name)}}}:lease"

    def counts(self, key: str) -> KeyPair:
        """Returns the keys of a hash of counters, and of a sorted set of leases by expiry."""
        tag = f"{self._prefix}{{#{_escaped(key)}}}"
        return KeyPair(tag + ":windows", tag + ":leases")

    def turns(self, tenant: str) -> tuple[str, str, str]:
        """Returns the keys of a tenant's turns for the web page: by time, their data, and recent erasures."""
        tag = f"{self._prefix}{{!{_escaped(tenant)}}}"
        return tag + ":ids", tag + ":turns", tag + ":erased"


def member(session: str) -> bytes:
    """Encodes a session's id for an index; the bytes sort like the ids."""
    return session.encode("utf-8", "surrogatepass")


def place_of(key: Key) -> bytes:
    """Returns the place of a session in the index; the places of a tenant sort like the ids."""
    return _escaped(key.tenant).encode() + b":" + member(key.session)


def key_of(place: bytes) -> Key:
    """Returns the session of a place in the index."""
    tenant, _, session = place.partition(b":")
    return Key(*(each.decode("utf-8", "surrogatepass") for each in (unquote_to_bytes(tenant), session)))


@cache
def _spread_tags(sign: str, count: int) -> tuple[str, ...]:
    """Returns ``count`` hash tags, one for each equal part of a Cluster's slots."""
    tags: dict[int, str] = {}
    for number in itertools.count():
        tag = f"{sign}{number}"
        tags.setdefault(key_slot(tag.encode()) * count // REDIS_CLUSTER_HASH_SLOTS, tag)
        if len(tags) == count:
            return tuple(tags[part] for part in range(count))
    raise AssertionError


def _escaped(name: str) -> str:
    if _PLAIN.fullmatch(name):
        return name
    return quote(name.encode("utf-8", "surrogatepass"), safe="")


# A duration of 0 milliseconds keeps the expiry, also for the cold part, which may be new.
# A server that is full, read-only or without its replicas refuses only a script's first write, so HSET comes
# first: a refused script changes nothing. A cold part without a hot part belongs to an evicted session.
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


# GT, so that a writer that loses the swap does not shorten the place of another. Members are removed by
# expiry, in the script that renews them: another clean-up would race with a write that restores the session.
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


# Times are the server's, because clocks of hosts differ. An existing place always changes, so that a worker
# that took the session before this write cannot settle it. The session is never due before the write under
# way. If that write loses to another, the work may be late, and its writer tries again. Sessions that are
# overdue for longer than a session lasts have expired.
SCHEDULE = Script("""
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local due, lasting = now + ARGV[2], tonumber(ARGV[3])
if tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or nil) == due then due = due + 1 end
redis.call('ZADD', KEYS[1], string.format('%d', due), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%d', now - lasting))
local last = due - now + lasting
if redis.call('PTTL', KEYS[1]) < last then redis.call('PEXPIRE', KEYS[1], string.format('%d', last)) end
return 1
""")
TAKE_DUE = Script("""
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local places = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%d', now), 'LIMIT', 0, ARGV[1])
local until_ = string.format('%d', now + ARGV[2])
for _, place in ipairs(places) do redis.call('ZADD', KEYS[1], until_, place) end
return {until_, unpack(places)}
""")
SETTLE = Script("""
if tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or nil) ~= tonumber(ARGV[2]) then return false end
if ARGV[3] == 'never' then
  redis.call('ZREM', KEYS[1], ARGV[1])
  return 'never'
end
local time = redis.call('TIME')
local due = string.format('%d', time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[3])
redis.call('ZADD', KEYS[1], due, ARGV[1])
return due
""")
ACQUIRE = Script("""
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return false end
local holder = redis.call('GET', KEYS[1])
if holder ~= ARGV[1] and holder ~= ARGV[3] then return holder end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return false
""")
RELEASE = Script("""
return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1]) or 0
""")


# Only the time of the deletion stays in the hash. DEL comes first: a full server accepts a script's later
# writes once it has accepted one.
REMOVE = Script("""
local there = redis.call('HGET', KEYS[1], 'version')
redis.call('DEL', KEYS[1], KEYS[2])
redis.call('HSET', KEYS[1], 'deleted', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return there and 1 or 0
""")


class _Places(NamedTuple):
    """A session's places as this process wrote them with ``version``; times are by the loop's clock.

    The index needs no renewal before ``renew_at``. Unless another process has written the session, it is
    queued for background work at ``due_at``.
    """

    version: int = 0
    renew_at: float = -math.inf
    due_at: float = math.inf


class RedisStore:
    """Sessions on a Redis. Writes are as durable as its settings make them (``appendfsync``, replicas).

    Writes have their own link, because a Redis that blocks writes, as before a failover, still answers reads.
    A turn is one command to read and one to write; other places are written only when they change.
    """

    def __init__(
        self, place: RedisAddress, deadline: float, take_along: Callable[[str], Piggyback | None]
    ) -> None:
        is_cluster = place.form == CLUSTER
        self._link, self._writing = Link(place, deadline), Link(place, deadline)
        # Time-outs are per connection, and turns must not wait behind slow replies.
        self._background = Link(place, max(deadline, BACKGROUND_DEADLINE))
        self._names = names = KeyNames(place.prefix, spread=is_cluster)
        # On a Cluster, the additional call would go to another server.
        self._take_along = take_along if not is_cluster else lambda _: None
        self._places = Newest[Key, _Places](_MAX_PLACES)
        self._next_bucket = secrets.randbelow(len(names.due))
        self._move_at: dict[str, float] = {}
        self._late = Tasks()

    async def read(self, key: Key, *, background: bool = False) -> StoredBlob | None:
        """Reads the hot part with its version."""
        link = self._background if background else self._link
        version, blob = await link.command("HMGET", self._names.session(key).first, "version", "blob")
        if version is None and blob is None:
            return None
        if version is None or blob is None or not version.isdigit():
            raise StoreError("Redis has a value under a session's key that is not a session")
        return StoredBlob(blob, int(version))

    async def write(self, key: Key, put: BlobWrite) -> bool:
        """Replaces the hot part and appends to the cold part.

        A write that timed out may have succeeded, or succeed within twelve deadlines.
        """
        return await self._swap(key, put, MORE)

    async def replace(self, key: Key, put: BlobWrite) -> bool:
        """Replaces both parts."""
        return await self._swap(key, put._replace(at=math.inf, background=True), WHOLE)

    async def cold(self, key: Key, *, start: int = 0, limit: int = 1000) -> list[bytes]:
        """Reads the cold part from the entry ``start`` on."""
        if limit <= 0:
            return []
        name = self._names.session(key).second
        blobs: list[bytes] = await self._background.command("LRANGE", name, start, start + limit - 1)
        return blobs

    async def delete(self, key: Key) -> bool:
        """Removes both parts, then the session's place in its tenant's list."""
        keys, place = self._names.session(key), place_of(key)
        self._places.pop(key, None)
        now, ttl = _timestamp(wall_time()), _milliseconds(TOMBSTONE_SECONDS)
        existed = bool(await self._background.script(REMOVE(keys, now, ttl)))
        # Lists skip a place without a session, and it is removed when the session would have expired.
        with contextlib.suppress(StoreError):
            former = LEAVE(self._names.former_index(key.tenant), member(key.session))
            await self._background.scripts(LEAVE(self._names.index(place), place), former)
        return existed

    async def deleted(self, key: Key) -> float | None:
        """Returns when the session was deleted last, in seconds since 1970."""
        deleted = await self._link.command("HGET", self._names.session(key).first, "deleted")
        return None if deleted is None else float(deleted)

    async def list(self, tenant: str, *, after: str = "", limit: int = 100) -> list[ListedSession]:
        """Lists a tenant's sessions: reads pages of ids, then their sessions, until there are enough."""

        async def work(client: RedisClient) -> list[ListedSession]:
            listed: list[ListedSession] = []
            last = member(after)
            while len(listed) < limit:
                members = await self._members(client, tenant, last)
                if not members:
                    break
                last = members[-1]
                ids = [each.decode("utf-8", "surrogatepass") for each in members]
                hot = [self._names.session(Key(tenant, each)).first for each in ids]
                read = (client.execute_command("HMGET", each, "updated", "size") for each in hot)
                for each, (updated, size) in zip(ids, await asyncio.gather(*read), strict=True):
                    if updated:
                        listed.append(ListedSession(each, float(updated), int(size)))
            return listed[:limit]

        return await self._background.run(work)

    async def take_due(self, tenants: Sequence[str], *, limit: int, lease: float) -> Sequence[DueSession]:
        """Takes due sessions; on a Cluster, each call checks the next few buckets."""
        for tenant in tenants:
            if asyncio.get_running_loop().time() >= self._move_at.get(tenant, 0.0):
                await self._background.run(partial(self._move_former, tenant))
        names, milliseconds = self._names.due, int(lease * 1000)
        taken: list[DueSession] = []
        for _ in range(min(_BUCKETS_AT_ONCE, len(names))):
            name = names[self._next_bucket % len(names)]
            take = TAKE_DUE((name,), limit - len(taken), milliseconds)
            until, *places = await self._background.script(take)
            taken += [DueSession(key_of(place), f"{name} {until.decode()}") for place in places]
            if len(taken) == limit:
                break
            self._next_bucket += 1
        return taken

    async def settle(self, session: DueSession, due: float) -> DueSession | None:
        """Sets when a session is due again."""
        name, _, until = session.lease.rpartition(" ")
        delay = "never" if due == NEVER_DUE else max(0, int((due - wall_time()) * 1000))
        settled = await self._background.script(SETTLE((name,), place_of(session.key), until, delay))
        return DueSession(session.key, f"{name} {settled.decode()}") if settled else None

    async def acquire(self, name: str, token: bytes, *, ttl: float, former: bytes = b"") -> bytes | None:
        """Takes or renews a lease."""
        acquire = ACQUIRE((self._names.lease(name),), token, int(ttl * 1000), former)
        holder: bytes | None = await self._background.script(acquire)
        return holder

    async def release(self, name: str, token: bytes) -> None:
        """Ends a lease."""
        await self._background.script(RELEASE((self._names.lease(name),), token))

    async def ping(self) -> None:
        """Reads, and writes a session that lasts for a second, like any other write."""
        keys = self._names.session(Key("", f"trial-{secrets.token_hex(8)}"))  # no tenant has such a name
        swap = SWAP(keys, 0, 1, _PING_MILLISECONDS, b"", MORE, *_deletion_bounds(math.inf))
        await asyncio.gather(
            self._writing.script(swap), self._link.command("HMGET", keys.first, "version", "blob")
        )

    async def aclose(self) -> None:
        """Cancels late schedules and closes all connections."""
        for task in self._late:
            task.cancel()
        await asyncio.gather(*self._late, return_exceptions=True)
        await asyncio.gather(self._link.aclose(), self._writing.aclose(), self._background.aclose())

    async def _swap(self, key: Key, put: BlobWrite, cold: str) -> bool:
        ttl, version = _milliseconds(put.ttl), put.new_version or draw_version()
        bounds = _deletion_bounds(put.at)
        swap = SWAP(self._names.session(key), put.version, version, ttl, put.blob, cold, *bounds, *put.cold)

        began = asyncio.get_running_loop().time()
        places = self._places.get(key, _Places()) if put.version else _Places()
        due_at = began + max(_SETTLING, put.due - wall_time())
        enter = ttl and began >= places.renew_at
        is_noted = places.version == put.version and began < places.due_at <= due_at
        schedule = due_at < math.inf and not is_noted
        others = [self._enter(key, ttl)] if enter else []
        if schedule:
            others.append(self._schedule(key, due_at - began, ttl))

        # The other places come first: lists and workers ignore a place without a session.
        link = self._background if put.background else self._writing
        piggyback = None if put.background else self._take_along(key.tenant)
        if piggyback is None:
            *results, swapped = await link.scripts(*others, swap)
        else:
            sending = asyncio.get_running_loop().create_task(_send_along(link, piggyback, *others, swap))
            sending.add_done_callback(retrieve_exception)
            *results, swapped = await asyncio.shield(sending)
        if isinstance(swapped, StoreError):
            raise swapped from None
        if swapped == REFUSED:
            raise SessionDeleted("the session was deleted")
        if not swapped:
            return False
        failed = [isinstance(result, Exception) for result in results]
        places = places._replace(version=version)
        if enter and not failed[0]:
            places = places._replace(renew_at=began + _RENEW_EVERY)
        if schedule:
            if failed[-1] or asyncio.get_running_loop().time() - began >= _SETTLING:
                self._schedule_late(key, put.due, ttl)
            places = places._replace(due_at=-math.inf if failed[-1] else due_at)
        self._places.put(key, places)
        return True

    def _enter(self, key: Key, ttl: int) -> ScriptCall:
        place = place_of(key)
        return ENTER(self._names.index(place), place, ttl + int(_RENEW_EVERY * 1000))

    def _schedule(self, key: Key, delay: float, ttl: int) -> ScriptCall:
        """Queues a session for background work in ``delay`` seconds."""
        place = place_of(key)
        lasting = max(ttl, int(_LEAST_KEPT * 1000))
        return SCHEDULE((self._names.due_bucket(place),), place, int(delay * 1000), lasting)

    def _schedule_late(self, key: Key, due: float, ttl: int) -> None:
        """Queues a written session again if that failed or came too early."""

        async def schedule() -> None:
            for attempt in range(1, _LATE_ATTEMPTS + 1):
                with contextlib.suppress(StoreError):
                    delay = max(_SETTLING, due - wall_time())
                    await self._background.script(self._schedule(key, delay, ttl))
                    return
                await asyncio.sleep(_LATE.pause(attempt))

        self._late.start(schedule())

    async def _members(self, client: RedisClient, tenant: str, after: bytes) -> Sequence[bytes]:
        """Reads the next ids of a tenant's sessions, from all buckets and the index without buckets."""
        head = _escaped(tenant).encode() + b":"
        low, high = b"(" + head + after, b"(" + head[:-1] + b";"
        share = 2 + _PAGE // len(self._names.indexes)
        limit = "LIMIT", 0, share
        former = self._names.former_index(tenant).first
        # Read first: ids that are moved meanwhile are in their buckets later.
        formers = await client.execute_command("ZRANGEBYLEX", former, b"(" + after, b"+", *limit)
        buckets = await asyncio.gather(
            *(
                client.execute_command("ZRANGEBYLEX", each.first, low, high, *limit)
                for each in self._names.indexes
            )
        )
        pages = [[place.removeprefix(head) for place in bucket] for bucket in buckets] + [formers]
        # A full page may be followed by more ids of its bucket.
        end = min((page[-1] for page in pages if len(page) == share), default=None)
        members = dict.fromkeys(heapq.merge(*pages))
        return [each for each in members if end is None or each <= end]

    async def _move_former(self, tenant: str, client: RedisClient) -> None:
        """Moves a tenant's index into buckets, as far as time allows; sessions become due over 15 minutes."""
        now = asyncio.get_running_loop().time()
        former, lease = self._names.former_index(tenant), self._names.lease(f"move {tenant}")
        while members := await client.execute_command("ZRANGE", former.first, 0, _MOVED_AT_ONCE - 1):
            if not await client.execute_command("SET", lease, b"", "NX", "PX", _MOVE_MILLISECONDS):
                return
            await self._move(tenant, members, client)
            await client.execute_command("DEL", lease)
            if asyncio.get_running_loop().time() > now + BACKGROUND_DEADLINE / 4:
                return
        self._move_at[tenant] = now + _MOVE_EVERY

    async def _move(self, tenant: str, members: Sequence[bytes], client: RedisClient) -> None:
        keys = [Key(tenant, each.decode("utf-8", "surrogatepass")) for each in members]
        read = (client.execute_command("PTTL", self._names.session(key).first) for key in keys)
        calls: list[ScriptCall] = []
        for key, left in zip(keys, await asyncio.gather(*read), strict=True):
            if left > 0:
                delay = secrets.randbelow(_LOOK_WITHIN_MILLISECONDS) / 1000
                calls += self._enter(key, left), self._schedule(key, delay, left)
        for result in await run_scripts(client, *calls) if calls else ():
            if isinstance(result, Exception):
                raise result
        for name in self._names.former_index(tenant):
            await client.execute_command("ZREM", name, *members)


async def _send_along(link: Link, piggyback: Piggyback, *calls: ScriptCall) -> list[Any]:
    """Returns the results of calls that a piggyback is sent with.

    It is the last, because a full server accepts a script's later writes once it has accepted one.
    """
    try:
        *results, result = await link.scripts(*calls, piggyback.call)
    except StoreError as error:
        piggyback.settle(error)
        raise
    piggyback.settle(result)
    return results


def _deletion_bounds(at: float) -> tuple[str, str]:
    """Returns the two times between which a deletion refuses a write that arrived ``at`` a time."""
    return _timestamp(at), _timestamp(wall_time() + CLOCK_TOLERANCE)


def _timestamp(at: float) -> str:
    """Formats a time for a script."""
    return f"{min(at, _END_OF_TIME):.6f}"


def _milliseconds(ttl: float) -> int:
    """Converts a ``ttl`` for a script; 0 keeps the expiry."""
    return 0 if ttl == KEEP_EXPIRY else max(1, int(min(ttl, _MAX_TTL) * 1000))
