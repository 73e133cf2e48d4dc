"""Agents' episodes: on a Redis under keys of their own, or in the session store."""

import asyncio
import math
import random
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from importlib.metadata import EntryPoint
from itertools import accumulate
from typing import Annotated, Any, Final, Protocol
from urllib.parse import quote

import msgspec
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from filters.injection import Episode
from proxy.clock import wall_time
from proxy.memory import extensible
from proxy.memory.errors import StoreError
from proxy.memory.extensible import Extensible
from proxy.memory.redaction import Redaction
from proxy.memory.stores.codec import Codec
from proxy.memory.stores.store import BlobWrite, Key, Store

REDIS: Final = ("redis:", "rediss:", "redis+", "rediss+")
"""The prefixes of a Redis address."""
MOST: Final = 1000
"""The maximum number of episodes of one agent in a session store; the oldest are removed first."""

_REDIS: Final = EntryPoint("redis", "proxy.memory.episodes.redis:RedisEpisodes", "turnkeeper.episodes")
# The tenant of requests without a key.
_KEYLESS: Final = "default"
# Characters of an agent's name that could be read as the end of a tenant's name, or as such an escape.
_AMBIGUOUS: Final = re.compile("/|%(?=25|2F)")
_REDACTED_FIELDS: Final = ("interaction_type", "content", "platform", "metadata")
_SPARE: Final = 100
_ATTEMPTS: Final = 50
_MAX_PAUSE: Final = 0.01
# The maximum bytes of the hot part, which a call reads in half a millisecond. Beyond, it keeps half as many.
_MAX_HOT: Final = 512 * 1024
# Expired episodes are not returned, but may remain in the cold part for this many seconds.
_EXPIRED_COLD: Final = 600.0

DEFAULT_HOURS: Final = 2
_MAX_HOURS: Final = 100 * 365 * 24


def ttl_seconds(hours: float | None) -> float:
    """Returns the seconds that an episode is stored, by default two hours. Raises ValueError."""
    hours = DEFAULT_HOURS if hours is None else hours
    if not 0 < hours <= _MAX_HOURS:
        raise ValueError(f"ttl_hours must be a number above 0, and at most {_MAX_HOURS}, a hundred years")
    return hours * 3600.0


def window_start(now: float, hours: float) -> float:
    """Returns the time ``hours`` before ``now``, in seconds since 1970. Raises ValueError."""
    if not (math.isfinite(hours) and hours >= 0):
        raise ValueError("hours must be a number, 0 or above")
    return now - hours * 3600.0


def checked_limit(limit: int | None) -> int | None:
    """Returns a limit of episodes, ``None`` for no limit. Raises ValueError for a number below 0."""
    if limit is not None and limit < 0:
        raise ValueError("limit must be 0 or above")
    return limit


def _to_utc(time: datetime) -> datetime:
    return (time.replace(tzinfo=UTC) if time.tzinfo is None else time).astimezone(UTC)


class EpisodicMemory(BaseModel):
    """One interaction: what was done or said, where, and when.

    ``timestamp`` is in UTC and unique for its agent. ``metadata`` is JSON. It lasts for ``ttl_hours``.
    """

    model_config = ConfigDict(frozen=True)

    timestamp: Annotated[datetime, AfterValidator(_to_utc)]
    interaction_type: str
    content: str
    platform: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    ttl_hours: int | float = DEFAULT_HOURS

    @property
    def episode(self) -> Episode:
        """The episode as filters see it."""
        return Episode(
            at=self.timestamp.timestamp(),
            interaction_type=self.interaction_type,
            content=self.content,
            platform=self.platform,
        )

    def summary(self) -> str:
        """Returns a line for a prompt, its time in UTC: ``[14:23] posted_tweet on x: Just shipped it``."""
        return self.episode.as_line()

    def to_json(self) -> bytes:
        """Returns the episode as JSON. Raises ValueError for metadata that is not JSON."""
        return self.model_dump_json(exclude_none=True).encode()

    def redacted(self, redaction: Redaction) -> "EpisodicMemory":
        """Returns the episode with marks in the place of what must not be stored."""
        texts = {name: getattr(self, name) for name in _REDACTED_FIELDS}
        return self.model_copy(update=redaction.value(texts))

    def delayed(self, microseconds: int) -> "EpisodicMemory":
        """Returns the episode with a later time."""
        return self.model_copy(update={"timestamp": self.timestamp + timedelta(microseconds=microseconds)})


