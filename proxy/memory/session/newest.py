"""The newest request that a session has taken in: an older one is known by it, and the same one again."""

from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from filters.message import Message
from proxy.memory.session.retry import UNTOLD, Attempt
from proxy.memory.speech.speech import Speech

_BYTES = 8
_KNOWN = 4
_KEYS = (b"silent", b"answering")


class AskedTurn(NamedTuple):
    """Which words of the user: their turn, whose number means nothing without its life.

    ``question`` tells which words of a turn that has several: -1 are the last of them, -2 those before; 0 are
    none, where the model speaks unasked behind what the turn has.
    """

    life: int
    turn: int
    question: int = -1

    @property
    def unasked(self) -> bool:
        """Whether these are no words at all."""
        return self.question == 0


class Newest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What a session keeps of the newest request that it has taken in.

    ``at`` is when it arrived, in seconds since 1970, and ``seal`` what tells its window from others, of
    ``lines`` lines. ``since`` is where the window begins, counted from the session's first entry, moved ones
    too; ``whole`` is whether its life does not begin before. ``answering`` is whether it tells what the
    assistant said, and ``wordless`` whether that is nothing but that it was not heard. ``asked`` are the
    words to be answered. ``overtaken`` are requests that arrived before it and were recorded after it: their
    seals, and what they asked. ``request`` stands for its name, where the client gave it one. ``ended`` is
    when its answer ended, 0 where that is not known, and ``finished`` whether that was its end.
    """

    at: float
    seal: bytes
    lines: int
    since: int
    answering: bool
    whole: bool
    wordless: bool = False
    asked: AskedTurn | None = None
    overtaken: tuple[tuple[bytes, AskedTurn | None], ...] = ()
    request: bytes = b""
    ended: float = 0.0
    finished: bool = False

    def knows(self, sealed: bytes) -> bool:
        """Whether the request with this seal has been taken in."""
        return sealed == self.seal or any(sealed == other for other, _ in self.overtaken)

    def asked_by(self, sealed: bytes) -> AskedTurn | None:
        """The words that the request with this seal asked to be answered."""
        return self.asked if sealed == self.seal else dict(self.overtaken).get(sealed)

    def overtaking(self, sealed: bytes, asked: AskedTurn | None) -> "Newest":
        """The same, once it has overtaken another request too; the last four are known again."""
        overtaken = (*self.overtaken, (sealed, asked))[-_KNOWN:]
        return msgspec.structs.replace(self, overtaken=overtaken)


def seal(speech: Speech, attempt: Attempt = UNTOLD) -> bytes:
    """Eight bytes that are the same for the same speech, and hardly for other speech.

    Where that is a line alone, a request's name counts as well.
    """
    return _sealed(_said(speech, attempt), answering=speech.answering)


def seals(speech: Speech, attempt: Attempt = UNTOLD) -> tuple[bytes, bytes]:
    """The seals of the same lines, where they tell what the assistant said and where they do not."""
    said = _said(speech, attempt)
    return _sealed(said, answering=True), _sealed(said, answering=False)


def _sealed(said: bytes, *, answering: bool) -> bytes:
    return blake2b(said, digest_size=_BYTES, key=_KEYS[answering]).digest()


def _said(speech: Speech, attempt: Attempt) -> bytes:
    said = speech.lines or speech.bidden
    lines = [msgspec.structs.replace(line, others={}) if line.others else line for line in said]
    return _written(lines) + (attempt.request if len(speech.lines) == 1 else b"")


def _written(lines: Sequence[Message]) -> bytes:
    try:
        return msgspec.msgpack.encode(lines)
    except (OverflowError, UnicodeEncodeError):
        # Numbers of more than 64 bits and halves of characters.
        return repr(lines).encode("utf-8", "replace")
