"""Answers that an engine spells in its own way, as memory holds them."""

from collections.abc import Iterator, Sequence

import msgspec

from filters.message import Message
from proxy.memory.reconcile.heard import renewed
from proxy.memory.replay.replay import Replay


def as_held(window: Sequence[Message], heard: Sequence[Message], replay: Replay) -> Sequence[Message]:
    """The messages ``heard`` of a window, its answers spelt as they come back once it has slid past them.

    So a prompt begins as the one before did, wherever the window begins.
    """
    spelt = dict(_respelt(replay))
    if not spelt:
        return heard
    pairs = zip(window, heard, strict=True)
    return [
        msgspec.structs.replace(shown, content=spelt[id(line)]) if id(line) in spelt else shown
        for line, shown in pairs
    ]


def _respelt(replay: Replay) -> Iterator[tuple[int, str]]:
    """The held words of each answer that memory goes on holding so, by the window's line that has others."""
    for position, (line, place) in enumerate(zip(replay.spoken, replay.places, strict=True)):
        if place >= 0 and line.role == "assistant" and position not in replay.wholes:
            entry = replay.held[place]
            words = entry.content
            if words != line.content and isinstance(words, str) and renewed(entry, line).content == words:
                yield id(line), words
