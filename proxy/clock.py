"""The time of day by the clock that all servers of one store share: the store's own."""

import time
from typing import Final

_TOLERANCE: Final = 0.05
"""How far a clock may be off and is followed all the same: as well as a clock can be read over a network."""
_ahead = 0.0


def wall_time() -> float:
    """Seconds since 1970, as ``time.time`` has them on a host whose clock is right."""
    return time.time() - _ahead


def set_ahead(seconds: float) -> None:
    """Says how far this host's clock is ahead of the store's.

    It is a state of the process, as the time of day is: what one part of it wrote another compares with.
    """
    global _ahead  # noqa: PLW0603 - as above
    if abs(seconds - _ahead) > _TOLERANCE:
        _ahead = seconds if abs(seconds) > _TOLERANCE else 0.0
