"""Episodes on a Redis: a key for each, and one sorted set by time for each agent.

A key expires by itself, its member of the set does not: readers pass over members without a key and remove
them. No two keys share a slot of a Cluster, and no command names two of them.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Sequence
from typing import Any, Final

from redis.exceptions import RedisClusterException, RedisError

from proxy.memory.episodes.episodes import EpisodicMemory, agent_id
from proxy.memory.stores.codec import Codec, Plain
from proxy.memory.stores.redis import KeyPair
from proxy.memory.stores.redis_address import Address
from proxy.memory.stores.redis_client import Client, client_factory
from proxy.memory.stores.redis_link import Link, Script
from proxy.memory.stores.store import BACKGROUND_DEADLINE, Key

_PAGE: Final = 200
_ATTEMPTS: Final = 100
_MAX_DELAY: Final = 1000
_PLAIN: Final = Plain()
# The set lives as long as the longest of its members. Each write returns two members to be checked, so that
# expired ones never outnumber the others by far, however seldom the set is read.
_ADD_TO_INDEX = Script("""
redis.call('ZADD', KEYS[1], ARGV[2], ARGV[1])
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
local first = ARGV[4] % redis.call('ZCARD', KEYS[1])
return redis.call('ZRANGE', KEYS[1], first, first + 1)
""")


class AgentEpisodes:
    """One agent's episodes, on a client that is given with each call.

    ``root`` stands before all keys. Episodes are encoded by ``codec``.
    """

    def __init__(self, agent: Key, *, root: str = "", codec: Codec = _PLAIN) -> None:
        self._agent = agent
        self._codec = codec
        self._prefix = f"{root}agent:{agent_id(agent)}:episodic:"
        self.index = f"{self._prefix}index"

    def key(self, episode: EpisodicMemory) -> str:
        """The key of an episode."""
        return self._prefix + episode.timestamp.isoformat()

    async def add(self, client: Client, episode: EpisodicMemory, ttl: float) -> EpisodicMemory:
        """Store an episode, microseconds later where another has its time. Raises RedisError."""
        milliseconds = max(1, int(ttl * 1000))
        for _ in range(_ATTEMPTS):
            key, blob = self.key(episode), self._codec.encode(self._agent, episode.to_json())
            if await client.execute_command("SET", key, blob, "NX", "PX", milliseconds):
                break
            episode = episode.delayed(1 + secrets.randbelow(_MAX_DELAY))
        else:
            raise RedisError("no time is free for this episode")
        score, random = f"{episode.timestamp.timestamp():.6f}", secrets.randbelow(2**31)
        pair = KeyPair(self.index, self.index)
        members: list[bytes] = await _ADD_TO_INDEX(client, pair, key, score, milliseconds, random)
        # The episode is stored by now: failing to check other members does not concern its writer.
        with contextlib.suppress(RedisError, RedisClusterException):
            await self._blobs(client, members)
        return episode

    async def recent(self, client: Client, since: float, limit: int | None) -> list[EpisodicMemory]:
        """Episodes from ``since`` on, newest first. Raises RedisError, and ValueError for an invalid one."""
        blobs: list[bytes | str] = []
        bound = "+inf"
        while limit is None or len(blobs) < limit:
            size = _PAGE if limit is None else min(_PAGE, limit - len(blobs))
            page: Any = await client.zrevrangebyscore(
                self.index, bound, f"{since:.6f}", start=0, num=size, withscores=True
            )
            blobs += await self._blobs(client, [member for member, _ in page])
            if len(page) < size:
                break
            bound = f"({float(page[-1][1]):.6f}"
        encoded = [blob.encode() if isinstance(blob, str) else blob for blob in blobs]
        return [EpisodicMemory.model_validate_json(self._codec.decode(self._agent, blob)) for blob in encoded]

    async def _blobs(self, client: Client, members: Sequence[bytes]) -> list[bytes]:
        """The episodes of members in their order; members that have expired are removed from the set."""
        if not members:
            return []
        pipeline = client.pipeline(transaction=False)
        for member in members:
            pipeline.execute_command("GET", member)
        blobs = await pipeline.execute()
        expired = [member for member, blob in zip(members, blobs, strict=True) if blob is None]
        if expired:
            await client.execute_command("ZREM", self.index, *expired)
        return [blob for blob in blobs if blob is not None]


class RedisEpisodes:
    """Episodes under the keys of ShortTermMemoryManager, behind the address's prefix if it names one.

    Background reads and writes have a link of their own.
    """

    def __init__(self, link: Link, background: Link, *, root: str, codec: Codec) -> None:
        self._link = link
        self._background = background
        self._root = root
        self._codec = codec

    @classmethod
    def open(cls, url: str, *, deadline: float, codec: Codec) -> "RedisEpisodes":
        """Episodes at an address; nothing is connected yet, and each call waits ``deadline`` at most."""
        address = Address.parse(url)
        root = "" if address.prefix == Address.prefix else address.prefix
        deadlines = (deadline, max(deadline, BACKGROUND_DEADLINE))
        return cls(
            *(Link(client_factory(address, most), deadline=most) for most in deadlines),
            root=root,
            codec=codec,
        )

    async def add(self, agent: Key, episode: EpisodicMemory, *, ttl: float) -> EpisodicMemory:
        """Store an episode for ``ttl`` seconds."""
        episodes = AgentEpisodes(agent, root=self._root, codec=self._codec)
        return await self._background.run(lambda client: episodes.add(client, episode, ttl))

    async def recent(
        self, agent: Key, *, since: float, limit: int | None, background: bool = False
    ) -> list[EpisodicMemory]:
        """All episodes from ``since`` on, newest first."""
        episodes = AgentEpisodes(agent, root=self._root, codec=self._codec)
        link = self._background if background else self._link
        return await link.run(lambda client: episodes.recent(client, since, limit))

    async def aclose(self) -> None:
        """Close the connections."""
        await asyncio.gather(self._link.aclose(), self._background.aclose())
