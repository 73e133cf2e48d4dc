"""Lines of speech for comparison, and the similarity of two lines."""

from typing import Any

import msgspec

from filters.letters import bare
from filters.message import Message, turn_id_of
from filters.tool_groups import call_id
from proxy.memory.session import Entry
from proxy.memory.wording import continues, reordered, same_words, shares_words, text_hash

EQUAL, WORDS, CUT, ALIKE = 30, 25, 20, 12
"""Values of ``similarity``: identical, the same words, one begins with the other, or only alike."""

FunctionCall = tuple[str | None, str, str]
LineKey = tuple[str, str, tuple[object, ...]]


class Line:
    """The parts of a message or an entry that alignment compares.

    ``role`` is "call" for an assistant's message with tool calls. ``ids`` are the ids of its calls, and of
    the call whose result it is.
    """

    __slots__ = (
        "_letters",
        "calls",
        "functions",
        "generated",
        "ids",
        "pending",
        "replaced_hash",
        "role",
        "source",
        "text",
        "time",
        "turn_id",
    )

    def __init__(self, item: Message | Entry) -> None:
        calls = item.tool_calls or ()
        self.ids = (*map(call_id, calls), item.tool_call_id or "")
        self.functions = tuple(map(function_call, calls))
        self.calls: tuple[object, ...] = (*self.functions, item.tool_call_id or "")
        self._letters: dict[str, str] = {}
        self.role = "call" if calls and item.role == "assistant" else item.role
        self.text = item.text
        self.source = item.source
        self.time = item.timestamp if isinstance(item.timestamp, int | float) else None
        if isinstance(item, Entry):
            self.generated, self.pending = item.generated, item.pending
            self.replaced_hash, self.turn_id = item.replaced_hash, item.turn_id
        else:
            self.generated, self.pending = item.original or item.text, False
            self.replaced_hash, self.turn_id = None, turn_id_of(item)

    def letters(self, text: str) -> str:
        """The letters of one of the line's texts, without spaces and punctuation; computed once."""
        if text not in self._letters:
            self._letters[text] = bare(text)
        return self._letters[text]

    @property
    def key(self) -> LineKey:
        """Equal for identical lines; of a tool call, its functions and arguments count."""
        return (self.role, "" if self.role == "call" else self.text, self.calls)

    def replaces(self, text: str) -> bool:
        """Whether the line's words were edited, and were this text before."""
        return self.replaced_hash is not None and self.replaced_hash == text_hash(text)


def function_call(call: dict[str, Any]) -> FunctionCall:
    """Returns the id, the name and the arguments of a tool call."""
    function = call.get("function")
    fields = function if isinstance(function, dict) else {}
    return call_id(call), str(fields.get("name")), str(fields.get("arguments"))


def similarity(line: Line, recorded: Line) -> int:
    """Returns how surely a line of a window is a recorded one; 0 if it is not."""
    if line.role != recorded.role:
        return 0
    if recorded.role == "call":
        if line.calls == recorded.calls:
            return EQUAL
        if line.ids != recorded.ids or None in recorded.ids:
            return 0
        pairs = zip(line.functions, recorded.functions, strict=False)
        agree = all(a[:2] == b[:2] and _arguments(a[2]) == _arguments(b[2]) for a, b in pairs)
        return WORDS if agree else 0
    if line.calls != recorded.calls:
        return 0
    if line.text == recorded.text:
        return EQUAL
    if recorded.replaces(line.text) or recorded.role == "tool":
        return WORDS
    if _same(line, recorded, recorded.text):
        return WORDS
    if recorded.role == "user":
        return 0
    if _same(line, recorded, recorded.generated):
        return WORDS
    heard, generated = line.letters(line.text), recorded.letters(recorded.generated)
    if heard and generated and (generated.startswith(heard) or heard.startswith(generated)):
        return CUT
    if recorded.pending and shares_words(line.text, recorded.generated):
        return ALIKE
    same_length = len(heard) == len(recorded.letters(recorded.text))
    return ALIKE if same_length and reordered(line.text, recorded.text) else 0


def repeats(text: str, recorded: Line) -> bool:
    """Whether a text is a recorded answer, whole, cut short or with its words in another order."""
    generated = recorded.generated
    cut_or_whole = same_words(text, generated) or continues(generated, text)
    return cut_or_whole or reordered(text, generated) or recorded.replaces(text)


def _arguments(text: str) -> object:
    """Decodes arguments, which platforms may encode differently; returns the text itself if it is no JSON."""
    try:
        return msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError):
        return text


def _same(line: Line, recorded: Line, text: str) -> bool:
    letters = line.letters(line.text)
    return line.text == text or bool(letters and letters == recorded.letters(text))
