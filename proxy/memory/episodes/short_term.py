"""An agent's short-term memory, whatever keeps it."""

from abc import ABC, abstractmethod
from datetime import UTC, datetime
from typing import Any

from proxy.memory.episodes.episode import EpisodicMemory
from proxy.memory.episodes.span import DEFAULT_HOURS, beginning, bounded, lifetime


class ShortTermMemory(ABC):
    """What an agent did within the last hours. Methods that reach out raise ConnectionError."""

    @abstractmethod
    async def connect(self) -> None:
        """Connects; a second time it only makes sure of it. Other methods connect by themselves."""

    @abstractmethod
    async def disconnect(self) -> None:
        """Closes what was opened; a later call opens it again."""

    async def add_interaction(
        self,
        interaction_type: str,
        content: str,
        platform: str | None = None,
        metadata: dict[str, Any] | None = None,
        ttl_hours: int | None = None,
    ) -> EpisodicMemory:
        """Keeps an interaction for two hours, or ``ttl_hours``; raises ValueError for what cannot be kept."""
        lasting = lifetime(ttl_hours)
        episode = EpisodicMemory(
            timestamp=datetime.now(UTC),
            interaction_type=interaction_type,
            content=content,
            platform=platform,
            metadata=metadata or {},
            ttl_hours=DEFAULT_HOURS if ttl_hours is None else ttl_hours,
        )
        return await self._add(episode, lasting)

    async def get_recent(self, hours: float = 2.0, limit: int | None = None) -> list[EpisodicMemory]:
        """Those of the last ``hours``, newest first; raises ValueError where one cannot be read."""
        return await self._recent(beginning(datetime.now(UTC).timestamp(), hours), bounded(limit))

    async def get_recent_summaries(self, hours: float = 2.0, limit: int | None = None) -> list[str]:
        """The same as lines: ``[14:23] posted_tweet on x: Just shipped it``, times in UTC."""
        return [episode.summary() for episode in await self.get_recent(hours, limit)]

    @abstractmethod
    async def _add(self, episode: EpisodicMemory, ttl: float) -> EpisodicMemory: ...

    @abstractmethod
    async def _recent(self, since: float, limit: int | None) -> list[EpisodicMemory]: ...
