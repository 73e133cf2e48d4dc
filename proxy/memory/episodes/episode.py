"""One interaction of an agent, and the values that are asked for with it."""

import math
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from filters.remembered import Episode

DEFAULT_HOURS: Final = 2
_MAX_HOURS: Final = 100 * 365 * 24


def ttl_seconds(hours: float | None) -> float:
    """The seconds that an episode lasts, two hours by default. Raises ValueError."""
    hours = DEFAULT_HOURS if hours is None else hours
    if not 0 < hours <= _MAX_HOURS:
        raise ValueError(f"ttl_hours must be a number above 0, and at most {_MAX_HOURS}, a hundred years")
    return hours * 3600.0


def window_start(now: float, hours: float) -> float:
    """The time ``hours`` before ``now``, in seconds since 1970. Raises ValueError."""
    if not (math.isfinite(hours) and hours >= 0):
        raise ValueError("hours must be a number, 0 or above")
    return now - hours * 3600.0


def checked_limit(limit: int | None) -> int | None:
    """A limit of episodes; ``None`` is no limit. Raises ValueError for a number below 0."""
    if limit is not None and limit < 0:
        raise ValueError("limit must be 0 or above")
    return limit


def _to_utc(time: datetime) -> datetime:
    return (time.replace(tzinfo=UTC) if time.tzinfo is None else time).astimezone(UTC)


class EpisodicMemory(BaseModel):
    """One interaction: what was done or said, where, and when.

    ``timestamp`` is in UTC and unique for its agent. ``metadata`` is JSON. It lasts for ``ttl_hours``.
    """

    model_config = ConfigDict(frozen=True)

    timestamp: Annotated[datetime, AfterValidator(_to_utc)]
    interaction_type: str
    content: str
    platform: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    ttl_hours: int | float = DEFAULT_HOURS

    @property
    def episode(self) -> Episode:
        """The episode for filters."""
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
        """The episode as JSON. Raises ValueError for metadata that is not JSON."""
        return self.model_dump_json(exclude_none=True).encode()

    def delayed(self, microseconds: int) -> "EpisodicMemory":
        """The same episode at a later time."""
        return self.model_copy(update={"timestamp": self.timestamp + timedelta(microseconds=microseconds)})
