"""Counters and permits that expire, by key: the rate limits count with them."""

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol


class Count(NamedTuple):
    """A counter's value, and in how many seconds it expires."""

    value: int
    expires_in: float


class Permit(NamedTuple):
    """A permit by its name for ``ttl`` seconds, beside fewer than ``limit`` others; one of 0 seconds ends."""

    name: str
    ttl: float
    limit: int | None = None

    @property
    def ended(self) -> "Permit":
        """The permit with a ``ttl`` of 0, which gives it back."""
        return self._replace(ttl=0.0)


class Counts(Protocol):
    """Counters by key and name, and the permits of each key. ``count`` may raise StoreError."""

    async def count(
        self,
        key: str,
        amounts: Mapping[str, int],
        permit: Permit | None = None,
        *,
        ttl: float,
        deferrable: bool = False,
    ) -> dict[str, Count] | None:
        """Takes, renews or ends a permit, and adds to counters; one that was 0 expires after ``ttl`` seconds.

        What is ``deferrable`` may be put off until the next that is not, for some milliseconds at most.
        Where as many others are taken as the permit's limit, it is ``None``, and nothing is counted.
        """
        ...

    async def aclose(self) -> None:
        """Closes all connections."""
        ...


class LocalCounts:
    """Counters of one process, which needs no permits. ``clock`` returns monotonic seconds."""

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
        """Adds to counters."""
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
