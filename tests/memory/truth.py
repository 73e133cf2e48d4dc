"""The true words of a call and what was heard of them, and how memory must store both."""

from dataclasses import dataclass
from typing import Any

from filters.letters import bare
from filters.message import Message


@dataclass(frozen=True)
class Line:
    """A line of the true talk: ``heard`` of its text; ``told`` once a window showed how much."""

    role: str
    text: str
    number: int | None = None
    time: int | None = None
    heard: str | None = None
    told: bool = False
    broken: bool = False
    hung_up: bool = False
    foreign: bool = False
    calls: tuple[str, ...] = ()
    call_id: str | None = None
    life: int = 0
    speaker: str | None = None

    @property
    def spoken(self) -> str:
        return self.text if self.heard is None else self.heard

    @property
    def cut(self) -> bool:
        return self.heard is not None and bare(self.heard) != bare(self.text)

    @property
    def interrupted(self) -> bool:
        """Whether the caller broke in, as a window shows it or as the client left."""
        return not self.foreign and (self.hung_up or (self.told and self.cut))

    @property
    def unheard(self) -> bool:
        return self.role == "assistant" and self.told and not self.spoken and not self.calls

    @property
    def in_memory(self) -> tuple[Any, ...]:
        """As memory must hold it; of words that were cut, the letters count."""
        if self.role == "assistant" and not self.calls:
            return (*self._words, self.interrupted)
        return self._words

    @property
    def _words(self) -> tuple[Any, ...]:
        if self.calls or self.role == "tool":
            return (self.life, self.role, self.calls or self.call_id)
        if self.role == "user":
            return (self.life, self.role, self.text, None, False, self.speaker)
        if not self.told:
            return (self.life, self.role, self.text, None, True)
        if self.foreign:
            return (self.life, self.role, self.spoken, None, False)
        if self.cut:
            return (self.life, self.role, bare(self.spoken), self.text, False)
        return (self.life, self.role, self.text, None, False)


@dataclass(frozen=True)
class Request:
    """One request: the window, the answer, and the truth before and after."""

    window: list[Message]
    answer: dict[str, Any] | None
    gold: list[tuple[Any, ...]]
    cut: list[bool]
    faithful: bool
    heard: list[tuple[str, str]] | None
    at: float

    def __repr__(self) -> str:
        """What matters of a request when a test fails."""
        window = [(m.turn_id or 0, m.role, m.text, m.tool_calls and "calls") for m in self.window]
        return "\n".join(map(str, ["", *window, self.answer, "gold:", *self.gold]))


def as_truth(session: Any) -> list[tuple[Any, ...]]:
    """A session as the truth is written down."""
    return [_held(entry) for entry in session.entries]


def _held(entry: Any) -> tuple[Any, ...]:
    if entry.tool_calls or entry.role == "tool":
        ids = tuple(call["id"] for call in entry.tool_calls or ())
        return (entry.call, entry.role, ids or entry.tool_call_id)
    text = bare(entry.text) if entry.original is not None else entry.text
    more = entry.user if entry.role == "user" else entry.interrupted
    return (entry.call, entry.role, text, entry.original, entry.pending, more)


def calls(ids: tuple[str, ...]) -> list[dict[str, Any]]:
    return [{"id": i, "type": "function", "function": {"name": "look", "arguments": "{}"}} for i in ids]
