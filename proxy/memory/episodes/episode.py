"""How long an episode lasts, and how far back is looked."""

import math
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from filters.remembered import Episode

DEFAULT_HOURS = 2
_LONGEST = 100 * 365 * 24
"""A hundred years of hours."""


def ttl_seconds(hours: float | None) -> float:
    """Seconds that an episode lasts, two hours where nothing is said; ValueError for what is no lifetime."""
    hours = DEFAULT_HOURS if hours is None else hours
    if not 0 < hours <= _LONGEST:
        raise ValueError(f"ttl_hours must be a number above 0, and at most {_LONGEST}, a hundred years")
    return hours * 3600.0


def window_start(now: float, hours: float) -> float:
    """Since when episodes are looked for, in seconds since 1970; ValueError for what is no length of time."""
    if not (math.isfinite(hours) and hours >= 0):
        raise ValueError("hours must be a number, 0 or above")
    return now - hours * 3600.0


def checked_limit(limit: int | None) -> int | None:
    """How many episodes are wanted; ``None`` for all. ValueError for a number below 0."""
    if limit is not None and limit < 0:
        raise ValueError("limit must be 0 or above")
    return limit


def _in_utc(given: datetime) -> datetime:
    return (given.replace(tzinfo=UTC) if given.tzinfo is None else given).astimezone(UTC)


class EpisodicMemory(BaseModel):
    """One interaction: what was done or said, where, and when.

    ``timestamp`` is in UTC, and no two of one agent are alike. ``metadata`` is JSON. It lasts for
    ``ttl_hours``.
    """

    model_config = ConfigDict(frozen=True)

    timestamp: Annotated[datetime, AfterValidator(_in_utc)]
    interaction_type: str
    content: str
    platform: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    ttl_hours: int | float = DEFAULT_HOURS

    @property
    def episode(self) -> Episode:
        """The same as a filter sees it."""
        return Episode(
            at=self.timestamp.timestamp(),
            interaction_type=self.interaction_type,
            content=self.content,
            platform=self.platform,
        )

    def summary(self) -> str:
        """One line for a prompt, its time in UTC: ``[14:23] posted_tweet on x: Just shipped it``."""
        return self.episode.as_line()

    def to_json(self) -> bytes:
        """The episode as JSON; raises ValueError for metadata that JSON cannot hold."""
        return self.model_dump_json(exclude_none=True).encode()

    def delayed(self, microseconds: int) -> "EpisodicMemory":
        """The same, so much later."""
        return self.model_copy(update={"timestamp": self.timestamp + timedelta(microseconds=microseconds)})
