"""One line of the talk, replayed or held, as it is compared."""

from typing import Any, Final

import msgspec

from filters.letters import bare
from filters.message import Message
from filters.tool_groups import call_id
from proxy.memory.session import Entry
from proxy.memory.wording import continues, reordered, same_words, shares_words, text_hash

NEW: Final = -1
"""The place of a line that is not held."""
# How sure it is that two lines are one. Below KIN only the place can tell.
EQUAL, WORDS, CUT, ALIKE = 30, 25, 20, 12
Called = tuple[str | None, str, str]
Key = tuple[str, str, tuple[object, ...]]


class Line:
    """What tells one line from another: who speaks, the words, and the ids of calls."""

    __slots__ = (
        "_letters",
        "called",
        "calls",
        "generated",
        "ids",
        "pending",
        "replaced",
        "role",
        "source",
        "text",
        "time",
        "turn_id",
    )

    def __init__(self, said: Message | Entry) -> None:
        calls = said.tool_calls or ()
        self.ids = (*map(call_id, calls), said.tool_call_id or "")
        self.called = tuple(map(called, calls))
        self.calls: tuple[object, ...] = (*self.called, said.tool_call_id or "")
        self._letters: dict[str, str] = {}
        self.role = "call" if calls and said.role == "assistant" else said.role
        self.text = said.text
        self.generated = said.generated if isinstance(said, Entry) else said.original or said.text
        self.pending = isinstance(said, Entry) and said.pending
        self.replaced = said.replaced_hash if isinstance(said, Entry) else None
        self.turn_id = said.engine_turn if isinstance(said, Entry) else turn_id_of(said)
        self.source = said.source
        self.time = said.timestamp if isinstance(said.timestamp, int | float) else None

    def letters(self, text: str) -> str:
        """The letters of one of the line's own texts, worked out once."""
        if text not in self._letters:
            self._letters[text] = bare(text)
        return self._letters[text]

    @property
    def key(self) -> Key:
        """Equal for lines that are equal to the letter; a call is known by what it calls."""
        return (self.role, "" if self.role == "call" else self.text, self.calls)


def called(call: dict[str, Any]) -> Called:
    """What is called: id, name and arguments."""
    function = call.get("function")
    named = function if isinstance(function, dict) else {}
    return call_id(call), str(named.get("name")), str(named.get("arguments"))


def turn_id_of(message: Message) -> int | None:
    """The number that the engine gave the turn; ``None`` where it gave none."""
    number = message.turn_id
    return number if isinstance(number, int) else None


def similarity(replayed: Line, held: Line) -> int:
    """How sure it is that a replayed line is the one that is held; 0 where it cannot be."""
    if replayed.role != held.role:
        return 0
    if held.role == "call":
        return _of_calls(replayed, held)
    if replayed.calls != held.calls:
        return 0
    if replayed.text == held.text:
        return EQUAL
    if held.role == "assistant" and not is_replaced(replayed.text, held):
        return _of_answers(replayed, held)
    is_same = held.role != "user" or _same(replayed, held, held.text) or is_replaced(replayed.text, held)
    return WORDS if is_same else 0


def is_replaced(text: str, held: Line) -> bool:
    """Whether somebody put the held words in the place of a text."""
    return held.replaced is not None and held.replaced == text_hash(text)


def repeats(text: str, held: Line) -> bool:
    """Whether ``text`` is the held answer, whole, cut or jumbled."""
    generated = held.generated
    cut_or_whole = same_words(text, generated) or continues(generated, text)
    return cut_or_whole or reordered(text, generated) or is_replaced(text, held)


def _of_calls(replayed: Line, held: Line) -> int:
    if replayed.calls == held.calls:
        return EQUAL
    pairs = zip(replayed.called, held.called, strict=False)
    agree = replayed.ids == held.ids and None not in held.ids and all(_same_call(*pair) for pair in pairs)
    return WORDS if agree else 0


def _same_call(one: Called, other: Called) -> bool:
    return one[:2] == other[:2] and _arguments(one[2]) == _arguments(other[2])


def _arguments(text: str) -> object:
    """Arguments as values, since engines may write them anew; what is no JSON as it stands."""
    try:
        return msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError):
        return text


def _of_answers(replayed: Line, held: Line) -> int:
    if _same(replayed, held, held.generated) or _same(replayed, held, held.text):
        return WORDS
    heard, generated = replayed.letters(replayed.text), held.letters(held.generated)
    if heard and generated and (generated.startswith(heard) or heard.startswith(generated)):
        return CUT
    likely = held.pending and shares_words(replayed.text, held.generated)
    return (
        ALIKE
        if likely or (len(heard) == len(held.letters(held.text)) and reordered(replayed.text, held.text))
        else 0
    )


def _same(replayed: Line, held: Line, text: str) -> bool:
    letters = replayed.letters(replayed.text)
    return replayed.text == text or bool(letters and letters == held.letters(text))
