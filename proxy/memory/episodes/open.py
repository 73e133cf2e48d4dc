"""From where sessions are kept to where episodes are."""

from importlib.metadata import EntryPoint
from typing import Final

from proxy.memory.episodes.on_store import StoredEpisodes
from proxy.memory.episodes.source import REDIS, Episodes
from proxy.memory.stores.codec import Codec
from proxy.memory.stores.store import Store

_REDIS: Final = EntryPoint("redis", "proxy.memory.episodes.on_redis:RedisEpisodes", "turnkeeper.episodes")


def open_episodes(url: str, *, deadline: float, codec: Codec, store: Store) -> Episodes:
    """On a Redis, keys of their own; anywhere else, in ``store``, which is what stands at ``url``.

    Nothing is connected yet. ``deadline`` is what a call may lose, in seconds.
    """
    if not url.startswith(REDIS):
        return StoredEpisodes(store)
    opened: Episodes = _REDIS.load().open(url, deadline=deadline, codec=codec)
    return opened
