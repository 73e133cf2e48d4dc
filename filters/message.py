"""The messages that filters work on, with their roles, and messages that a summary covers."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, Protocol

import msgspec
from msgspec import UNSET, UnsetType

# No clock or voice platform has larger numbers, and stores have 64 bits.
LARGEST = 2**62
REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
"""Replaces what is not a character, such as half an emoji."""
Content = str | list[dict[str, Any]] | None
# A smaller timestamp is in seconds: in milliseconds it would be before April 1973.
_MILLISECONDS_FROM = 1e11
# Chat Completions has these in separate fields.
_SAID_ELSEWHERE = ("refusal", "audio", "function_call")
_WORDS = frozenset({"text", "refusal"})
_WEIGHT_OF_A_VALUE = 8
Role = Literal["system", "developer", "user", "assistant", "tool", "function"]
SYSTEM: Final = frozenset({"system", "developer"})
"""The roles of instructions."""
MARKS: Final = frozenset({"source", "user", "interrupted", "interrupt_timestamp", "original"})
"""The fields that voice platforms add to a message, in its ``metadata`` or beside its role."""
TurnId = Annotated[int, msgspec.Meta(ge=-LARGEST, le=LARGEST)]


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A Chat Completions message with the fields that voice platforms add to it.

    A field that the client did not send is ``UNSET``, which is not the same as ``null``. Unknown fields are
    in ``others``, so that they can be sent on if the upstream allows them. The marks of a voice platform are
    read from ``metadata``, else from ``others``.
    """

    role: str
    content: Content | UnsetType = UNSET
    name: str | UnsetType | None = UNSET
    tool_calls: list[dict[str, Any]] | UnsetType | None = UNSET
    tool_call_id: str | UnsetType | None = UNSET
    turn_id: TurnId | UnsetType | None = UNSET
    timestamp: TurnId | float | UnsetType | None = UNSET
    metadata: dict[str, Any] | UnsetType | None = UNSET
    # A client that sends a field of this name only adds unknown fields, which must be allowed anyway.
    others: dict[str, Any] = msgspec.field(default_factory=dict, name="*")

    @property
    def text(self) -> str:
        """The content, or its text parts joined by a line break."""
        if isinstance(self.content, str):
            return self.content
        if isinstance(self.content, list):
            return "\n".join(part["text"] for part in self.content if is_text(part))
        return ""

    @property
    def seconds(self) -> float | None:
        """The timestamp in seconds since 1970, from either unit; ``None`` without one."""
        return epoch_seconds(self.timestamp)

    @property
    def source(self) -> str | None:
        """The origin: ``asr``, ``llm``, ``greeting``, ``silence``, … (Agora's ``metadata.source``)."""
        metadata = self.metadata
        source = metadata.get("source") if isinstance(metadata, dict) else None
        if source is None and self.others:
            source = self.others.get("source")
        return source if isinstance(source, str) else None

    @property
    def user(self) -> str | None:
        """The speaker (Agora's ``metadata.user``)."""
        metadata = self.metadata
        user = metadata.get("user") if isinstance(metadata, dict) else None
        if user is None and self.others:
            user = self.others.get("user")
        # Two names could be the same after each lost a character.
        return user if isinstance(user, str) and REPLACEMENT not in user else None

    @property
    def interrupted(self) -> bool:
        """Whether the caller cut this answer short."""
        metadata = self.metadata
        interrupted = metadata.get("interrupted") if isinstance(metadata, dict) else None
        if interrupted is None and self.others:
            interrupted = self.others.get("interrupted")
        return interrupted is True

    @property
    def interrupt_timestamp(self) -> int | float | None:
        """The time at which the caller cut this answer short, in the voice platform's unit."""
        at = self._mark("interrupt_timestamp")
        is_time = isinstance(at, int | float) and not isinstance(at, bool) and abs(at) <= LARGEST
        return at if is_time else None

    @property
    def original(self) -> str | None:
        """The whole generated answer, of which the caller heard only a part."""
        original = self._mark("original")
        return original if isinstance(original, str) else None

    def saying(self, text: str) -> "Message":
        """Returns the message with other words; parts that are not text keep their order."""
        parts = self.content
        if not isinstance(parts, list):
            return msgspec.structs.replace(self, content=text)
        first = next((i for i, part in enumerate(parts) if is_text(part)), None)
        if first is None:
            return msgspec.structs.replace(self, content=[{"type": "text", "text": text}, *parts])
        rest = [part for part in parts[first + 1 :] if not is_text(part)]
        content = [*parts[:first], {**parts[first], "text": text}, *rest]
        return msgspec.structs.replace(self, content=content)

    def prefixed(self, prefix: str) -> "Message":
        """Returns the message with ``prefix`` before its words."""
        parts = self.content
        if isinstance(parts, str):
            return msgspec.structs.replace(self, content=prefix + parts)
        if not isinstance(parts, list):
            return msgspec.structs.replace(self, content=prefix)
        first = next((i for i, part in enumerate(parts) if is_text(part)), None)
        if first is None:
            return msgspec.structs.replace(self, content=[{"type": "text", "text": prefix}, *parts])
        words = {**parts[first], "text": prefix + parts[first]["text"]}
        return msgspec.structs.replace(self, content=[*parts[:first], words, *parts[first + 1 :]])

    def _mark(self, name: str) -> Any:
        mark = self.metadata.get(name) if isinstance(self.metadata, dict) else None
        return self.others.get(name) if mark is None else mark


