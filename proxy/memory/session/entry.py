"""One message as it was heard, and as an engine would replay it."""

from typing import Any, Final

import msgspec
from msgspec import UNSET

from filters.message import Content, Message, epoch_seconds
from proxy.memory.session.segment import Reach
from proxy.memory.speech.functions import former
from proxy.memory.speech.wording import imprint

REASONING: Final = "reasoning_content"
"""The field of a message that brings a model's reasoning back to it; most models refuse it."""
COMMAND: Final = "command"
"""The source of what a program put in through the engine's interface."""
# Before 2001 no voice engine spoke: a smaller number counts from something else than 1970.
_CLOCKS_FROM: Final = 1e9
_DAY: Final = 86_400.0


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One message as it was heard.

    ``turn`` counts from 0 within a ``life`` and never goes back; ``engine_turn`` is the number that the
    engine gave it, where it numbers its turns. ``timestamp`` is as the engine wrote it. ``original`` is all
    that the model generated where the caller heard less. ``pending`` is an answer that no later request has
    confirmed or cut yet: it is held as generated; ``broken``, if its stream ended before the answer did.
    """

    role: str
    turn: int
    life: int = 0
    engine_turn: int | None = None
    content: Content = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    timestamp: int | float | None = None
    source: str | None = None
    user: str | None = None
    asker: str | None = None
    """Whom the request named that asked with these words, where they name nobody."""
    interrupted: bool = False
    interrupt_timestamp: int | float | None = None
    original: str | None = None
    pending: bool = False
    broken: bool = False
    reasoning: str | None = None
    """What the model thought before it answered, where that is kept."""
    replaced: str | None = None
    """The imprint of the words that somebody put these in the place of: an engine may replay those yet."""
    recorded: float = 0.0
    """When it was first recorded, in seconds since 1970."""

    @property
    def at(self) -> float:
        """When it was said, in seconds since 1970: as the engine says where that can be, else as recorded."""
        told = epoch_seconds(self.timestamp)
        can_be = told is not None and _CLOCKS_FROM <= told <= self.recorded + _DAY
        return told if told is not None and can_be else self.recorded

    @property
    def place(self) -> Reach:
        """Its turn."""
        return Reach(self.life, self.turn)

    @property
    def speaker(self) -> str | None:
        """Who said it, as far as its request or the message tells."""
        return self.asker or self.user

    @property
    def put_in(self) -> bool:
        """Whether a program spoke in the user's place: nobody said it."""
        return self.role == "user" and self.source == COMMAND

    @property
    def text(self) -> str:
        """What was said: the content, or its text parts joined by a line break."""
        return self.content if isinstance(self.content, str) else Message(role="", content=self.content).text

    def replaces(self, text: str) -> bool:
        """Whether these words were put in the place of a text."""
        return self.replaced is not None and self.replaced == imprint(text)

    @property
    def generated(self) -> str:
        """All that the model said, heard or not."""
        return self.text if self.original is None else self.original


def message_of(entry: Entry) -> Message:
    """An entry in Agora's own shape, as an engine would replay it."""
    # Spelt out, because a turn may bring back all that an engine has dropped: no loop over names is as fast.
    message = Message(
        role=entry.role,
        content=entry.content,
        name=UNSET if entry.name is None else entry.name,
        tool_calls=UNSET if entry.tool_calls is None else entry.tool_calls,
        tool_call_id=UNSET if entry.tool_call_id is None else entry.tool_call_id,
        turn_id=entry.turn if entry.engine_turn is None else entry.engine_turn,
        timestamp=UNSET if entry.timestamp is None else entry.timestamp,
        metadata=_metadata(entry) or UNSET,
        others={} if entry.reasoning is None else {REASONING: entry.reasoning},
    )
    return former(message) if entry.tool_calls or entry.tool_call_id else message


def _metadata(entry: Entry) -> dict[str, Any]:
    marks: dict[str, Any] = {} if entry.source is None else {"source": entry.source}
    if entry.user is not None:
        marks["user"] = entry.user
    if entry.interrupt_timestamp is not None:
        marks["interrupt_timestamp"] = entry.interrupt_timestamp
    if entry.original is not None:
        marks["original"] = entry.original
    if entry.interrupted:
        marks["interrupted"] = True
    return marks
