"""Episodes on a Redis: a key for each, and one sorted set by time for each agent.

A key expires by itself, its member of the set does not: readers pass over what has no key, and take it out.
No two keys share a slot of a Cluster, and no command names two of them.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Sequence
from typing import Any, Final

from redis.exceptions import RedisClusterException, RedisError

from proxy.memory.episodes.episode import EpisodicMemory
from proxy.memory.episodes.episodes import agent_id
from proxy.memory.stores.codec import Codec, Plain
from proxy.memory.stores.redis import Pair, Script
from proxy.memory.stores.redis_client import Address, Client, clients
from proxy.memory.stores.redis_link import Link
from proxy.memory.stores.store import BACKGROUND_DEADLINE, Key

_PAGE: Final = 200
_ATTEMPTS: Final = 100
_FURTHEST: Final = 1000
_PLAIN: Final = Plain()
# The set lives as long as the longest of its members. Two of these are returned to be looked after: with each
# write, so that dead ones never outnumber the living by far, however seldom anyone reads.
_ENTER = Script("""
redis.call('ZADD', KEYS[1], ARGV[2], ARGV[1])
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
local first = ARGV[4] % redis.call('ZCARD', KEYS[1])
return redis.call('ZRANGE', KEYS[1], first, first + 1)
""")


class AgentEpisodes:
    """One agent's episodes, on a client that is given with each call.

    ``root`` stands before all keys. What is kept passes through ``codec``.
    """

    def __init__(self, agent: Key, *, root: str = "", codec: Codec = _PLAIN) -> None:
        self._agent = agent
        self._codec = codec
        self._prefix = f"{root}agent:{agent_id(agent)}:episodic:"
        self.index = f"{self._prefix}index"

    def key(self, episode: EpisodicMemory) -> str:
        """Where an episode is kept."""
        return self._prefix + episode.timestamp.isoformat()

    async def add(self, client: Client, episode: EpisodicMemory, ttl: float) -> EpisodicMemory:
        """Keeps it; moved by microseconds where another writer had the same time. Raises RedisError."""
        lasting = max(1, int(ttl * 1000))
        kept = await self._placed(client, episode, lasting)
        key, at = self.key(kept), f"{kept.timestamp.timestamp():.6f}"
        pair, draw = Pair(self.index, self.index), secrets.randbelow(2**31)
        drawn: list[bytes] = await _ENTER(client, pair, key, at, lasting, draw)
        # It is kept by now: what fails in looking after others is no concern of its writer.
        with contextlib.suppress(RedisError, RedisClusterException):
            await self._found(client, drawn)
        return kept

    async def recent(self, client: Client, since: float, limit: int | None) -> list[EpisodicMemory]:
        """Newest first. Raises RedisError, and ValueError where one cannot be read."""
        kept: list[bytes] = []
        bound = "+inf"
        while limit is None or len(kept) < limit:
            size = _PAGE if limit is None else min(_PAGE, limit - len(kept))
            page = await self._page(client, bound, since, size)
            kept += await self._found(client, [member for member, _ in page])
            if len(page) < size:
                break
            bound = f"({page[-1][1]:.6f}"
        return [self._read(blob) for blob in kept]

    async def _placed(self, client: Client, episode: EpisodicMemory, lasting: int) -> EpisodicMemory:
        blob = self._written(episode)
        for _ in range(_ATTEMPTS):
            if await client.execute_command("SET", self.key(episode), blob, "NX", "PX", lasting):
                return episode
            episode = episode.delayed(1 + secrets.randbelow(_FURTHEST))
            blob = self._written(episode)
        raise RedisError("no time is free for this episode")

    async def _page(self, client: Client, bound: str, since: float, size: int) -> list[tuple[bytes, float]]:
        found: Any = await client.zrevrangebyscore(
            self.index, bound, f"{since:.6f}", start=0, num=size, withscores=True
        )
        return [(member, float(score)) for member, score in found]

    async def _found(self, client: Client, members: Sequence[bytes]) -> list[bytes]:
        """What is kept under these keys, in order; those that have expired leave the set."""
        if not members:
            return []
        pipeline = client.pipeline(transaction=False)
        for member in members:
            pipeline.execute_command("GET", member)
        blobs = await pipeline.execute()
        dead = [member for member, blob in zip(members, blobs, strict=True) if blob is None]
        if dead:
            await client.execute_command("ZREM", self.index, *dead)
        return [blob for blob in blobs if blob is not None]

    def _written(self, episode: EpisodicMemory) -> bytes:
        return self._codec.encode(self._agent, episode.to_json())

    def _read(self, blob: bytes | str) -> EpisodicMemory:
        stored = blob.encode() if isinstance(blob, str) else blob
        return EpisodicMemory.model_validate_json(self._codec.decode(self._agent, stored))


class RedisEpisodes:
    """Keys as ShortTermMemoryManager has them, behind the address's prefix where it names one of its own.

    What no call waits for goes over a link of its own.
    """

    def __init__(self, link: Link, background: Link, *, root: str, codec: Codec) -> None:
        self._link = link
        self._background = background
        self._root = root
        self._codec = codec

    @classmethod
    def open(cls, url: str, *, deadline: float, codec: Codec) -> "RedisEpisodes":
        """Episodes at this address; nothing is connected yet, and each call waits ``deadline`` at most."""
        place = Address.of(url)
        root = "" if place.prefix == Address.prefix else place.prefix
        links = (
            Link(clients(place, most), deadline=most)
            for most in (deadline, max(deadline, BACKGROUND_DEADLINE))
        )
        return cls(*links, root=root, codec=codec)

    async def add(self, agent: Key, episode: EpisodicMemory, *, ttl: float) -> EpisodicMemory:
        """As the protocol has it."""
        shelf = self._shelf(agent)
        return await self._background.ask(lambda client: shelf.add(client, episode, ttl))

    async def recent(
        self, agent: Key, *, since: float, limit: int | None, background: bool = False
    ) -> list[EpisodicMemory]:
        """As the protocol has it; always all."""
        shelf, link = self._shelf(agent), self._background if background else self._link
        return await link.ask(lambda client: shelf.recent(client, since, limit))

    async def aclose(self) -> None:
        """Closes its connections."""
        await asyncio.gather(self._link.aclose(), self._background.aclose())

    def _shelf(self, agent: Key) -> AgentEpisodes:
        return AgentEpisodes(agent, root=self._root, codec=self._codec)