def is_text(part: dict[str, Any]) -> bool:
    """Whether a content part is text."""
    return part.get("type") == "text" and isinstance(part.get("text"), str)


def parts_of(content: object) -> list[Any]:
    """Returns content as a list of parts: one for a text, none for an empty text."""
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if isinstance(content, str) and content else []


def says_something(message: Message) -> bool:
    """Whether a message has words, other parts, tool calls, a refusal, audio or a function call.

    An assistant's message with a name counts too.
    """
    content = message.content
    if isinstance(content, str) and content and not content.isspace():
        return True
    if isinstance(content, list) and any(not is_text(part) or part["text"].strip() for part in content):
        return True
    if message.role == "assistant" and message.name:
        return True
    return bool(message.tool_calls or any(message.others.get(field) for field in _SAID_ELSEWHERE))


def epoch_seconds(timestamp: object) -> float | None:
    """Returns a timestamp in seconds or milliseconds as seconds; ``None`` for anything else."""
    if not isinstance(timestamp, int | float) or isinstance(timestamp, bool):
        return None
    try:
        value = float(timestamp)
    except OverflowError:
        return None
    return value / 1000 if abs(value) >= _MILLISECONDS_FROM else value


def turn_id_of(message: Message) -> int | None:
    """Returns the platform's id of a message's turn; ``None`` if it has none."""
    turn_id = message.turn_id
    return turn_id if isinstance(turn_id, int) else None


class HasRole(Protocol):
    """A message, or a stored line of one."""

    @property
    def role(self) -> str:
        """The speaker's role."""
        ...


def newest_user(lines: Sequence[HasRole]) -> int | None:
    """Returns the position of the user's newest message; ``None`` if there is none."""
    for i in range(len(lines) - 1, -1, -1):
        if lines[i].role == "user":
            return i
    return None


def weight(message: Message) -> int:
    """Returns the size of a message for filters: the length of texts and names, and 8 for each other value.

    A picture, sound or file counts as one value, since no filter reads it.
    """
    total, values = 0, list[Any]()
    if isinstance(message.content, str):
        total += len(message.content)
    elif isinstance(message.content, list):
        values += [part for part in message.content if not _WORDS.isdisjoint(part)]
        total += _WEIGHT_OF_A_VALUE * (len(message.content) - len(values))
    fields = (message.name, message.tool_call_id, message.tool_calls, message.metadata, message.others)
    values += [field for field in fields if field]
    while values:
        value = values.pop()
        if isinstance(value, str):
            total += len(value)
        elif isinstance(value, dict):
            values += value
            values += value.values()
        elif isinstance(value, list):
            values += value
        else:
            total += _WEIGHT_OF_A_VALUE
    return total


def newest_words(messages: Sequence[Message]) -> str:
    """Returns the newest words of the user; empty if there are none."""
    return next((message.text for message in reversed(messages) if message.role == "user"), "")


class Covered(Message, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message of a turn that a summary covers: it gives way to the summary.

    No client can send one, and it looks like any other message on the wire: only its type differs.
    """


def as_covered(message: Message) -> Covered:
    """Returns the message marked as covered."""
    return Covered(**msgspec.structs.asdict(message))
