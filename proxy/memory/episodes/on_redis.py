"""Agents' episodes on the Redis where sessions are kept."""

from proxy.memory.codec import Codec
from proxy.memory.episodes.episode import EpisodicMemory
from proxy.memory.episodes.shelf import EpisodeShelf
from proxy.memory.redis.address import Address
from proxy.memory.redis.client import clients
from proxy.memory.redis.link import Link
from proxy.memory.store import Key


class RedisEpisodes:
    """Keys as ShortTermMemoryManager has them, behind the address's prefix where it names one of its own."""

    def __init__(self, link: Link, *, root: str, codec: Codec) -> None:
        self._link = link
        self._root = root
        self._codec = codec

    @classmethod
    def open(cls, url: str, *, deadline: float, codec: Codec) -> "RedisEpisodes":
        """Episodes at this address; nothing is connected yet, and each call ends within ``deadline``."""
        place = Address.of(url)
        usual = place.prefix == Address.prefix
        return cls(
            Link(clients(place, deadline), deadline=deadline), root="" if usual else place.prefix, codec=codec
        )

    async def add(self, agent: Key, episode: EpisodicMemory, *, ttl: float) -> EpisodicMemory:
        """As the protocol has it."""
        shelf = self._shelf(agent)
        return await self._link.ask(lambda client: shelf.add(client, episode, ttl))

    async def recent(
        self,
        agent: Key,
        *,
        since: float,
        limit: int | None,
        leisure: bool = False,  # noqa: ARG002 - each has a key of its own
    ) -> list[EpisodicMemory]:
        """As the protocol has it; always all."""
        shelf = self._shelf(agent)
        return await self._link.ask(lambda client: shelf.recent(client, since, limit))

    async def aclose(self) -> None:
        """Closes its connections."""
        await self._link.aclose()

    def _shelf(self, agent: Key) -> EpisodeShelf:
        return EpisodeShelf(agent, root=self._root, codec=self._codec)