class Episodes(Protocol):
    """Episodes by agent, a ``Key`` of its tenant and its id. ``add`` and ``recent`` may raise StoreError.

    No call waits for an episode to be added.
    """

    async def add(self, agent: Key, episode: EpisodicMemory, *, ttl: float) -> EpisodicMemory:
        """Stores an episode for ``ttl`` seconds; returns it, at a later time if its own was taken."""
        ...

    async def recent(
        self, agent: Key, *, since: float, limit: int | None, background: bool = False
    ) -> list[EpisodicMemory]:
        """Returns episodes from ``since`` on (seconds since 1970), newest first.

        A ``background`` read returns all of them. A call may get only the newest, at least a quarter of a
        megabyte. Raises ValueError for a stored episode that is invalid.
        """
        ...

    async def aclose(self) -> None:
        """Closes the connections that were opened for episodes."""
        ...


def open_episodes(url: str, *, deadline: float, codec: Codec, store: Store) -> Episodes:
    """Returns the episodes beside a session ``store`` at ``url``, not connected yet.

    A call waits for them ``deadline`` seconds at most.
    """
    if not url.startswith(REDIS):
        return StoredEpisodes(store)
    episodes: Episodes = _REDIS.load()(url, deadline=deadline, codec=codec)
    return episodes


def agent_id(agent: Key) -> str:
    """Returns an agent's id in keys on a Redis: its name, behind its tenant's if that has a key.

    A tenant's name ends at the first slash, so slashes in the name of an agent without one are escaped.
    """
    if agent.tenant != _KEYLESS:
        return f"{agent.tenant}/{agent.session}"
    return _AMBIGUOUS.sub(lambda found: quote(found[0], safe=""), agent.session)


def parse_agent_id(agent_id: str) -> Key:
    """Parses the id of an agent as a program beside the proxy writes it."""
    tenant, slash, name = agent_id.partition("/")
    has_tenant = slash and name and tenant not in {"", _KEYLESS}
    return Key(tenant, name) if has_tenant else Key(_KEYLESS, agent_id)


class _StoredEpisode(msgspec.Struct, frozen=True, array_like=True):
    """An episode as JSON, with its time and its expiry in seconds since 1970."""

    at: float
    expires: float
    blob: bytes


class _AgentBlob(Extensible, frozen=True):
    """An agent's newest episodes, and the count, newest time and expiries of those in the cold part."""

    episodes: list[_StoredEpisode] = msgspec.field(name="kept")
    cold_count: int = msgspec.field(default=0, name="moved")
    newest_cold: float = msgspec.field(default=0.0, name="reach")
    first_expiry: float = msgspec.field(default=math.inf, name="soonest")
    last_expiry: float = msgspec.field(default=0.0, name="latest")


# An older version stored one list.
_BLOB: Any = _AgentBlob | list[_StoredEpisode]


