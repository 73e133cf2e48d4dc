"""Counters and permits on Redis; those of one key are in one hash slot."""

import asyncio
import itertools
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from proxy.memory.errors import StoreError
from proxy.memory.stores.addresses import RedisAddress
from proxy.memory.stores.counts import Count, Permit
from proxy.memory.stores.redis import KeyNames
from proxy.memory.stores.redis_client import Argument
from proxy.memory.stores.redis_link import Link, Piggyback, Script
from proxy.memory.tasks import Tasks, retrieve_exception, settle

_GATHERING: Final = 0.02
"""Seconds for which a deferrable command may wait to be sent with the next one that is not."""
# Longer than sessions are usually stored; a tenant has only two such keys.
_KEPT_MILLISECONDS: Final = 7 * 86400 * 1000

# Uses only the server's clock. A full Redis evicts the keys that expire first (volatile-ttl), and counters of
# a minute would go before any session. So both keys outlive their contents.
COUNT: Final = Script("""
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local kept, at, results = ARGV[1], 2, {}
local has_leases, has_counts = false, false
while at <= #ARGV do
  local ttl, lease, limit = tonumber(ARGV[at]), ARGV[at + 1], tonumber(ARGV[at + 2])
  local lasting, names = tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
  local counts = {}
  at = at + 5
  if lasting == 0 then
    redis.call('ZREM', KEYS[2], lease)
  elseif lasting then
    redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
    local others = redis.call('ZCARD', KEYS[2])
    if limit and others >= limit and not redis.call('ZSCORE', KEYS[2], lease) then
      counts = false
    else
      redis.call('ZADD', KEYS[2], now + lasting, lease)
      has_leases = true
    end
  end
  for each = at, at + 2 * names - 1, 2 do
    if counts then
      local name, window = ARGV[each], ARGV[each] .. ':until'
      local over = tonumber(redis.call('HGET', KEYS[1], window) or 0)
      if over <= now or over > now + ttl then
        over = now + ttl
        redis.call('HSET', KEYS[1], name, 0, window, over)
      end
      table.insert(counts, redis.call('HINCRBY', KEYS[1], name, ARGV[each + 1]))
      table.insert(counts, over - now)
      has_counts = true
    end
  end
  at = at + 2 * names
  table.insert(results, counts)
end
if has_leases then redis.call('PEXPIRE', KEYS[2], kept) end
if has_counts then redis.call('PEXPIRE', KEYS[1], kept) end
return results
""")


class _Counting(NamedTuple):
    """The script's arguments for one count of a key, and the future of its result."""

    arguments: list[Argument]
    result: asyncio.Future[list[int] | None]


class RedisCounts:
    """Counters and permits by key. ``count`` raises StoreError after one deadline.

    The deferred counts of a key are sent with its next count, in one round trip, or with another command by
    ``take_along``.
    """

    def __init__(self, url: str, *, deadline: float) -> None:
        place = RedisAddress.parse(url)
        self._link = Link(place, deadline)
        self._names = KeyNames(place.prefix)
        self._put_off: dict[str, list[_Counting]] = {}
        self._tasks = Tasks()

    async def count(
        self,
        key: str,
        amounts: Mapping[str, int],
        permit: Permit | None = None,
        *,
        ttl: float,
        deferrable: bool = False,
    ) -> dict[str, Count] | None:
        """Takes the permit, then adds to the counters."""
        arguments: list[Argument] = [int(ttl * 1000), "", "", ""]
        if permit:
            limit = "" if permit.limit is None else permit.limit
            arguments[1:] = permit.name, limit, int(permit.ttl * 1000)
        arguments.append(len(amounts))
        for item in amounts.items():
            arguments += item
        loop = asyncio.get_running_loop()
        own = _Counting(arguments, loop.create_future())
        own.result.add_done_callback(retrieve_exception)
        together = self._put_off.setdefault(key, [])
        together.append(own)
        if not deferrable:
            await (self._send(key) if len(together) == 1 else asyncio.shield(self._start_sending(key)))
        elif len(together) == 1:
            loop.call_later(_GATHERING, self._send_later, key, together)
        counts = await own.result
        if counts is None:
            return None
        pairs = zip(counts[::2], counts[1::2], strict=True)
        return {name: Count(value, left / 1000) for name, (value, left) in zip(amounts, pairs, strict=True)}

    def take_along(self, key: str) -> Piggyback | None:
        """Returns a call with a key's deferred counts, to be sent with another command; else ``None``."""
        together = self._put_off.pop(key, None)
        if not together:
            return None
        arguments = [argument for each in together for argument in each.arguments]
        call = COUNT(self._names.counts(key), _KEPT_MILLISECONDS, *arguments)
        return Piggyback(call, partial(_settle_counts, together))

    async def aclose(self) -> None:
        """Sends the deferred counts, then closes all connections."""
        for key in tuple(self._put_off):
            self._send_later(key, self._put_off[key])
        await asyncio.gather(*self._tasks)
        await self._link.aclose()

    def _send_later(self, key: str, together: list[_Counting]) -> None:
        if self._put_off.get(key) is together:  # not sent meanwhile
            self._start_sending(key)

    def _start_sending(self, key: str) -> asyncio.Task[None]:
        """Sends all counts of a key in a task, which continues if the caller that started it is cancelled."""
        return self._tasks.start(self._send(key))

    async def _send(self, key: str) -> None:
        """Sends all counts of a key, and sets the result of each, or the error."""
        if piggyback := self.take_along(key):
            try:
                piggyback.settle(await self._link.script(piggyback.call))
            except StoreError as error:
                piggyback.settle(error)


def _settle_counts(together: list[_Counting], results: list[Any] | StoreError) -> None:
    each_result = itertools.repeat(results) if isinstance(results, StoreError) else results
    for each, result in zip(together, each_result, strict=False):
        settle(each.result, result)
