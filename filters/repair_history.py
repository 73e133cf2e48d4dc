from functools import cached_property
from typing import ClassVar

from msgspec import UNSET
from msgspec.structs import replace
from pydantic import Field

from filters.base import Context, Example, Messages, RequestFilter
from filters.message import Message, is_text, newest_user, says_something
from filters.tool_groups import STUB, Unanswered, close_groups

_CALLS = [
    {"id": "call_1", "type": "function", "function": {"name": "flight", "arguments": "{}"}},
    {"id": "call_2", "type": "function", "function": {"name": "weather", "arguments": "{}"}},
]


class RepairHistory(RequestFilter):
    """Repair a replayed history so that strict models accept it.

    Voice platforms cut, lose, repeat and reorder messages, and a strict model refuses the whole request for
    it. The filter makes four repairs, each of which can be switched off. It moves tool results behind their
    call. It removes messages that say nothing, control words that a framework sends as the user, and the
    second copy of an answer. It keeps what the user said twice. A tool call at the very end is still waiting
    for its results and stays. The older ``function_call`` counts as a tool call. A ``name`` or calls that are
    ``null``, as SDKs write them, are always removed.

    Put this filter first, so that all other steps see the repaired history. It also removes an answer of
    which nothing was played, with its ``original``; set ``empty: false`` if ``restore_interrupted`` shall
    show it.
    """

    tools: bool = True
    """Whether tool results are moved behind their call, in its order, and results without a call removed."""

    unanswered: Unanswered = "stub"
    """A tool call without a result before the end: ``stub`` adds a result, ``drop`` removes the call."""

    stub: str = Field(default=STUB, min_length=1)
    """The text of an added result."""

    empty: bool = True
    """Whether messages without text, parts and tool calls are removed. The user's newest always stays."""

    control: tuple[str, ...] = ("<continue>",)
    """Messages of the user with exactly this text are removed; the newest stays if the user has no other."""

    repeated: bool = True
    """Whether the second of two equal consecutive answers is removed, in one turn or without turn ids.

    White space may differ.
    """

    examples: ClassVar[tuple[Example, ...]] = (
        Example(
            "A tool result that came late, and a call that was never answered",
            {},
            before=[
                {"role": "user", "content": "Is my flight on time, and is it raining?"},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": _CALLS,
                },
                {"role": "user", "content": "Are you there?"},
                {"role": "tool", "tool_call_id": "call_1", "content": "On time."},
            ],
            after=[
                {"role": "user", "content": "Is my flight on time, and is it raining?"},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": _CALLS,
                },
                {"role": "tool", "tool_call_id": "call_1", "content": "On time."},
                {
                    "role": "tool",
                    "tool_call_id": "call_2",
                    "content": "No result: the call was not completed.",
                },
                {"role": "user", "content": "Are you there?"},
            ],
        ),
        Example(
            "An answer that was never played, a control word, and an answer committed twice",
            {},
            before=[
                {"role": "user", "content": "Tell me a story."},
                {"role": "assistant", "content": ""},
                {"role": "user", "content": "<continue>"},
                {"role": "assistant", "content": "Once upon a time"},
                {"role": "assistant", "content": "Once upon a time"},
                {"role": "user", "content": "Yes"},
                {"role": "user", "content": "Yes"},
            ],
            after=[
                {"role": "user", "content": "Tell me a story."},
                {"role": "assistant", "content": "Once upon a time"},
                {"role": "user", "content": "Yes"},
                {"role": "user", "content": "Yes"},
            ],
        ),
        Example(
            "Calls without a result are dropped",
            {"unanswered": "drop"},
            before=[
                {"role": "user", "content": "Book it."},
                {"role": "assistant", "tool_calls": [{"id": "call_1", "type": "function"}]},
                {"role": "user", "content": "No, wait."},
            ],
            after=[
                {"role": "user", "content": "Book it."},
                {"role": "user", "content": "No, wait."},
            ],
        ),
    )

    def apply(self, messages: Messages, context: Context) -> Messages:
        """Returns the repaired messages; tool groups first, since they depend on the original positions."""
        messages = _without_nulls(messages)
        if self.tools and _has_calls(messages):
            whole = close_groups(messages, self.stub if self.unanswered == "stub" else None, waits=True)
            if len(whole) != len(messages) or any(a is not b for a, b in zip(whole, messages, strict=True)):
                messages = whole
        messages = self._without_empty(messages)
        if self.repeated:
            unrepeated: list[Message] = []
            for message in messages:
                follows = unrepeated and message.role == unrepeated[-1].role == "assistant"
                if not (follows and _is_repeat(unrepeated[-1], message)):
                    unrepeated.append(message)
            messages = messages if len(unrepeated) == len(messages) else unrepeated
        return messages

    @cached_property
    def _control_words(self) -> frozenset[str]:
        return frozenset(word.strip() for word in self.control)

    @cached_property
    def _no_words(self) -> frozenset[str]:
        """The texts of messages that may have to be removed; most conversations contain none of them."""
        return self._control_words | {""}

    def _without_empty(self, messages: Messages) -> Messages:
        """Returns the messages without control words and without those that say nothing."""
        for message in messages:
            if not isinstance(message.content, str) or message.content.strip() in self._no_words:
                break
        else:
            return messages
        gone = set[int]()
        for i, message in enumerate(messages):
            is_words = not isinstance(message.content, list) or all(map(is_text, message.content))
            if message.role == "user" and is_words and message.text.strip() in self._control_words:
                gone.add(i)
        empty = set[int]()
        if self.empty:
            speakers = ("user", "assistant")
            empty = {i for i, m in enumerate(messages) if m.role in speakers and not says_something(m)}
            gone |= empty
        if not gone:
            return messages
        newest = newest_user(messages)
        if newest in empty or all(i in gone for i, m in enumerate(messages) if m.role == "user"):
            gone.discard(-1 if newest is None else newest)
        return [m for i, m in enumerate(messages) if i not in gone]


def _without_nulls(messages: Messages) -> Messages:
    """Removes names and calls that are ``null``, since Groq and older OpenAI models refuse them."""
    repaired: list[Message] | None = None
    for i, message in enumerate(messages):
        others = message.others
        if (
            message.name is None
            or message.tool_calls is None
            or (others and others.get("function_call", UNSET) is None)
        ):
            repaired = repaired or list(messages)
            repaired[i] = replace(
                message,
                name=UNSET if message.name is None else message.name,
                tool_calls=UNSET if message.tool_calls is None else message.tool_calls,
                others={
                    name: value
                    for name, value in others.items()
                    if name != "function_call" or value is not None
                },
            )
    return repaired or messages


def _has_calls(messages: Messages) -> bool:
    """Whether there is a tool call or a result, or a ``function_call``."""
    for message in messages:
        if (
            isinstance(message.tool_calls, list)
            or message.role == "tool"
            or "function_call" in message.others
        ):
            return True
    return False


def _is_repeat(earlier: Message, later: Message) -> bool:
    """Whether the second of two answers repeats the first, in one turn or without turn ids."""
    if earlier.name != later.name:
        return False
    if earlier.content != later.content and _words(earlier) != _words(later):
        return False
    if earlier.tool_calls or later.tool_calls or not later.text.strip():
        return False
    numbered = isinstance(earlier.turn_id, int) and isinstance(later.turn_id, int)
    return earlier.turn_id == later.turn_id or not numbered


def _words(message: Message) -> object:
    """Returns the words of a text, without white space; other content unchanged."""
    return message.content.split() if isinstance(message.content, str) else message.content
