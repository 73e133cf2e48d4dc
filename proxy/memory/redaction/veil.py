"""A client's window as memory may see it, and the way back to the client's own words."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final, NamedTuple

import msgspec

from filters.covered import Covered, covered
from filters.message import Message
from proxy.memory.redaction.halves import Halves
from proxy.memory.redaction.redaction import NOTHING, Redaction
from proxy.memory.replay.replay import Replay
from proxy.memory.session.session import Session


class Veiled(NamedTuple):
    """A window with marks; ``own`` are the client's messages that it has otherwise.

    They are found by the ``others`` of a message, which what memory makes of it shares with it.
    """

    window: Sequence[Message]
    own: Mapping[int, Message] = {}

    def given(self, line: Message) -> Message:
        """A line of the window, be it in the form in which it is held, as the client gave it."""
        own = self.own.get(id(line.others))
        return line if own is None else own

    def at(self, replay: Replay) -> dict[int, Message]:
        """What the client gave, by where it is held, of what memory holds as the window has it."""
        if not self.own:
            return {}
        lines = (
            (line, place) for line, place in zip(replay.spoken, replay.places, strict=True) if place >= 0
        )
        alike = ((line, place) for line, place in lines if replay.held[place].content == line.content)
        return {place: own for line, place in alike if (own := self.own.get(id(line.others))) is not None}

    def unveiled(self, kept: Sequence[Message], shown: Sequence[Message]) -> Sequence[Message]:
        """What memory ``shown`` makes of the lines that were ``kept``, in the client's words."""
        if not self.own:
            return shown
        return [self._unveiled(*pair) for pair in zip(kept, shown, strict=True)]

    def _unveiled(self, line: Message, shown: Message) -> Message:
        own = self.own.get(id(line.others))
        if own is None:
            return shown
        if shown.interrupted and not line.interrupted:
            own = _cut(own, shown)
        return covered(own) if isinstance(shown, Covered) else own


class Veil:
    """Lays marks over what a client shows."""

    def __init__(self, redaction: Redaction = NOTHING) -> None:
        self.redaction = redaction

    @cached_property
    def _halves(self) -> Halves:
        return Halves(self.redaction)

    def over(self, window: Sequence[Message]) -> Sequence[Message]:
        """A window as memory may see it, whatever is held; the very same where nothing is found."""
        lines = [self.redaction.message(message) for message in window] if self.redaction else window
        return window if all(new is old for new, old in zip(lines, window, strict=True)) else lines

    def beside(self, session: Session, window: Sequence[Message]) -> tuple[Session, Veiled]:
        """What is held and a window, so that one can be laid beside the other."""
        if not self.redaction:
            return session, Veiled(window)
        session, lines = self.redaction.session(session), self.over(window)
        held = self._halves.held(session, window, lines) if lines is not window else session
        shown = self._halves.shown(held, window, lines)
        if shown is window:
            return held, Veiled(window)
        changed = {i for i, line in enumerate(shown) if line is not window[i]}
        # Its own others each: what memory makes of it is known again by them.
        veiled = [_alone(line) if i in changed else line for i, line in enumerate(shown)]
        return held, Veiled(veiled, {id(veiled[i].others): window[i] for i in changed})

    def broken(self, text: str) -> str:
        """An answer whose stream broke off, less half of what must not be stored."""
        return self._halves.broken(text) if self.redaction else text


_DOTS: Final = ("...", "…")
_DOTTED: Final = ".… "
BARE: Final = Veil()
"""What hides nothing."""


def _alone(line: Message) -> Message:
    return msgspec.structs.replace(line, others={**line.others})


def _cut(own: Message, shown: Message) -> Message:
    """The client's message, marked as memory marks it: an answer that was not heard to its end."""
    words, heard, original = own.content, shown.content, shown.original
    if isinstance(words, str) and isinstance(heard, str):
        words = words if heard.endswith(_DOTS) else words.rstrip(_DOTTED)
        if original is not None and original.startswith(heard):
            original = words + original[len(heard) :]
    told = own.metadata if isinstance(own.metadata, dict) else {}
    marks = {**told, "interrupted": True, "original": original}
    return msgspec.structs.replace(own, content=words, metadata=marks)
