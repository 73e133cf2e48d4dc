"""Drivers of stores by the scheme of an address; a driver is imported when a store is opened."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Final

from proxy.memory.stores.channel import Channel
from proxy.memory.stores.codec import Codec, codec_from_keys
from proxy.memory.stores.session_store import SessionStore
from proxy.memory.stores.store import Store

if TYPE_CHECKING:
    from proxy.memory.stores.redis_counts import RedisCounts
    from proxy.memory.stores.redis_turns import RedisTurns

GROUP: Final = "turnkeeper.stores"
"""The entry points with which packages add drivers: by scheme, functions of an address and a ``deadline``.

Each returns a ``Store`` that is not connected yet, and raises ValueError for an address that it cannot parse.
"""

_METHODS: Final = ("take_due", "settle", "acquire", "release")
_REDIS: Final = "proxy.memory.stores.redis:open"
_POSTGRES: Final = "proxy.memory.stores.postgres:open"
_CHANNELS: Final = {_REDIS: "redis_channel:open", _POSTGRES: "postgres_channel:open"}
_EXTRAS: Final = {"asyncpg": "postgres"}
_DRIVERS: Final = {
    "sqlite": "proxy.memory.stores.sqlite:open",
    "postgresql": _POSTGRES,
    "postgres": _POSTGRES,
    "redis": _REDIS,
    "rediss": _REDIS,
    "redis+unix": _REDIS,
    "redis+sentinel": _REDIS,
    "rediss+sentinel": _REDIS,
    "redis+cluster": _REDIS,
    "rediss+cluster": _REDIS,
    "memory": "proxy.memory.stores.volatile:open",
}


def open_store(url: str, *, deadline: float, codec: Codec) -> SessionStore:
    """Returns the sessions at an address, without a circuit breaker; see ``open_driver``."""
    return SessionStore(open_driver(url, deadline=deadline), codec)


def is_shared_store(url: str) -> bool:
    """Whether other processes can reach the store at an address; false, as unknown, for packages' drivers."""
    scheme = url.partition(":")[0]
    return scheme in _DRIVERS and scheme != "memory"


def open_driver(
    url: str, *, deadline: float, is_shared: bool = False, counts: "RedisCounts | None" = None
) -> Store:
    """Returns the store at an address, not connected yet. ``deadline`` is how many seconds a call may wait.

    ``is_shared`` is whether other processes serve the same calls, and ``counts`` are counters on the same
    Redis. Raises ValueError for an invalid address, without the address, which may contain a password.
    """
    scheme, colon, _ = url.partition(":")
    # A package cannot replace one of our drivers.
    own = _DRIVERS.get(scheme)
    driver = EntryPoint(scheme, own, GROUP) if own else _installed_drivers().get(scheme)
    if driver is None or not colon:
        schemes = ", ".join(f"{name}:" for name in _installed_drivers() | _DRIVERS)
        raise ValueError(f"this is not the address of a store; write one of {schemes}")
    try:
        factory: Callable[..., Store] = driver.load()
    except ModuleNotFoundError as error:
        missing = error.name or driver.module
        package = f"turnkeeper[{_EXTRAS[missing]}]" if missing in _EXTRAS else missing
        raise ValueError(f"{driver.name}: needs the module {missing}; install {package}") from error
    options: dict[str, Any] = {"take_along": counts.take_along} if counts else {}
    if is_shared and scheme == "sqlite":
        options["is_shared"] = True
    store = factory(url, deadline=deadline, **options)
    if lacking := [name for name in _METHODS if not hasattr(store, name)]:
        raise ValueError(
            f"{driver.name}: the driver was made for an older Turnkeeper and lacks {', '.join(lacking)};"
            f" install a newer version of {driver.module.partition('.')[0]}"
        )
    return store


def is_counting_server(url: str) -> bool:
    """Whether the store at an address is a Redis, which can count for all servers that use it."""
    return _DRIVERS.get(url.partition(":")[0]) == _REDIS


def open_counts(url: str, *, deadline: float) -> "RedisCounts | None":
    """Returns counters that all servers share, not connected yet; ``None`` if the address is no Redis."""
    return _load("redis_counts:RedisCounts")(url, deadline=deadline) if is_counting_server(url) else None


def open_turns(url: str) -> "RedisTurns | None":
    """Returns a store of turns for the web page that all hosts share; ``None`` if the address is no Redis."""
    return _load("redis_turns:RedisTurns")(url) if is_counting_server(url) else None


@dataclass(frozen=True)
class ChannelAddress:
    """The address of a channel between the servers of a store, and the ``keys`` that encrypt its messages."""

    url: str = field(repr=False)
    keys: tuple[str, ...] = field(repr=False)
    deadline: float

    def open(self) -> tuple[Channel, Codec]:
        """Returns the channel, not connected yet, and the codec of its messages."""
        open_channel = _load(_CHANNELS[_DRIVERS[self.url.partition(":")[0]]])
        return open_channel(self.url, deadline=self.deadline), codec_from_keys(self.keys)


def channel_address(url: str, keys: Sequence[str], *, deadline: float) -> ChannelAddress | None:
    """Returns the address of the channel in the store at ``url``; ``None`` if that carries no messages."""
    has_channel = _DRIVERS.get(url.partition(":")[0]) in _CHANNELS
    return ChannelAddress(url, tuple(keys), deadline) if has_channel else None


def _installed_drivers() -> dict[str, EntryPoint]:
    return {driver.name: driver for driver in entry_points(group=GROUP)}


def _load(name: str) -> Any:
    """Imports a name from a module beside this one, with the client library that the module needs."""
    return EntryPoint(name, f"proxy.memory.stores.{name}", GROUP).load()
