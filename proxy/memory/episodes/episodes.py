"""Where agents' episodes are kept."""

import asyncio
import contextlib
import math
import random
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import EntryPoint
from itertools import accumulate
from typing import Final, Protocol
from urllib.parse import quote

import msgspec

from proxy.memory.episodes.episode import EpisodicMemory
from proxy.memory.errors import StoreError, Unreadable
from proxy.memory.redaction.redaction import Redaction
from proxy.memory.stores.codec import Codec
from proxy.memory.stores.store import BlobWrite, Key, Store

REDIS: Final = ("redis:", "rediss:", "redis+", "rediss+")
"""How addresses begin that are a Redis's."""
_KEYLESS: Final = "default"
"""The tenant of whoever needs no key."""
_MISTAKEN: Final = re.compile("/|%(?=25|2F)")
"""What might be taken for the end of a tenant's name, or for what stands in its place."""
MOST: Final = 1000
"""How many episodes of one agent are kept; the oldest go first."""
_SPARE: Final = 100
_ATTEMPTS: Final = 50
_PAUSE: Final = 0.01
# What a call reads, on its way to the model: half a millisecond. Beyond it, all but half of it moves.
_HOT: Final = 512 * 1024
# What has expired and moved is no longer told; for so long it may still lie in the store.
_STALE: Final = 600.0
_TOLD: Final = ("interaction_type", "content", "platform", "metadata")
_REDIS: Final = EntryPoint("redis", "proxy.memory.episodes.redis:RedisEpisodes", "turnkeeper.episodes")


class Episodes(Protocol):
    """Episodes by agent: a ``Key`` of its tenant and its id. Both methods may raise StoreError.

    No call waits for what is added.
    """

    async def add(self, agent: Key, episode: EpisodicMemory, *, ttl: float) -> EpisodicMemory:
        """Keeps it for ``ttl`` seconds; returned as it is kept, a little later where its time was taken."""
        ...

    async def recent(
        self, agent: Key, *, since: float, limit: int | None, background: bool = False
    ) -> list[EpisodicMemory]:
        """Those from ``since`` on (seconds since 1970), newest first; ValueError where one cannot be read.

        A ``background`` read gives all of them; a call may get the newest alone, at least a quarter of a
        megabyte.
        """
        ...

    async def aclose(self) -> None:
        """Closes what this alone has opened."""
        ...


def agent_id(agent: Key) -> str:
    """An agent's id as keys on a Redis have it: its own, behind the name of a tenant that has a key.

    No tenant's name holds a slash, so a slash in an agent's own name is written otherwise.
    """
    if agent.tenant != _KEYLESS:
        return f"{agent.tenant}/{agent.session}"
    return _MISTAKEN.sub(lambda found: quote(found[0], safe=""), agent.session)


def parse_agent_id(agent_id: str) -> Key:
    """The agent that is called so by a program beside the proxy."""
    tenant, slash, name = agent_id.partition("/")
    is_anothers = slash and name and tenant not in {"", _KEYLESS}
    return Key(tenant, name) if is_anothers else Key(_KEYLESS, agent_id)


class _KeptEpisode(msgspec.Struct, frozen=True, array_like=True):
    """An episode as JSON, its time and when it expires, both in seconds since 1970."""

    at: float
    expires: float
    blob: bytes


class _Hot(msgspec.Struct, frozen=True):
    """The newest episodes, and of those in the cold part: how many, the newest's time, who expires when."""

    kept: list[_KeptEpisode]
    moved: int = 0
    reach: float = 0.0
    soonest: float = math.inf
    latest: float = 0.0

    def with_moved(self, moved: Sequence[_KeptEpisode], *, anew: bool = False) -> "_Hot":
        """The same with more in the cold part, or with these alone."""
        before = _Hot(self.kept) if anew else self
        return _Hot(
            self.kept,
            moved=before.moved + len(moved),
            reach=max([before.reach, *(one.at for one in moved)]),
            soonest=min([before.soonest, *(one.expires for one in moved)]),
            latest=max([before.latest, *(one.expires for one in moved)]),
        )


# An older version kept one list.
_decoder = msgspec.msgpack.Decoder(_Hot | list[_KeptEpisode])


