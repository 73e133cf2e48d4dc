"""Episodes on a Redis: a key for each episode, and for each agent a sorted set of these keys by time.

A key expires by itself, but its member of the set does not. Readers skip members without a key, and remove
them. Keys may be in different slots of a Cluster, so no command names two of them.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Sequence
from typing import Final

from redis.exceptions import RedisClusterException, RedisError

from proxy.memory.episodes.episodes import EpisodicMemory, agent_id
from proxy.memory.stores.addresses import RedisAddress
from proxy.memory.stores.codec import Codec
from proxy.memory.stores.redis_client import RedisClient
from proxy.memory.stores.redis_link import Link, Script
from proxy.memory.stores.store import BACKGROUND_DEADLINE, Key

_PAGE: Final = 200
_ATTEMPTS: Final = 100
_MAX_DELAY: Final = 1000
# The set lives as long as its longest-lived member. Each write returns two members to be checked, so that
# expired members never outnumber the others by far, even if the set is rarely read.
_ADD_TO_INDEX = Script("""
redis.call('ZADD', KEYS[1], ARGV[2], ARGV[1])
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
local first = ARGV[4] % redis.call('ZCARD', KEYS[1])
return redis.call('ZRANGE', KEYS[1], first, first + 1)
""")


class RedisEpisodes:
    """Episodes under the keys of ShortTermMemoryManager, behind the address's prefix if it has one.

    Background reads and writes use a link of their own.
    """

    def __init__(self, url: str, *, deadline: float, codec: Codec) -> None:
        """A call waits ``deadline`` seconds at most. Nothing is connected yet."""
        address = RedisAddress.parse(url)
        self._link = Link(address, deadline)
        self._background = Link(address, max(deadline, BACKGROUND_DEADLINE))
        self._root = "" if address.prefix == RedisAddress.prefix else address.prefix
        self._codec = codec

    async def add(self, agent: Key, episode: EpisodicMemory, *, ttl: float) -> EpisodicMemory:
        """Stores an episode for ``ttl`` seconds, some microseconds later if its time is taken."""
        episode.to_json()  # raises ValueError before the server is asked
        return await self._background.run(lambda client: self._add(client, agent, episode, ttl))

    async def recent(
        self, agent: Key, *, since: float, limit: int | None, background: bool = False
    ) -> list[EpisodicMemory]:
        """Returns episodes from ``since`` on, newest first; a call gets all of them, too."""
        link = self._background if background else self._link
        blobs = await link.run(lambda client: _recent(client, self._index(agent), since, limit))
        return [EpisodicMemory.model_validate_json(self._codec.decode(agent, blob)) for blob in blobs]

    async def aclose(self) -> None:
        """Closes all connections."""
        await asyncio.gather(self._link.aclose(), self._background.aclose())

    def _index(self, agent: Key) -> str:
        return f"{self._root}agent:{agent_id(agent)}:episodic:index"

    async def _add(
        self, client: RedisClient, agent: Key, episode: EpisodicMemory, ttl: float
    ) -> EpisodicMemory:
        index, milliseconds = self._index(agent), max(1, int(ttl * 1000))
        for _ in range(_ATTEMPTS):
            key = index.removesuffix("index") + episode.timestamp.isoformat()
            blob = self._codec.encode(agent, episode.to_json())
            if await client.execute_command("SET", key, blob, "NX", "PX", milliseconds):
                break
            episode = episode.delayed(1 + secrets.randbelow(_MAX_DELAY))
        else:
            raise RedisError("no time is free for this episode")
        score, random = f"{episode.timestamp.timestamp():.6f}", secrets.randbelow(2**31)
        members = await _ADD_TO_INDEX((index,), key, score, milliseconds, random).run(client)
        # The episode is stored, so a failure to check other members does not concern its writer.
        with contextlib.suppress(RedisError, RedisClusterException):
            await _blobs(client, index, members)
        return episode


async def _recent(client: RedisClient, index: str, since: float, limit: int | None) -> list[bytes]:
    """Returns the encoded episodes from ``since`` on, newest first."""
    blobs: list[bytes] = []
    bound = "+inf"
    while limit is None or len(blobs) < limit:
        size = _PAGE if limit is None else min(_PAGE, limit - len(blobs))
        page = await client.execute_command(
            "ZREVRANGEBYSCORE", index, bound, f"{since:.6f}", "WITHSCORES", "LIMIT", 0, size
        )
        members, scores = page[::2], page[1::2]
        blobs += await _blobs(client, index, members)
        if len(members) < size:
            break
        bound = f"({float(scores[-1]):.6f}"
    return blobs


async def _blobs(client: RedisClient, index: str, members: Sequence[bytes]) -> list[bytes]:
    """Returns the encoded episodes of members, in order; removes expired members from the index."""
    blobs = await asyncio.gather(*(client.execute_command("GET", member) for member in members))
    if expired := [member for member, blob in zip(members, blobs, strict=True) if blob is None]:
        await client.execute_command("ZREM", index, *expired)
    return [blob for blob in blobs if blob is not None]
