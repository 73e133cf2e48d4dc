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
    """Make a replayed history one that strict models accept.

    Voice engines cut, lose, double and reorder what they replay, and a model that is strict refuses the
    whole request for it. Four things are put right, each of which can be switched off: tool results stand
    behind their call; messages that say nothing go; so do control words that a framework put into the
    user's mouth, and an answer that was committed twice. What the user said twice stays. A tool call at
    the very end still waits for its results and is left alone. A ``function_call``, which came before tools,
    counts as one of them. A ``name`` or calls that are ``null``, as an SDK writes out an answer, go always.

    Put it first: what the other steps see is then in order. An answer of which nothing was played goes as
    well, its ``original`` included; switch ``empty`` off to have ``restore_interrupted`` tell of it.
    """

    tools: bool = True
    """Whether tool results are moved behind their call, in its order, and those without a call dropped."""

    unanswered: Unanswered = "stub"
    """A tool call that has no result though the talk went on: ``stub`` gives it one, ``drop`` removes it."""

    stub: str = Field(default=STUB, min_length=1)
    """What a tool call without a result is answered with."""

    empty: bool = True
    """Whether messages with neither words, parts nor tool calls go. The newest of the user always stays."""

    control: tuple[str, ...] = ("<continue>",)
    """User messages that are control words, compared whole. The newest stays if no other message does."""

    repeated: bool = True
    """Whether the second of two equal answers in a row is removed, in one turn or without turn ids.
    White space may differ."""

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
            "Calls that nobody answered go",
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
            shown: list[Message] = []
            for message in messages:
                follows = shown and message.role == shown[-1].role == "assistant"
                if not (follows and _is_repeat(shown[-1], message)):
                    shown.append(message)
            messages = messages if len(shown) == len(messages) else shown
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
