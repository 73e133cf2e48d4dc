"""The time of day by the clock of the store, which all its servers share."""

import time
from typing import Final

_TOLERANCE: Final = 0.05
"""In seconds: smaller differences of clocks are ignored, since they cannot be measured over a network."""
_ahead = 0.0


def wall_time() -> float:
    """Seconds since 1970 by the store's clock: ``time.time``, corrected by this host's difference to it."""
    return time.time() - _ahead


def set_ahead(seconds: float) -> None:
    """Sets how far this host's clock is ahead of the store's.

    It is global to the process, like the time of day, since times of all its parts are compared.
    """
    global _ahead  # noqa: PLW0603 - see the docstring
    if abs(seconds - _ahead) > _TOLERANCE:
        _ahead = seconds if abs(seconds) > _TOLERANCE else 0.0