class StoredEpisodes:
    """Episodes in a session store, under tenants' names that no real tenant can have."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def add(self, agent: Key, episode: EpisodicMemory, *, ttl: float) -> EpisodicMemory:
        """Stores an episode. Raises StoreError if other writers are faster fifty times."""
        for _ in range(_ATTEMPTS):
            added = await self._try_add(agent, episode, ttl)
            if added is not None:
                return added
            await asyncio.sleep(random.uniform(0, _MAX_PAUSE))  # noqa: S311 - so that two writers diverge
        raise StoreError("other requests are writing this agent's episodes")

    async def recent(
        self, agent: Key, *, since: float, limit: int | None, background: bool = False
    ) -> list[EpisodicMemory]:
        """Returns episodes from ``since`` on, newest first; a call gets only those of the hot part."""
        hot, _ = await self._load(agent, background=background)
        if not background:
            return _select(hot.episodes, since, limit)
        cold = await self._cold_blobs(agent, hot) if since <= hot.newest_cold else []
        return await asyncio.to_thread(lambda: _select([*_decode(cold), *hot.episodes], since, limit))

    async def aclose(self) -> None:
        """Does nothing, because the store was not opened here."""

    async def _try_add(self, agent: Key, episode: EpisodicMemory, ttl: float) -> EpisodicMemory | None:
        """Adds an episode and returns it; ``None`` if another writer was faster."""
        hot, version = await self._load(agent, background=True)
        now, used_times = wall_time(), {one.at for one in hot.episodes}
        if episode.timestamp.timestamp() <= hot.newest_cold:
            used_times |= {one.at for one in await self._load_cold(agent, hot)}
        while episode.timestamp.timestamp() in used_times:
            episode = episode.delayed(1)
        new = _StoredEpisode(episode.timestamp.timestamp(), now + ttl, episode.to_json())
        staying, moving = _split([*_unexpired(hot.episodes), new])
        write, before = self._store.write, hot
        is_full = len(staying) + hot.cold_count + len(moving) > MOST + _SPARE
        if is_full or hot.first_expiry < now - _EXPIRED_COLD:
            # The cold part is rewritten without expired and surplus episodes.
            cold = [*_unexpired(await self._load_cold(agent, hot)), *moving]
            cold.sort(key=lambda one: -one.at)
            moving = cold[: max(0, MOST - len(staying))][::-1]
            write, before = self._store.replace, _AgentBlob([], unknown_fields=hot.unknown_fields)
        blob = _AgentBlob(
            staying,
            cold_count=before.cold_count + len(moving),
            newest_cold=max([before.newest_cold, *(one.at for one in moving)]),
            first_expiry=min([before.first_expiry, *(one.expires for one in moving)]),
            last_expiry=max([before.last_expiry, *(one.expires for one in moving)]),
            unknown_fields=before.unknown_fields,
        )
        lasts_until = max([blob.last_expiry, *(one.expires for one in staying)])
        encoded = await asyncio.to_thread(lambda: [*map(msgspec.msgpack.encode, moving)]) if moving else []
        put = BlobWrite(
            extensible.encode(blob),
            version=version,
            ttl=lasts_until - wall_time(),
            cold=encoded,
            background=True,
        )
        return episode if await write(_store_key(agent), put) else None

    async def _load(self, agent: Key, *, background: bool) -> tuple[_AgentBlob, int]:
        stored = await self._store.read(_store_key(agent), background=background)
        if stored is None:
            return _AgentBlob([]), 0
        found: _AgentBlob | list[_StoredEpisode] = extensible.decode(stored.blob, _BLOB)
        return (_AgentBlob(found) if isinstance(found, list) else found), stored.version

    async def _load_cold(self, agent: Key, hot: _AgentBlob) -> list[_StoredEpisode]:
        return await asyncio.to_thread(_decode, await self._cold_blobs(agent, hot))

    async def _cold_blobs(self, agent: Key, hot: _AgentBlob) -> list[bytes]:
        return await self._store.cold(_store_key(agent), limit=hot.cold_count) if hot.cold_count else []


def _store_key(agent: Key) -> Key:
    return Key(f"{agent.tenant}/episodes", agent.session)


def _decode(blobs: Iterable[bytes]) -> list[_StoredEpisode]:
    return [extensible.decode(blob, _StoredEpisode) for blob in blobs]


def _unexpired(episodes: Iterable[_StoredEpisode]) -> list[_StoredEpisode]:
    now = wall_time()
    return [one for one in episodes if one.expires > now]


def _split(episodes: list[_StoredEpisode]) -> tuple[list[_StoredEpisode], list[_StoredEpisode]]:
    """Returns the newest episodes for the hot part, and the others if it has no room for all."""
    episodes = sorted(episodes, key=lambda one: one.at)
    if sum(len(one.blob) for one in episodes) <= _MAX_HOT and len(episodes) <= MOST:
        return episodes, []
    sizes = accumulate(len(one.blob) for one in reversed(episodes))
    count = max(1, min(sum(size <= _MAX_HOT // 2 for size in sizes), MOST))
    return episodes[-count:], episodes[:-count]


def _select(episodes: Iterable[_StoredEpisode], since: float, limit: int | None) -> list[EpisodicMemory]:
    # By time, because an episode that moves during the read may be in both parts.
    found = {one.at: one for one in _unexpired(episodes) if one.at >= since}
    newest = sorted(found.values(), key=lambda one: -one.at)[:MOST][:limit]
    return [EpisodicMemory.model_validate_json(one.blob) for one in newest]
