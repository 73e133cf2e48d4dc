"""From an address to a store: the scheme names the driver, which is loaded when it is asked for."""

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Final, Protocol

from proxy.memory.stores.codec import Codec
from proxy.memory.stores.counts import Counts
from proxy.memory.stores.session_store import SessionStore
from proxy.memory.stores.store import Store

GROUP: Final = "turnkeeper.stores"
"""Installed packages add drivers here, named by scheme; each is a ``Driver``."""
_STORES: Final = "proxy.memory.stores"
_REDIS: Final = f"{_STORES}.redis:open"
_COUNTS: Final = f"{_STORES}.redis:RedisCounts"
_EXTRAS: Final = {"asyncpg": "postgres"}


if TYPE_CHECKING:
    from proxy.memory.stores.sqlite_file import ForeignCommits


_DRIVERS: Final = {
    "sqlite": f"{_STORES}.sqlite:open",
    "postgresql": f"{_STORES}.postgres:open",
    "postgres": f"{_STORES}.postgres:open",
    "redis": _REDIS,
    "rediss": _REDIS,
    "redis+unix": _REDIS,
    "redis+sentinel": _REDIS,
    "rediss+sentinel": _REDIS,
    "redis+cluster": _REDIS,
    "rediss+cluster": _REDIS,
    "memory": f"{_STORES}.volatile:open",
}


class StoreFactory(Protocol):
    """What makes stores of one kind.

    It connects nothing, and raises ValueError for an address that it cannot read.
    """

    def __call__(self, url: str, *, deadline: float) -> Store:
        """The store at an address."""
        ...


def open_store(url: str, *, deadline: float, codec: Codec) -> SessionStore:
    """The sessions at an address, without a circuit breaker; see ``open_driver``."""
    return SessionStore(open_driver(url, deadline=deadline), codec)


def open_driver(url: str, *, deadline: float, foreign_commits: "ForeignCommits | None" = None) -> Store:
    """The store at an address; nothing is connected yet. ``deadline`` is what a call may lose, in seconds.

    ``foreign_commits`` is for an SQLite file with other writers in this process. Raises ValueError for an
    address that names no store, without the address: it may hold a password.
    """
    scheme, colon, _ = url.partition(":")
    driver = _driver_for(scheme) if colon else None
    if driver is None:
        schemes = ", ".join(f"{name}:" for name in _installed_drivers() | _DRIVERS)
        raise ValueError(f"no store is addressed like this; write one of {schemes}")
    more = {} if foreign_commits is None else {"foreign_commits": foreign_commits}
    return _load(driver)(url, deadline=deadline, **more)


def open_counts(url: str, *, deadline: float) -> Counts | None:
    """Where numbers are counted that all servers share, where the address is a Redis; connects nothing."""
    driver = _DRIVERS.get(url.partition(":")[0])
    if driver != _REDIS:
        return None
    counts: Callable[..., Counts] = EntryPoint("counts", _COUNTS, GROUP).load()
    return counts(url, deadline=deadline)


def _driver_for(scheme: str) -> EntryPoint | None:
    """Nobody takes the place of a driver of our own, so that packages are looked through for others alone."""
    own = _DRIVERS.get(scheme)
    return EntryPoint(scheme, own, GROUP) if own else _installed_drivers().get(scheme)


def _installed_drivers() -> dict[str, EntryPoint]:
    return {driver.name: driver for driver in entry_points(group=GROUP)}


def _load(driver: EntryPoint) -> StoreFactory:
    try:
        return driver.load()  # type: ignore[no-any-return]
    except ModuleNotFoundError as error:
        missing = error.name or driver.module
        package = f"turnkeeper[{_EXTRAS[missing]}]" if missing in _EXTRAS else missing
        raise ValueError(f"{driver.name}: needs the module {missing}; install {package}") from error
