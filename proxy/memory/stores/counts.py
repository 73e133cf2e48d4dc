"""Counters that expire, by key: the rate limits count with them."""

import time
from collections.abc import Callable
from typing import NamedTuple, Protocol


class Count(NamedTuple):
    """A counter's value, and in how many seconds it expires."""

    value: int
    expires_in: float


class Counts(Protocol):
    """Counters by key. Both methods may raise StoreError."""

    async def add(self, key: str, amount: int, *, ttl: float) -> Count:
        """Adds to a counter; one that was 0 expires after ``ttl`` seconds."""
        ...

    async def aclose(self) -> None:
        """Closes all connections."""
        ...


class LocalCounts:
    """Counters of one process. ``clock`` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counters: dict[str, tuple[int, float]] = {}

    async def add(self, key: str, amount: int, *, ttl: float) -> Count:
        """Adds to a counter."""
        now = self._clock()
        number, until = self._counters.get(key, (0, now))
        if until <= now:
            number, until = 0, now + ttl
        self._counters[key] = number + amount, until
        return Count(number + amount, until - now)

    async def aclose(self) -> None:
        """Does nothing."""
