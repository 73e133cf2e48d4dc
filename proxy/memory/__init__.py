"""What is remembered of a conversation, and where it is kept.

Its words (window, life, reach, seal, …) stand in ``docs/design.md``, under "Words".

A turn begins in ``known`` (one read, a frozen snapshot) and ends in ``reconcile/`` (what was heard is
taken into the session). ``session/`` says what a session is, ``replay/`` lays a window beside it,
``summaries/`` keep it short, and ``facts/``, ``episodes/`` and ``archive/`` outlive it. ``store`` is the
contract of whatever keeps sessions: ``sql/``, ``redis/`` and ``volatile`` do, behind ``coded``,
``metered``, ``guard``, ``recent`` and ``pulse``; ``open`` makes one from an address.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from proxy.memory.episodes.context import ContextManager
    from proxy.memory.episodes.episode import EpisodicMemory
    from proxy.memory.episodes.standalone import ShortTermMemoryManager, get_short_term_memory

__all__ = ["ContextManager", "EpisodicMemory", "ShortTermMemoryManager", "get_short_term_memory"]

# Named here and loaded when they are asked for: Redis's client costs what few who come here need.
_HOMES = {
    "ContextManager": "proxy.memory.episodes.context",
    "EpisodicMemory": "proxy.memory.episodes.episode",
    "ShortTermMemoryManager": "proxy.memory.episodes.standalone",
    "get_short_term_memory": "proxy.memory.episodes.standalone",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
