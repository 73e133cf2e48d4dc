"""What is remembered of a conversation, and where it is kept.

Its words (window, life, reach, seal, …) stand in ``docs/design.md``, under "Words".
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from proxy.memory.context import ContextManager
    from proxy.memory.episodes.episode import EpisodicMemory
    from proxy.memory.episodes.standalone import ShortTermMemoryManager, get_short_term_memory

__all__ = ["ContextManager", "EpisodicMemory", "ShortTermMemoryManager", "get_short_term_memory"]

# Named here and loaded when they are asked for: Redis's client costs what few who come here need.
_HOMES = {
    "ContextManager": "proxy.memory.context",
    "EpisodicMemory": "proxy.memory.episodes.episode",
    "ShortTermMemoryManager": "proxy.memory.episodes.standalone",
    "get_short_term_memory": "proxy.memory.episodes.standalone",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
