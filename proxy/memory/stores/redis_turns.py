"""Turns for the web page on the Redis of the sessions, so that each host shows the turns of all hosts."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from proxy.memory.stores.addresses import RedisAddress
from proxy.memory.stores.redis import KeyNames
from proxy.memory.stores.redis_client import Argument
from proxy.memory.stores.redis_link import Link, Script
from proxy.memory.stores.store import BACKGROUND_DEADLINE, KeptTurn

_LARGEST_TENANT: Final = 16_000_000
_DAY_MILLISECONDS: Final = 86_400_000
_ERASURE_MILLISECONDS: Final = 900_000


# The hash also has the total size of its turns, so that adding one reads only the turns that have to go.
_REMOVE: Final = """
local function remove(id)
  local report, content = id .. ':report', id .. ':content'
  local size = redis.call('HSTRLEN', KEYS[2], report) + redis.call('HSTRLEN', KEYS[2], content)
  redis.call('ZREM', KEYS[1], id)
  redis.call('HDEL', KEYS[2], id .. ':names', report, content)
  return redis.call('HINCRBY', KEYS[2], 'size', -size)
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""
# A turn is not stored if its session, or one of its users, was erased while it was under way.
ADD: Final = Script(
    _REMOVE
    + """
local keep, largest, lasting = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local size = tonumber(redis.call('HGET', KEYS[2], 'size') or 0)
for i = 4, #ARGV, 5 do
  local id, at, erased = ARGV[i], now - ARGV[i + 1], false
  for name in string.gmatch(ARGV[i + 2], '%S+') do
    local when = redis.call('ZSCORE', KEYS[3], name)
    erased = erased or (when and tonumber(when) >= at)
  end
  if not erased then
    if redis.call('ZADD', KEYS[1], at, id) == 0 then
      remove(id)
      redis.call('ZADD', KEYS[1], at, id)
    end
    redis.call('HSET', KEYS[2], id .. ':names', ARGV[i + 2], id .. ':report', ARGV[i + 3],
               id .. ':content', ARGV[i + 4])
    size = redis.call('HINCRBY', KEYS[2], 'size', #ARGV[i + 3] + #ARGV[i + 4])
  end
end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. (now - lasting))) do
  size = remove(id)
end
local count = redis.call('ZCARD', KEYS[1])
while count > 0 and (count > keep or size > largest) do
  size = remove(redis.call('ZRANGE', KEYS[1], 0, 0)[1])
  count = count - 1
end
redis.call('PEXPIRE', KEYS[1], lasting)
redis.call('PEXPIRE', KEYS[2], lasting)
return 1
"""
)
ERASE: Final = Script(
    _REMOVE
    + """
local count, lasting = 0, tonumber(ARGV[1])
for i = 2, #ARGV do redis.call('ZADD', KEYS[3], now, ARGV[i]) end
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now - lasting)
redis.call('PEXPIRE', KEYS[3], lasting)
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  local names, found = redis.call('HGET', KEYS[2], id .. ':names') or '', false
  for i = 2, #ARGV do found = found or string.find(names, ARGV[i], 1, true) end
  if found then
    remove(id)
    count = count + 1
  end
end
return count
"""
)
SILENCE: Final = Script(
    """
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  local names = redis.call('HGET', KEYS[2], id .. ':names') or ''
  for i = 1, #ARGV do
    local size = redis.call('HSTRLEN', KEYS[2], id .. ':content')
    if size > 0 and string.find(names, ARGV[i], 1, true) then
      redis.call('HINCRBY', KEYS[2], 'size', -size)
      redis.call('HSET', KEYS[2], id .. ':content', '')
    end
  end
end
return 1
"""
)


class RedisTurns:
    """The newest turns of each tenant: 16 MB at most, as many as the last batch allows, for a day after it.

    All turns of a tenant are in one hash slot. Every method may raise StoreError.
    """

    def __init__(self, url: str) -> None:
        place = RedisAddress.parse(url)
        self._link = Link(place, BACKGROUND_DEADLINE)
        self._names = KeyNames(place.prefix)

    async def add(self, tenant: str, turns: Sequence[KeptTurn], *, keep: int) -> None:
        """Adds turns with one command, and removes the oldest turns beyond the limits."""
        arguments: list[Argument] = [keep, _LARGEST_TENANT, _DAY_MILLISECONDS]
        for turn in turns:
            age = int(max(0.0, turn.age) * 1000)
            arguments += turn.id, age, " ".join(turn.names), turn.report, turn.content
        await self._run(ADD, tenant, *arguments)

    async def reports(self, tenant: str) -> Mapping[str, bytes]:
        """Returns the reports of a tenant's turns by id, the newest first."""
        index, _, _ = self._names.turns(tenant)
        ids = [id_.decode() for id_ in await self._link.command("ZREVRANGE", index, 0, -1)]
        reports = await self._fields(tenant, ids, "report")
        return {id_: report for id_, report in zip(ids, reports, strict=True) if report}

    async def contents(self, tenant: str, ids: Sequence[str]) -> Sequence[bytes]:
        """Returns the contents of turns, empty for a turn that is not stored."""
        return [content or b"" for content in await self._fields(tenant, ids, "content")]

    async def erase(self, tenant: str, names: Sequence[str]) -> int:
        """Removes the turns, also those under way, with one of these names; returns the number removed."""
        return int(await self._run(ERASE, tenant, _ERASURE_MILLISECONDS, *names))

    async def remove_contents(self, tenant: str, names: Sequence[str]) -> None:
        """Removes the contents of the turns with one of these names."""
        await self._run(SILENCE, tenant, *names)

    async def aclose(self) -> None:
        """Closes all connections."""
        await self._link.aclose()

    async def _fields(self, tenant: str, ids: Sequence[str], name: str) -> Sequence[bytes | None]:
        _, turns, _ = self._names.turns(tenant)
        return await self._link.command("HMGET", turns, *(f"{id_}:{name}" for id_ in ids)) if ids else ()

    async def _run(self, script: Script, tenant: str, *arguments: Argument) -> Any:
        return await self._link.script(script(self._names.turns(tenant), *arguments))
