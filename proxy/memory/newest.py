"""The newest request whose window a session has taken in: by it an older one is known, and the same one again."""

from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple, Protocol

import msgspec

from filters.message import Message
from proxy.memory.speech import answers, speech

_BYTES = 8


class Turn(NamedTuple):
    """Which words of the user: their turn, whose number means nothing without its life.

    ``question`` tells which words of a turn that has several: -1 are the last of them, -2 those before.
    """

    life: int
    turn: int
    question: int = -1


class Words(Protocol):
    """What is held of one message, as far as it tells whose words in which turn they are."""

    @property
    def role(self) -> str: ...

    @property
    def life(self) -> int: ...

    @property
    def turn(self) -> int: ...


class Newest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a session keeps of that request.

    ``at`` is when it arrived, in seconds since 1970, and ``seal`` what tells its window from others, of
    ``lines`` lines. ``since`` is where the window begins, counted from the session's first entry, moved ones
    too; ``whole`` is whether its life does not begin before. ``answering`` is whether it shows what the assistant said. ``asked`` are the words to be answered.
    """

    at: float
    seal: bytes
    lines: int
    since: int
    answering: bool
    whole: bool
    asked: Turn | None = None


def seal(window: Sequence[Message]) -> bytes:
    """Eight bytes that are the same for the same speech, and hardly for other speech."""
    said = [
        (m.role, m.content, m.name, m.tool_calls, m.tool_call_id, m.turn_id, m.timestamp, m.metadata)
        for m in speech(window)
    ]
    return blake2b(repr((answers(window), said)).encode("utf-8", "replace"), digest_size=_BYTES).digest()


def turn_of(entries: Sequence[Words], position: int) -> Turn:
    """How the words at a position are called."""
    life, turn = entries[position].life, entries[position].turn
    return Turn(life, turn, -sum(asks(entry, life, turn) for entry in entries[position:]))


def asks(entry: Words, life: int, turn: int) -> bool:
    """Whether these are words of the user in that turn."""
    return entry.turn == turn and entry.life == life and entry.role == "user"
