"""Agents' episodes where sessions are kept, whatever that is: one blob for each agent."""

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Final

import msgspec

from proxy.memory.episodes.episode import EpisodicMemory
from proxy.memory.store import Key, Store, StoreError

MOST: Final = 1000
"""How many episodes of one agent are kept; the oldest go first."""
_ATTEMPTS: Final = 50
_PAUSE: Final = 0.01


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    """An episode as JSON, its time and when it expires, both in seconds since 1970."""

    at: float
    expires: float
    blob: bytes


_decoder = msgspec.msgpack.Decoder(list[_Kept])


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

    async def recent(self, agent: Key, *, since: float, limit: int | None) -> list[EpisodicMemory]:
        """As the protocol has it."""
        held = await self._store.read(_place(agent))
        kept = _living(held.blob if held else None)
        found = sorted((one for one in kept if one.at >= since), key=lambda one: one.at, reverse=True)
        return [EpisodicMemory.model_validate_json(one.blob) for one in found[:limit]]

    async def aclose(self) -> None:
        """Leaves the store open: it is not its own."""

    async def _attempt(self, agent: Key, episode: EpisodicMemory, ttl: float) -> EpisodicMemory | None:
        held = await self._store.read(_place(agent))
        kept = _living(held.blob if held else None)
        own = _alone(episode, kept)
        now = time.time()
        kept = [*kept, _Kept(own.timestamp.timestamp(), now + ttl, own.encoded())][-MOST:]
        lasting = max(one.expires for one in kept) - now
        blob, version = msgspec.msgpack.encode(kept), held.version if held else 0
        written = await self._store.write(_place(agent), blob, version=version, ttl=lasting)
        return own if written else None


def _place(agent: Key) -> Key:
    return Key(f"{agent.tenant}/episodes", agent.session)


def _living(blob: bytes | None) -> list[_Kept]:
    now = time.time()
    return [one for one in _decoder.decode(blob) if one.expires > now] if blob else []


def _alone(episode: EpisodicMemory, kept: Sequence[_Kept]) -> EpisodicMemory:
    """The episode at a time that no other has."""
    taken = {one.at for one in kept}
    while episode.timestamp.timestamp() in taken:
        episode = episode.later(1)
    return episode
