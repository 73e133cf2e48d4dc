"""Counts of this process, for the ``limits`` library."""

import time
from collections.abc import Callable

from limits.aio.storage import Storage


class OwnCounts(Storage):
    """Numbers that expire, by key. ``clock`` tells seconds, and only rises: a machine's own is set back."""

    STORAGE_SCHEME = None

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._counts: dict[str, tuple[int, float]] = {}

    @property
    def base_exceptions(self) -> type[Exception]:
        """Nothing goes wrong."""
        return ValueError

    async def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        """Adds to a number, which expires ``expiry`` seconds after it was first added to."""
        count, until = self._held(key) or (0, self._clock() + expiry)
        self._counts[key] = count + amount, until
        return count + amount

    async def get(self, key: str) -> int:
        """A number; 0 where there is none."""
        held = self._held(key)
        return held[0] if held else 0

    async def get_expiry(self, key: str) -> float:
        """When a number expires, in seconds since 1970; now where there is none."""
        held = self._held(key)
        return time.time() + (held[1] - self._clock() if held else 0.0)

    async def check(self) -> bool:
        """There is always room."""
        return True

    async def reset(self) -> int | None:
        """All numbers are forgotten; how many there were."""
        count = len(self._counts)
        self._counts.clear()
        return count

    async def clear(self, key: str) -> None:
        """Forgets a number."""
        self._counts.pop(key, None)

    def _held(self, key: str) -> tuple[int, float] | None:
        held = self._counts.get(key)
        return held if held and held[1] > self._clock() else None
