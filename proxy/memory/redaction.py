"""Redaction: replaces what must not be stored by marks, before it reaches a store."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from filters.message import Message
from filters.text.personal import Sensitive
from proxy.memory.session import REASONING, Entry, Segment, Session
from proxy.memory.speech import without_media

S = TypeVar("S", bound=Sequence[Any])
T = TypeVar("T", bound=msgspec.Struct)
_STRING: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_NAMES: Final = frozenset({"id", "type", "index", "name"})
_DEEPEST: Final = 64
# The depth of a tool call's format; deeper values are arguments.
_FORM: Final = 2


if TYPE_CHECKING:
    from filters.redact import Redact


class Redaction:
    """Replaces the matches of ``marking`` by marks in everything that memory stores; without it, nothing.

    Returns the same object if nothing matches. Names, ids, kinds and times stay.
    """

    def __init__(self, marking: "Redact | None" = None) -> None:
        self._marking = marking
        self.enabled: Final = marking is not None
        self.text: Final[Callable[[str], str]] = marking.text if marking else str
        """Returns a redacted text."""

    @property
    def marks(self) -> Mapping[str, str]:
        """The mark for each kind of match."""
        return self._marking.marks if self._marking else {}

    @property
    def sensitive(self) -> Sensitive:
        """The patterns of all kinds."""
        return self._marking.sensitive if self._marking else Sensitive(())

    @cached_property
    def shaped(self) -> Sensitive:
        """The patterns of the built-in kinds, which know the form of what they find."""
        return Sensitive(self._marking.kinds if self._marking else ())

    def value(self, value: Any, depth: int = 0) -> Any:
        """Redacts any JSON value, including names; replaces values that are nested too deep by ``None``."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict | list) and depth > _DEEPEST:
            return None
        if isinstance(value, dict):
            redacted = {self.text(name): self.value(each, depth + 1) for name, each in value.items()}
            return value if redacted == value else redacted
        if isinstance(value, list):
            return _each(value, lambda each: self.value(each, depth + 1))
        if isinstance(value, int | float) and not isinstance(value, bool):
            digits = str(value)
            return value if (text := self.text(digits)) == digits else text
        return value

    def tool_calls(self, calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Redacts the arguments of tool calls."""
        return _each(calls, self._call)

    def message(self, message: Message) -> Message:
        """Redacts a message's content, tool calls, original and reasoning."""
        calls, metadata = message.tool_calls, message.metadata
        if metadata and isinstance(original := metadata.get("original"), str):
            redacted = self.text(original)
            metadata = metadata if redacted is original else {**metadata, "original": redacted}
        return _replaced(
            message,
            content=self._content(message.content),
            tool_calls=self.tool_calls(calls) if calls else calls,
            metadata=metadata,
            others=self._others(message.others),
        )

    def entry(self, entry: Entry) -> Entry:
        """Redacts an entry of a session or of the archive."""
        calls, original, reasoning = entry.tool_calls, entry.original, entry.reasoning
        return _replaced(
            entry,
            content=self._content(entry.content),
            tool_calls=self.tool_calls(calls) if calls else calls,
            original=self.text(original) if original else original,
            reasoning=self.text(reasoning) if reasoning else reasoning,
        )

    def entries(self, entries: Sequence[Entry]) -> tuple[Entry, ...]:
        """Redacts several entries."""
        return _each(tuple(entries), self.entry) if self.enabled else tuple(entries)

    def session(self, session: Session) -> Session:
        """The session with marks in the place of what must not be stored."""
        if self._marking is None:
            return session
        return _replaced(
            session,
            entries=self.entries(session.entries),
            unheard=self.entries(session.unheard),
            summaries=_each(session.summaries, self._segment),
            state=self.value(session.state),
        )

    def arguments(self, arguments: str) -> str:
        """Redacts a tool's arguments, which stay JSON: a number with a match becomes a string."""
        if self.text(arguments) is arguments and "\\" not in arguments:
            return arguments
        pieces, done = [], 0
        for string in _STRING.finditer(arguments):
            pieces += [self._between(arguments[done : string.start()]), self._string(string.group())]
            done = string.end()
        return "".join([*pieces, self._between(arguments[done:])])

    def _string(self, literal: str) -> str:
        """Redacts a JSON string literal, or an incomplete one."""
        try:
            value = json.loads(literal, strict=False)
        except ValueError:
            return self.text(literal)
        redacted = self.text(value)
        return literal if redacted is value else json.dumps(redacted)

    def _between(self, text: str) -> str:
        """Redacts the JSON between strings."""
        return self.sensitive.marked(text, {kind: json.dumps(mark) for kind, mark in self.marks.items()})

    def _segment(self, segment: Segment) -> Segment:
        return _replaced(segment, text=self.text(segment.text), added=self.text(segment.added))

    def _content(self, content: Any) -> Any:
        if isinstance(content, str):
            return self.text(content)
        parts: Any = without_media(content)
        return _each(parts, self.value) if isinstance(content, list) else content

    def _others(self, others: dict[str, Any]) -> dict[str, Any]:
        """Redacts those other fields of a message that memory reads, such as a function call."""
        if not others:
            return others
        fields = {name: others[name] for name in ("function_call", "original", REASONING) if others.get(name)}
        redacted = {name: self._part_of_call(name, value) for name, value in fields.items()}
        return others if redacted == fields else {**others, **redacted}

    def _call(self, call: dict[str, Any]) -> dict[str, Any]:
        redacted = {name: self._part_of_call(name, value) for name, value in call.items()}
        return call if redacted == call else redacted

    def _part_of_call(self, name: str, value: Any, depth: int = 0) -> Any:
        if name in _NAMES and not isinstance(value, dict | list):
            return value
        if isinstance(value, dict) and depth < _FORM:
            return {each: self._part_of_call(each, one, depth + 1) for each, one in value.items()}
        return self.arguments(value) if name == "arguments" and isinstance(value, str) else self.value(value)


NO_REDACTION: Final = Redaction()


def _each(values: S, change: Callable[[Any], Any]) -> S:
    """Returns changed values; the same sequence if no object changes."""
    changed = [change(value) for value in values]
    same = all(new is old for new, old in zip(changed, values, strict=True))
    return values if same else type(values)(changed)  # type: ignore[call-arg]


def _replaced(value: T, **fields: Any) -> T:
    """Returns the struct with these fields; the same object if no field changes."""
    for name, field in fields.items():
        if getattr(value, name) is not field:
            return msgspec.structs.replace(value, **fields)
    return value
