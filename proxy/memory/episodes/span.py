"""How long an episode lasts, and how far back is looked."""

import math

DEFAULT_HOURS = 2
_LONGEST = 100 * 365 * 24
"""A hundred years of hours."""


def lifetime(hours: float | None) -> float:
    """Seconds that an episode lasts, two hours where nothing is said; ValueError for what is no lifetime."""
    hours = DEFAULT_HOURS if hours is None else hours
    if not 0 < hours <= _LONGEST:
        raise ValueError(f"ttl_hours must be a number above 0, and at most {_LONGEST}, a hundred years")
    return hours * 3600.0


def beginning(now: float, hours: float) -> float:
    """Since when episodes are looked for, in seconds since 1970; ValueError for what is no length of time."""
    if not (math.isfinite(hours) and hours >= 0):
        raise ValueError("hours must be a number, 0 or above")
    return now - hours * 3600.0


def bounded(limit: int | None) -> int | None:
    """How many episodes are wanted; ``None`` for all. ValueError for a number below 0."""
    if limit is not None and limit < 0:
        raise ValueError("limit must be 0 or above")
    return limit
