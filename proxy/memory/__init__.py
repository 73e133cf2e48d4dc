"""What is remembered of a conversation, and where it is kept.

Its words (window, life, reach, seal, …) stand in ``docs/design.md``, under "Words".

A turn begins in ``known`` (one read, a frozen snapshot), with the ``sight`` of its request, and ends in
``reconcile/`` (what was heard is taken into the session). ``session/`` says what a session is, ``speech/``
what of a message belongs to it, ``replay/`` lays a window beside it, ``summaries/`` keep it short, and
``facts/``, ``episodes/`` and ``archive/`` outlive it; ``apart`` is where what takes long is worked out.

``store`` is the contract of whatever keeps sessions: ``sql/``, ``redis/`` and ``volatile`` do, behind
``coded``, ``metered``, ``guard`` and ``recent``; ``open`` makes one from an address. ``redaction/`` and a
``codec`` (``encryption``, by ``sealing``) stand at its edge, a ``pulse`` tells how it fares, ``arrears``
are turns that wait for it, and ``faults`` what can go wrong. A ``lease`` has one ``holder`` at a time, and
``patience`` waits for what somebody else does, and ``counts`` are numbers that all servers may share.

Each word has an ``owner``. ``people`` is the registry of all places that hold any, of which
``held_sessions`` are one. ``contents`` and a ``remainder`` carry a session elsewhere, and ``retold`` is its
talk as text.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from proxy.memory.episodes.episode import EpisodicMemory
    from proxy.memory.episodes.short_term import ContextManager, ShortTermMemoryManager, get_short_term_memory

__all__ = ["ContextManager", "EpisodicMemory", "ShortTermMemoryManager", "get_short_term_memory"]

# Named here and loaded when they are asked for: Redis's client costs what few who come here need.
_HOMES = {
    "ContextManager": "proxy.memory.episodes.short_term",
    "EpisodicMemory": "proxy.memory.episodes.episode",
    "ShortTermMemoryManager": "proxy.memory.episodes.short_term",
    "get_short_term_memory": "proxy.memory.episodes.short_term",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
