"""Counters and permits by key, which expire; rate limits count with them."""

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol


class Count(NamedTuple):
    """A counter's value, and the seconds until it expires."""

    value: int
    expires_in: float


class Permit(NamedTuple):
    """A permit for ``ttl`` seconds, granted beside fewer than ``limit`` others; a ``ttl`` of 0 ends it."""

    name: str
    ttl: float
    limit: int | None = None

    @property
    def ended(self) -> "Permit":
        """The permit with a ``ttl`` of 0, which ends it."""
        return self._replace(ttl=0.0)


class Counts(Protocol):
    """Counters by key and name, and permits by key. ``count`` may raise StoreError."""

    async def count(
        self,
        key: str,
        amounts: Mapping[str, int],
        permit: Permit | None = None,
        *,
        ttl: float,
        deferrable: bool = False,
    ) -> dict[str, Count] | None:
        """Takes, renews or ends a permit, and adds to counters; a new counter expires after ``ttl`` seconds.

        Returns the counters. Returns ``None``, and counts nothing, if as many other permits are taken as the
        limit allows. A ``deferrable`` count may wait some milliseconds to be sent with one that is not.
        """
        ...

    async def aclose(self) -> None:
        """Closes all connections."""
        ...


class LocalCounts:
    """Counters of one process, without permits. ``clock`` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counters: dict[tuple[str, str], tuple[int, float]] = {}

    async def count(
        self,
        key: str,
        amounts: Mapping[str, int],
        permit: Permit | None = None,  # noqa: ARG002 - a process counts its own open answers
        *,
        ttl: float,
        deferrable: bool = False,  # noqa: ARG002 - nothing is sent
    ) -> dict[str, Count]:
        """Adds to counters, and returns them."""
        return {name: self._add((key, name), amount, ttl) for name, amount in amounts.items()}

    async def aclose(self) -> None:
        """Does nothing."""

    def _add(self, counter: tuple[str, str], amount: int, ttl: float) -> Count:
        now = self._clock()
        number, until = self._counters.get(counter, (0, now))
        if until <= now:
            number, until = 0, now + ttl
        self._counters[counter] = number + amount, until
        return Count(number + amount, until - now)
