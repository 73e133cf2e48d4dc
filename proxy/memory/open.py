"""From an address to a store: the scheme names the driver, which is loaded when it is asked for."""

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Final, Protocol

from proxy.memory.codec import Codec
from proxy.memory.coded import CodedStore
from proxy.memory.counts import Counts
from proxy.memory.store import Store

if TYPE_CHECKING:
    from proxy.memory.sql.elsewhere import Elsewhere

GROUP: Final = "turnkeeper.stores"
"""Installed packages add drivers here, named by scheme; each is a ``Driver``."""

_SQL: Final = "proxy.memory.sql"
_REDIS: Final = "proxy.memory.redis:open"
_COUNTS: Final = "proxy.memory.redis.counts:RedisCounts"
_DRIVERS: Final = {
    "sqlite": f"{_SQL}.sqlite:open",
    "postgresql": f"{_SQL}.postgres:open",
    "postgres": f"{_SQL}.postgres:open",
    "redis": _REDIS,
    "rediss": _REDIS,
    "redis+unix": _REDIS,
    "redis+sentinel": _REDIS,
    "rediss+sentinel": _REDIS,
    "redis+cluster": _REDIS,
    "rediss+cluster": _REDIS,
    "memory": "proxy.memory.volatile:open",
}
_EXTRAS: Final = {"asyncpg": "postgres"}


class Driver(Protocol):
    """What makes stores of one kind.

    It connects nothing, and raises ValueError for an address that it cannot read.
    """

    def __call__(self, url: str, *, deadline: float) -> Store:
        """The store at an address."""
        ...


def open_store(url: str, *, deadline: float, codec: Codec, elsewhere: "Elsewhere | None" = None) -> Store:
    """The store at an address; nothing is connected yet. ``deadline`` is what a call may lose, in seconds.

    ``elsewhere`` is for an SQLite file to which others of this process write, too. Raises ValueError for an
    address that names no store, without the address: it may hold a password.
    """
    scheme, colon, _ = url.partition(":")
    driver = _driver(scheme) if colon else None
    if driver is None:
        known = ", ".join(f"{name}:" for name in _others() | _DRIVERS)
        raise ValueError(f"no store is addressed like this; write one of {known}")
    more = {} if elsewhere is None else {"elsewhere": elsewhere}
    return CodedStore(_loaded(driver)(url, deadline=deadline, **more), codec)


def open_counts(url: str, *, deadline: float) -> Counts | None:
    """Where numbers are counted that all servers share, where the address is a Redis; connects nothing."""
    driver = _DRIVERS.get(url.partition(":")[0])
    if driver != _REDIS:
        return None
    counts: Callable[..., Counts] = EntryPoint("counts", _COUNTS, GROUP).load()
    return counts(url, deadline=deadline)


def _driver(scheme: str) -> EntryPoint | None:
    """Nobody takes the place of a driver of our own, so that packages are looked through for others alone."""
    own = _DRIVERS.get(scheme)
    return EntryPoint(scheme, own, GROUP) if own else _others().get(scheme)


def _others() -> dict[str, EntryPoint]:
    return {driver.name: driver for driver in entry_points(group=GROUP)}


def _loaded(driver: EntryPoint) -> Driver:
    try:
        return driver.load()  # type: ignore[no-any-return]
    except ModuleNotFoundError as error:
        missing = error.name or driver.module
        package = f"turnkeeper[{_EXTRAS[missing]}]" if missing in _EXTRAS else missing
        raise ValueError(f"{driver.name}: needs the module {missing}; install {package}") from error
