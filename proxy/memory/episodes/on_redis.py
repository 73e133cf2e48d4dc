"""Agents' episodes on the Redis where sessions are kept."""

import asyncio

from proxy.memory.episodes.episode import EpisodicMemory
from proxy.memory.episodes.shelf import EpisodeShelf
from proxy.memory.stores.codec import Codec
from proxy.memory.stores.redis_client import Address, clients
from proxy.memory.stores.redis_link import Link
from proxy.memory.stores.store import LEISURE, Key


class RedisEpisodes:
    """Keys as ShortTermMemoryManager has them, behind the address's prefix where it names one of its own.

    What no call waits for goes over a link of its own.
    """

    def __init__(self, link: Link, leisurely: Link, *, root: str, codec: Codec) -> None:
        self._link = link
        self._leisurely = leisurely
        self._root = root
        self._codec = codec

    @classmethod
    def open(cls, url: str, *, deadline: float, codec: Codec) -> "RedisEpisodes":
        """Episodes at this address; nothing is connected yet, and each call waits ``deadline`` at most."""
        place = Address.of(url)
        root = "" if place.prefix == Address.prefix else place.prefix
        links = (Link(clients(place, most), deadline=most) for most in (deadline, max(deadline, LEISURE)))
        return cls(*links, root=root, codec=codec)

    async def add(self, agent: Key, episode: EpisodicMemory, *, ttl: float) -> EpisodicMemory:
        """As the protocol has it."""
        shelf = self._shelf(agent)
        return await self._leisurely.ask(lambda client: shelf.add(client, episode, ttl))

    async def recent(
        self, agent: Key, *, since: float, limit: int | None, leisure: bool = False
    ) -> list[EpisodicMemory]:
        """As the protocol has it; always all."""
        shelf, link = self._shelf(agent), self._leisurely if leisure else self._link
        return await link.ask(lambda client: shelf.recent(client, since, limit))

    async def aclose(self) -> None:
        """Closes its connections."""
        await asyncio.gather(self._link.aclose(), self._leisurely.aclose())

    def _shelf(self, agent: Key) -> EpisodeShelf:
        return EpisodeShelf(agent, root=self._root, codec=self._codec)
