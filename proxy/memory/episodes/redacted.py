"""Episodes without what must not be stored."""

from typing import Final

from proxy.memory.episodes.episode import EpisodicMemory
from proxy.memory.episodes.source import Episodes
from proxy.memory.redaction.redaction import Redaction
from proxy.memory.stores.store import Key

_TOLD: Final = ("interaction_type", "content", "platform", "metadata")


class RedactedEpisodes:
    """Other episodes, with marks in what is added."""

    def __init__(self, episodes: Episodes, redaction: Redaction) -> None:
        self._episodes = episodes
        self._redaction = redaction
        self.recent = episodes.recent
        self.aclose = episodes.aclose

    async def add(self, agent: Key, episode: EpisodicMemory, *, ttl: float) -> EpisodicMemory:
        """As the protocol has it."""
        told = {name: getattr(episode, name) for name in _TOLD}
        marked = episode.model_copy(update=self._redaction.value(told))
        return await self._episodes.add(agent, marked, ttl=ttl)


def redacted(episodes: Episodes, redaction: Redaction) -> Episodes:
    """The episodes without what a redaction finds; the very same where it looks for nothing."""
    return RedactedEpisodes(episodes, redaction) if redaction else episodes
