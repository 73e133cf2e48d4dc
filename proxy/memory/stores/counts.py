"""Numbers that are counted up for a while, by key."""

import time
from collections.abc import Callable
from typing import NamedTuple, Protocol


class Count(NamedTuple):
    """A number, and in how many seconds it is 0 again."""

    number: int
    left: float


class Counts(Protocol):
    """Numbers by key; both methods may raise StoreError."""

    async def add(self, key: str, amount: int, *, lasting: float) -> Count:
        """A number with ``amount`` added; what was 0 until now is so again after ``lasting`` seconds."""
        ...

    async def aclose(self) -> None:
        """Lets go of where they are."""
        ...


class OwnCounts:
    """Those of one process. ``clock`` tells seconds, and only rises: a machine's own is set back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._held: dict[str, tuple[int, float]] = {}

    async def add(self, key: str, amount: int, *, lasting: float) -> Count:
        """As the protocol has it."""
        now = self._clock()
        number, until = self._held.get(key, (0, now))
        if until <= now:
            number, until = 0, now + lasting
        self._held[key] = number + amount, until
        return Count(number + amount, until - now)

    async def aclose(self) -> None:
        """There is nothing to let go of."""
