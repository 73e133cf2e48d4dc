"""Short-term memory for use within an agent's own process, without a proxy."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import RedisClusterException, RedisError

from proxy.memory.episodes.episode import EpisodicMemory
from proxy.memory.episodes.on_store import StoredEpisodes
from proxy.memory.episodes.shelf import EpisodeShelf
from proxy.memory.episodes.short_term import ShortTermMemory
from proxy.memory.episodes.source import REDIS, agent_of
from proxy.memory.errors import StoreError
from proxy.memory.stores.codec import Plain
from proxy.memory.stores.drivers import open_store
from proxy.memory.stores.redis_client import MOST_CONNECTIONS, Address, Made, clients, describe
from proxy.memory.stores.store import Store

T = TypeVar("T")

REDIS_URL: Final = "redis://localhost:6379/0"
AGENT: Final = "nova"
_RETRIES: Final = 6
_SHORTEST, _LONGEST = 0.05, 1.0
_TIMEOUT: Final = 2.0


class ShortTermMemoryManager(ShortTermMemory):
    """Short-term memory on a Redis, with a client of its own that tries again with exponential back-off.

    A dead server costs a call some two seconds, then it raises ConnectionError.
    """

    def __init__(self, redis_url: str = REDIS_URL, agent_id: str = AGENT) -> None:
        """Connects nothing; raises ValueError for an address that is none, without showing it."""
        self.agent_id = _named(agent_id)
        self._shelf = EpisodeShelf(agent_of(agent_id))
        self._make = _maker(redis_url)
        self._made: Made | None = None
        self._room = asyncio.Semaphore(MOST_CONNECTIONS)

    async def connect(self) -> None:
        """Connects; a second time it only makes sure that the server answers."""
        await self._ask(_ping)

    async def disconnect(self) -> None:
        """Closes all connections; a second time it does nothing."""
        made, self._made = self._made, None
        if made is not None:
            await made.close()

    async def _add(self, episode: EpisodicMemory, ttl: float) -> EpisodicMemory:
        return await self._ask(lambda made: self._shelf.add(made.client, episode, ttl))

    async def _recent(self, since: float, limit: int | None) -> list[EpisodicMemory]:
        return await self._ask(lambda made: self._shelf.recent(made.client, since, limit))

    async def _ask(self, work: Callable[[Made], Awaitable[T]]) -> T:
        made = self._made = self._made or self._make()
        try:
            async with self._room:
                return await work(made)
        except (RedisError, RedisClusterException, OSError) as fault:
            raise ConnectionError(describe(fault)) from None  # its own words may quote what was to be kept


class StoredShortTermMemory(ShortTermMemory):
    """Short-term memory on any store of sessions, for where there is no Redis."""

    def __init__(self, url: str, agent_id: str = AGENT) -> None:
        """Connects nothing; raises ValueError for an address of no store, without showing it."""
        self.agent_id = _named(agent_id)
        self._agent = agent_of(agent_id)
        self._open: Callable[[], Store] = lambda: open_store(url, deadline=_TIMEOUT, codec=Plain())
        self._store: Store | None = self._open()

    async def connect(self) -> None:
        """Opens the store, if that has not been done, and makes sure that it can be written."""
        await self._ask(lambda store: store.ping())

    async def disconnect(self) -> None:
        """Closes the store; a second time it does nothing."""
        store, self._store = self._store, None
        if store is not None:
            await store.aclose()

    async def _add(self, episode: EpisodicMemory, ttl: float) -> EpisodicMemory:
        return await self._ask(lambda store: StoredEpisodes(store).add(self._agent, episode, ttl=ttl))

    async def _recent(self, since: float, limit: int | None) -> list[EpisodicMemory]:
        return await self._ask(
            lambda store: StoredEpisodes(store).recent(self._agent, since=since, limit=limit, leisure=True)
        )

    async def _ask(self, work: Callable[[Store], Awaitable[T]]) -> T:
        store = self._store = self._store or self._open()
        try:
            return await work(store)
        except StoreError as fault:
            raise ConnectionError(str(fault)) from None


def get_short_term_memory(
    agent_id: str = AGENT, url: str = "", environ: Mapping[str, str] = os.environ
) -> ShortTermMemory:
    """The short-term memory at ``url``, else at ``MEMORY_URL``, else on this machine's Redis.

    On an address that is no Redis's it is kept among the sessions there. Nothing is connected yet.
    """
    place = url or environ.get("MEMORY_URL", "") or REDIS_URL
    if place.startswith(REDIS):
        return ShortTermMemoryManager(place, agent_id)
    return StoredShortTermMemory(place, agent_id)


def _named(agent_id: str) -> str:
    if not agent_id:
        raise ValueError("agent_id must not be empty")
    return agent_id


async def _ping(made: Made) -> None:
    await made.client.execute_command("PING")


def _maker(url: str) -> Callable[[], Made]:
    """Makes clients that try again; an address of redis-py's own keeps all its options."""
    if "+" in url.partition(":")[0]:
        make = clients(Address.of(url), _TIMEOUT, Redis)
        return lambda: _persistent(make())
    try:
        Redis.from_url(url)
    except (ValueError, TypeError, AttributeError):
        raise ValueError("the address of Redis cannot be understood; write redis://host:6379/0") from None
    return lambda: _single(url)


def _single(url: str) -> Made:
    client = Redis.from_url(url, socket_timeout=_TIMEOUT, socket_connect_timeout=_TIMEOUT, retry=_retry())
    return Made(client, client.aclose)


def _persistent(made: Made) -> Made:
    made.client.set_retry(_retry())
    return made


def _retry() -> Retry:
    return Retry(ExponentialWithJitterBackoff(cap=_LONGEST, base=_SHORTEST), _RETRIES)
