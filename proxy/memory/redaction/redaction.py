"""What was said, with marks in the place of what must not be stored."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from filters.message import Message
from filters.text.personal import Kind, Sensitive
from proxy.memory.session import REASONING, Entry, Segment, Session
from proxy.memory.speech import without_media

S = TypeVar("S", bound=Sequence[Any])
_STRING: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_NAMES: Final = frozenset({"id", "type", "index", "name"})
_MOST_CLEAN: Final = 4_000
_DEEPEST: Final = 64
_FORM: Final = 2
"""So deep is the form of a call; below, all is what a tool is given."""


if TYPE_CHECKING:
    from filters.redact import Redact


class Redaction:
    """Puts marks in the place of what ``marking`` finds, in all that memory holds; of nothing without one.

    What nothing is found in is given back as the very same object. Names, ids, kinds and times stay.
    """

    def __init__(self, marking: "Redact | None" = None) -> None:
        self._marking = marking
        self._clean: set[int] = set()

    def __bool__(self) -> bool:
        return self._marking is not None

    @property
    def marks(self) -> Mapping[str, str]:
        """What stands in the place of a find, by its kind."""
        return self._marking.marks if self._marking else {}

    @property
    def sensitive(self) -> Sensitive:
        """What finds it."""
        return self._marking.sensitive if self._marking else Sensitive(())

    @property
    def kinds(self) -> Sequence[Kind]:
        """What is known here by its form; the others are patterns of one's own."""
        return self._marking.kinds if self._marking else ()

    @cached_property
    def shaped(self) -> Sensitive:
        """What finds these alone."""
        return Sensitive(self.kinds)

    def text(self, text: str) -> str:
        """A text."""
        if self._marking is None:
            return text
        # A window is mostly what the one before was: what was clean is known by its hash, keyed as all are.
        if (known := hash(text)) in self._clean:
            return text
        shown = self._marking.text(text)
        if shown is text:
            if len(self._clean) >= _MOST_CLEAN:
                self._clean.clear()
            self._clean.add(known)
        return shown

    def value(self, value: Any, depth: int = 0) -> Any:
        """Whatever JSON can hold, names included; what is nested beyond reason is left out."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict | list) and depth > _DEEPEST:
            return None
        if isinstance(value, dict):
            told = {self.text(name): self.value(one, depth + 1) for name, one in value.items()}
            return value if told == value else told
        if isinstance(value, list):
            return _each(value, lambda one: self.value(one, depth + 1))
        if isinstance(value, int | float) and not isinstance(value, bool):
            written = str(value)
            return value if (shown := self.text(written)) == written else shown
        return value

    def tool_calls(self, calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Calls of tools: what they are given."""
        return _each(calls, self._call)

    def message(self, message: Message) -> Message:
        """A message as memory may see it, pictures and the like already marked as such."""
        given = message.content, message.tool_calls, message.metadata, message.others
        content, calls, told, others = given
        content = self._content(content) if content else content
        calls = self.tool_calls(calls) if calls else calls
        told = self._told(told) if told else told
        others = self._others(others) if others else others
        if content is given[0] and calls is given[1] and told is given[2] and others is given[3]:
            return message
        return msgspec.structs.replace(
            message, content=content, tool_calls=calls, metadata=told, others=others
        )

    def entry(self, entry: Entry) -> Entry:
        """What a session, or the archive, holds of a message."""
        given = entry.content, entry.tool_calls, entry.original, entry.reasoning
        content, calls, original, reasoning = given
        content = self._content(content) if content else content
        calls = self.tool_calls(calls) if calls else calls
        original = self.text(original) if original else original
        reasoning = self.text(reasoning) if reasoning else reasoning
        if content is given[0] and calls is given[1] and original is given[2] and reasoning is given[3]:
            return entry
        return msgspec.structs.replace(
            entry, content=content, tool_calls=calls, original=original, reasoning=reasoning
        )

    def entries(self, entries: Sequence[Entry]) -> tuple[Entry, ...]:
        """Several of them."""
        return _each(tuple(entries), self.entry) if self else tuple(entries)

    def session(self, session: Session) -> Session:
        """All of a session."""
        if self._marking is None:
            return session
        changed: dict[str, Any] = {
            "entries": self.entries(session.entries),
            "unheard": self.entries(session.unheard),
            "summaries": _each(session.summaries, self._segment),
            "state": self.value(session.state),
        }
        given = (session.entries, session.unheard, session.summaries, session.state)
        if all(new is old for new, old in zip(changed.values(), given, strict=True)):
            return session
        return msgspec.structs.replace(session, **changed)

    def arguments(self, written: str) -> str:
        """What a tool is given, as JSON: it stays that, and a number that is found becomes text."""
        if self.text(written) is written and "\\" not in written:
            return written
        pieces, done = [], 0
        for string in _STRING.finditer(written):
            pieces += [self._bare(written[done : string.start()]), self._string(string.group())]
            done = string.end()
        told = "".join([*pieces, self._bare(written[done:])])
        return written if told == written else told

    def _segment(self, segment: Segment) -> Segment:
        text, added = self.text(segment.text), self.text(segment.added)
        if text is segment.text and added is segment.added:
            return segment
        return msgspec.structs.replace(segment, text=text, added=added)

    def _content(self, content: Any) -> Any:
        if isinstance(content, str):
            return self.text(content)
        kept: Any = without_media(content)
        return _each(kept, self.value) if isinstance(content, list) else content

    def _told(self, metadata: dict[str, Any]) -> dict[str, Any]:
        original = metadata.get("original")
        shown = self.text(original) if isinstance(original, str) else original
        return metadata if shown is original else {**metadata, "original": shown}

    def _others(self, others: dict[str, Any]) -> dict[str, Any]:
        """Of what has fields of its own memory takes a function's call, and a model's thoughts."""
        kept = {name: others[name] for name in ("function_call", REASONING) if others.get(name)}
        told = {name: self._part_of_call(name, value) for name, value in kept.items()}
        return others if told == kept else {**others, **told}

    def _call(self, call: dict[str, Any]) -> dict[str, Any]:
        told = {name: self._part_of_call(name, value) for name, value in call.items()}
        return call if told == call else told

    def _part_of_call(self, name: str, value: Any, depth: int = 0) -> Any:
        if name in _NAMES and not isinstance(value, dict | list):
            return value
        if isinstance(value, dict) and depth < _FORM:
            return {each: self._part_of_call(each, one, depth + 1) for each, one in value.items()}
        return self.arguments(value) if name == "arguments" and isinstance(value, str) else self.value(value)

    def _string(self, written: str) -> str:
        """A string of JSON; what cannot be read as one is a text like any other."""
        try:
            value = json.loads(written, strict=False)
        except ValueError:
            return self.text(written)
        shown = self.text(value)
        return written if shown is value else json.dumps(shown)

    def _bare(self, written: str) -> str:
        """What stands between the strings of JSON."""
        found = self.sensitive.find(written)
        pieces, done = [], 0
        for begin, end, kind in found:
            pieces += [written[done:begin], json.dumps(self.marks[kind])]
            done = end
        return "".join([*pieces, written[done:]]) if found else written


NO_REDACTION: Final = Redaction()
"""What leaves everything as it is."""


def _each(values: S, change: Callable[[Any], Any]) -> S:
    """The values, each changed; the very same sequence where all stay."""
    changed = [change(value) for value in values]
    same = all(new is old for new, old in zip(changed, values, strict=True))
    return values if same else type(values)(changed)  # type: ignore[call-arg]
