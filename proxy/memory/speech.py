"""The speech of a window, in the form in which a session records it; nothing else is recorded."""

import re
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final

import msgspec
from msgspec import UNSET

from filters.message import SYSTEM, Message, weight
from filters.tool_groups import (
    FUNCTION,
    FUNCTION_CALL,
    RESULTS,
    answered_call,
    function_of,
    is_call,
    tool_call_of,
)

PROMPT_SOURCES: Final = frozenset({"silence", "llm_failure"})
"""The sources of messages that a voice platform says by itself."""

MAX_SPEECH: Final = 250_000
"""The maximum of characters of speech in a window, and in an answer, to be recorded."""
_ROLES: Final = frozenset({"user", "assistant", "tool", "function"})
_CONTROL: Final = frozenset({"<continue>"})
_FIRST_OF_SIGNS: Final = "<{"
# Hume appends the expression of the voice to the user's words: {slightly doubtful, very slightly calm}.
_EXPRESSION: Final = r"(?:very |extremely |quite |moderately |somewhat |slightly |fairly |a bit )+[\w-]+"
_TAIL: Final = re.compile(rf"\{{{_EXPRESSION}(?:, {_EXPRESSION})*\}}")

_role: Final = attrgetter("role")
_LONGEST: Final = 500
_TEXT_PARTS: Final = frozenset({"text", "refusal"})
_MEDIA_NAMES: Final = {
    "image_url": "image",
    "input_image": "image",
    "input_audio": "audio",
    "input_file": "file",
    "video_url": "video",
}


class Speech(msgspec.Struct, frozen=True, gc=False):
    """The lines of a window that were spoken, typed, or are tool calls and results, in order.

    ``positions`` are those of the lines in the window. ``shows_answers`` is whether the window shows answers:
    then an answer that it leaves out was not heard. ``instructions`` are those of a window without speech, on
    which alone a model speaks. ``partial`` is whether deleted lines were removed. ``prompts`` are messages
    that the voice platform said by itself, which are no speech.
    """

    lines: Sequence[Message]
    shows_answers: bool
    positions: Sequence[int]
    instructions: Sequence[Message] = ()
    partial: bool = False
    prompts: Sequence[Message] = ()

    @property
    def wordless(self) -> bool:
        """Whether the window shows answers, but none with words: they were not heard."""
        return self.shows_answers and "assistant" not in map(_role, self.lines)


def speech_of(window: Sequence[Message]) -> Speech:
    """Returns the speech of a window.

    Platforms that number their turns show answers, even if these have no words. Some of the others never do.
    """
    lines, positions, prompts = [], [], []
    shows_answers = False
    for i, message in enumerate(window):
        role, content = message.role, message.content
        shows_answers = shows_answers or isinstance(message.turn_id, int)
        if role not in _ROLES:
            continue
        is_prompt = False
        if role == "assistant":
            is_prompt = bool(message.metadata or message.others) and message.source in PROMPT_SOURCES
            shows_answers = shows_answers or not is_prompt
            if is_prompt:
                prompts.append(message)
        words = content.strip() if isinstance(content, str) and not message.others else ""
        is_plain = words and words[0] not in _FIRST_OF_SIGNS
        if is_plain and ((role == "user" and "}" not in words) or (role == "assistant" and not is_prompt)):
            lines.append(message)  # the fast path for most messages
            positions.append(i)
        elif is_speech(message):
            lines.append(_as_recorded(message))
            positions.append(i)
    instructions = () if lines else [message for message in window if message.role in SYSTEM]
    return Speech(lines, shows_answers, positions, instructions, prompts=prompts)


def speech_weight(window: Sequence[Message]) -> int:
    """Returns the size of a window's speech in characters."""
    return sum(weight(message) for message in window if message.role in _ROLES)


def is_speech(message: Message) -> bool:
    """Whether a message is speech, rather than an instruction, a platform's prompt, or a control word."""
    role = message.role
    if role not in _ROLES:
        return False
    if role in RESULTS or message.tool_calls or (message.others and is_call(message)):
        return True
    if role == "assistant" and (message.metadata or message.others) and message.source in PROMPT_SOURCES:
        return False
    content = message.content
    if not isinstance(content, str):
        parts = content or ()
        return bool(message.text.strip()) or any(part.get("type") != "text" for part in parts)
    words = content.strip()
    if not words or words[0] not in _FIRST_OF_SIGNS:
        return bool(words)
    return words not in _CONTROL and not (role == "user" and _TAIL.fullmatch(words))


def _as_recorded(message: Message) -> Message:
    """Returns a message with functions as tools, and without an expression or media."""
    if message.role != "user":
        return as_tool_call(message) if message.others or message.role == "function" else message
    content = message.content
    if isinstance(content, str) and "}" not in content:
        return message
    text = message.text
    start = text.rfind("{")
    words = text[:start].rstrip() if start > 0 else ""
    if words and _TAIL.fullmatch(text[start:].rstrip()):
        message = message.saying(words)
    return message_without_media(message)


# --- functions ----------------------------------------------------------------------------------------------
# OpenAI's first format of tools is recorded in its second one, and shown in the first. There is one call at a
# time, identified by the function's name, of which the tool call's id is made.


def as_tool_call(message: Message) -> Message:
    """Converts a ``function_call`` into a tool call, or a function's result into a tool's."""
    if message.role == "function":
        return msgspec.structs.replace(message, role="tool", tool_call_id=answered_call(message) or FUNCTION)
    function = function_of(message)
    if function is None or message.tool_calls:
        return message
    return msgspec.structs.replace(message, tool_calls=[tool_call_of(function)])


def as_function_call(message: Message) -> Message:
    """Reverses ``as_tool_call``."""
    if message.role == "tool":
        call_id = message.tool_call_id
        if not isinstance(call_id, str) or not call_id.startswith(FUNCTION):
            return message
        return msgspec.structs.replace(message, role="function", tool_call_id=UNSET)
    calls = message.tool_calls or ()
    function = next((call["function"] for call in calls if call.get("type") == FUNCTION_CALL), None)
    if function is None:
        return message
    others = {**message.others, FUNCTION_CALL: function}
    return msgspec.structs.replace(message, tool_calls=UNSET, others=others)


# --- media --------------------------------------------------------------------------------------------------


def message_without_media(message: Message) -> Message:
    """Returns a message as it is recorded, so that its repetition aligns with it."""
    content = without_media(message.content)
    return message if content is message.content else msgspec.structs.replace(message, content=content)


def without_media(content: Any) -> Any:
    """Replaces large parts of a content by marks such as ``[image]``; short links stay.

    Each turn reads the session, and restored messages would be sent to the model again and again.
    """
    if not isinstance(content, list) or not any(map(_is_heavy, content)):
        return content
    light = []
    for part in content:
        kind = str(part.get("type"))[:_LONGEST]
        mark = {"type": "text", "text": f"[{_MEDIA_NAMES.get(kind, kind)}]"}
        light.append(mark if _is_heavy(part) else part)
    return light


def _is_heavy(part: dict[str, Any]) -> bool:
    return _TEXT_PARTS.isdisjoint(part) and any(map(_is_data, part.values()))


def _is_data(value: object) -> bool:
    """Whether a value is or contains a data URL or a long string."""
    if isinstance(value, str):
        return len(value) > _LONGEST or value.startswith("data:")
    if isinstance(value, dict):
        return any(map(_is_data, value.values()))
    return isinstance(value, list) and any(map(_is_data, value))
