"""Counters and leases that expire, by key: the rate limits count with them."""

import time
from collections.abc import Callable
from typing import NamedTuple, Protocol


class Count(NamedTuple):
    """A counter's value, and in how many seconds it expires."""

    value: int
    expires_in: float


class Counts(Protocol):
    """Counters and leases by key. All methods but ``aclose`` may raise StoreError."""

    async def add(self, key: str, amount: int, *, ttl: float) -> Count:
        """Adds to a counter; one that was 0 expires after ``ttl`` seconds."""
        ...

    async def take(self, key: str, lease: str, *, limit: float, ttl: float) -> bool:
        """Takes a lease for ``ttl`` seconds, or renews it; false where ``limit`` others are taken."""
        ...

    async def free(self, key: str, lease: str) -> None:
        """Gives a lease back."""
        ...

    async def aclose(self) -> None:
        """Closes all connections."""
        ...


class LocalCounts:
    """Counters of one process. ``clock`` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counters: dict[str, tuple[int, float]] = {}
        self._leases: dict[str, dict[str, float]] = {}

    async def add(self, key: str, amount: int, *, ttl: float) -> Count:
        """Adds to a counter."""
        now = self._clock()
        number, until = self._counters.get(key, (0, now))
        if until <= now:
            number, until = 0, now + ttl
        self._counters[key] = number + amount, until
        return Count(number + amount, until - now)

    async def take(self, key: str, lease: str, *, limit: float, ttl: float) -> bool:
        """Takes or renews a lease."""
        now = self._clock()
        leases = {name: until for name, until in self._leases.get(key, {}).items() if until > now}
        self._leases[key] = leases
        if lease not in leases and len(leases) >= limit:
            return False
        leases[lease] = now + ttl
        return True

    async def free(self, key: str, lease: str) -> None:
        """Gives a lease back."""
        leases = self._leases.get(key, {})
        leases.pop(lease, None)
        if not leases:
            self._leases.pop(key, None)

    async def aclose(self) -> None:
        """Does nothing."""
