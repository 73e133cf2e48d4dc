"""One interaction of an agent, as it is kept."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from filters.remembered import Episode
from proxy.memory.episodes.span import DEFAULT_HOURS


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

    def encoded(self) -> bytes:
        """The episode as JSON; raises ValueError for metadata that JSON cannot hold."""
        return self.model_dump_json(exclude_none=True).encode()

    def later(self, microseconds: int) -> "EpisodicMemory":
        """The same, so much later."""
        return self.model_copy(update={"timestamp": self.timestamp + timedelta(microseconds=microseconds)})