class StoredEpisodes:
    """Episodes among a store's sessions, under names that no tenant can have."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def add(self, agent: Key, episode: EpisodicMemory, *, ttl: float) -> EpisodicMemory:
        """As the protocol has it; StoreError where others write all the time."""
        for _ in range(_ATTEMPTS):
            added = await self._attempt(agent, episode, ttl)
            if added is not None:
                return added
            await asyncio.sleep(random.uniform(0, _PAUSE))  # noqa: S311 - so that two do not meet again
        raise StoreError("others are writing this agent's episodes")

    async def recent(
        self, agent: Key, *, since: float, limit: int | None, background: bool = False
    ) -> list[EpisodicMemory]:
        """As the protocol has it."""
        hot, _ = await self._hot(agent, background=background)
        if not background:
            return _read(hot.kept, since, limit)
        cold = await self._blobs(agent, hot) if since <= hot.reach else []
        return await asyncio.to_thread(lambda: _read([*_opened(cold), *hot.kept], since, limit))

    async def aclose(self) -> None:
        """Leaves the store open: it is not its own."""

    async def _attempt(self, agent: Key, episode: EpisodicMemory, ttl: float) -> EpisodicMemory | None:
        hot, version = await self._hot(agent, background=True)
        now, at = time.time(), episode.timestamp.timestamp()
        own = _alone(episode, [*hot.kept, *(await self._cold(agent, hot) if at <= hot.reach else ())])
        new = _KeptEpisode(own.timestamp.timestamp(), now + ttl, own.to_json())
        kept, moving = _parted([*_living(hot.kept), new])
        hot = msgspec.structs.replace(hot, kept=kept)
        written = await self._write(agent, hot, moving, version)
        return own if written else None

    async def _write(self, agent: Key, hot: _Hot, moving: list[_KeptEpisode], version: int) -> bool:
        """Whether nobody else has written; what is too much, and what has expired, goes now and then."""
        now, place = time.time(), _place(agent)
        anew = hot.soonest < now - _STALE or len(hot.kept) + hot.moved + len(moving) > MOST + _SPARE
        if anew:
            cold = sorted([*_living(await self._cold(agent, hot)), *moving], key=lambda one: -one.at)
            moving = cold[: max(0, MOST - len(hot.kept))][::-1]
        hot = hot.with_moved(moving, anew=anew)
        lasting = max([hot.latest, *(one.expires for one in hot.kept)]) - now
        write = self._store.replace if anew else self._store.write
        packed = await asyncio.to_thread(_packed, moving) if moving else []
        blob = msgspec.msgpack.encode(hot)
        return await write(place, BlobWrite(blob, version=version, ttl=lasting, cold=packed, background=True))

    async def _hot(self, agent: Key, *, background: bool) -> tuple[_Hot, int]:
        held = await self._store.read(_place(agent), background=background)
        if held is None:
            return _Hot([]), 0
        with _readable():
            found = _decoder.decode(held.blob)
        return (_Hot(found) if isinstance(found, list) else found), held.version

    async def _cold(self, agent: Key, hot: _Hot) -> list[_KeptEpisode]:
        return await asyncio.to_thread(_opened, await self._blobs(agent, hot))

    async def _blobs(self, agent: Key, hot: _Hot) -> list[bytes]:
        return await self._store.cold(_place(agent), limit=hot.moved) if hot.moved else []


def _place(agent: Key) -> Key:
    return Key(f"{agent.tenant}/episodes", agent.session)


def _opened(blobs: Iterable[bytes]) -> list[_KeptEpisode]:
    with _readable():
        return [msgspec.msgpack.decode(blob, type=_KeptEpisode) for blob in blobs]


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    """Turns the decoder's errors into Unreadable: a newer version may have written beside this one."""
    try:
        yield
    except msgspec.DecodeError as error:
        raise Unreadable("An agent's episodes cannot be read.") from error


def _packed(kept: Iterable[_KeptEpisode]) -> list[bytes]:
    return [msgspec.msgpack.encode(one) for one in kept]


def _living(kept: Iterable[_KeptEpisode]) -> list[_KeptEpisode]:
    now = time.time()
    return [one for one in kept if one.expires > now]


def _parted(kept: list[_KeptEpisode]) -> tuple[list[_KeptEpisode], list[_KeptEpisode]]:
    """The newest, as many as a call may read, and the others, if these are not all."""
    kept = sorted(kept, key=lambda one: one.at)
    if sum(len(one.blob) for one in kept) <= _HOT and len(kept) <= MOST:
        return kept, []
    sizes = accumulate(len(one.blob) for one in reversed(kept))
    staying = max(1, min(sum(size <= _HOT // 2 for size in sizes), MOST))
    return kept[-staying:], kept[:-staying]


def _read(kept: Iterable[_KeptEpisode], since: float, limit: int | None) -> list[EpisodicMemory]:
    # What moves while it is read may have been met twice.
    found = {one.at: one for one in _living(kept) if one.at >= since}
    newest = sorted(found.values(), key=lambda one: -one.at)[:MOST][:limit]
    return [EpisodicMemory.model_validate_json(one.blob) for one in newest]


def _alone(episode: EpisodicMemory, kept: Sequence[_KeptEpisode]) -> EpisodicMemory:
    """The episode at a time that no other has."""
    taken = {one.at for one in kept}
    while episode.timestamp.timestamp() in taken:
        episode = episode.delayed(1)
    return episode


class RedactedEpisodes:
    """Other episodes, with marks in what is added."""

    def __init__(self, episodes: Episodes, redaction: Redaction) -> None:
        self._episodes = episodes
        self._redaction = redaction
        self.recent = episodes.recent
        self.aclose = episodes.aclose

    async def add(self, agent: Key, episode: EpisodicMemory, *, ttl: float) -> EpisodicMemory:
        """As the protocol has it."""
        told = {name: getattr(episode, name) for name in _TOLD}
        marked = episode.model_copy(update=self._redaction.value(told))
        return await self._episodes.add(agent, marked, ttl=ttl)


def with_redaction(episodes: Episodes, redaction: Redaction) -> Episodes:
    """The episodes without what a redaction finds; the very same where it looks for nothing."""
    return RedactedEpisodes(episodes, redaction) if redaction else episodes


def open_episodes(url: str, *, deadline: float, codec: Codec, store: Store) -> Episodes:
    """On a Redis, keys of their own; anywhere else, in ``store``, which is what stands at ``url``.

    Nothing is connected yet. ``deadline`` is what a call may lose, in seconds.
    """
    if not url.startswith(REDIS):
        return StoredEpisodes(store)
    opened: Episodes = _REDIS.load().open(url, deadline=deadline, codec=codec)
    return opened
