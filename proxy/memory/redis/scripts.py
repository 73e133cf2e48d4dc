"""What Redis carries out as one."""

import hashlib
from typing import Any, NamedTuple

from redis.asyncio import Redis, RedisCluster
from redis.exceptions import NoScriptError, RedisClusterException, RedisError

from proxy.memory.redis.line import Direct
from proxy.memory.redis.names import Pair

Client = Redis | RedisCluster
Argument = str | bytes | int


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


REFUSED = -1
"""What a swap says of a session that was deleted since."""
MORE, WHOLE = "more", "whole"
"""Whether the entries that a swap brings are appended to the cold part, or are all of it."""

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
