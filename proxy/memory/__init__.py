"""What is remembered of conversations: sessions, their stores, summaries, facts, episodes and the archive."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from proxy.memory.episodes.episodes import EpisodicMemory
    from proxy.memory.episodes.short_term import ContextManager, ShortTermMemoryManager, get_short_term_memory

__all__ = ["ContextManager", "EpisodicMemory", "ShortTermMemoryManager", "get_short_term_memory"]

# Loaded on first use: most importers do not need Redis's client.
_HOMES = {
    "ContextManager": "proxy.memory.episodes.short_term",
    "EpisodicMemory": "proxy.memory.episodes.episodes",
    "ShortTermMemoryManager": "proxy.memory.episodes.short_term",
    "get_short_term_memory": "proxy.memory.episodes.short_term",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
