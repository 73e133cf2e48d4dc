"""What of a message is speech, and when two texts are the same words; nothing here knows a session.

``speech`` first: what of a window is remembered at all. ``functions`` and ``media`` are what it lays aside
or makes plain on the way. ``wording`` compares texts as tolerantly as engines respell them.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET

from filters.message import SYSTEM, Content, Message
from filters.tool_groups import (
    FUNCTION,
    FUNCTION_CALL,
    RESULTS,
    answered_call,
    function_of,
    is_call,
    tool_call_of,
)

_ROLES = frozenset({"user", "assistant", "tool", "function"})
PROMPT_SOURCES = frozenset({"silence", "llm_failure"})
_CONTROL = frozenset({"<continue>"})
_SIGNS = "<{"
# Hume ends the user's words with what the voice sounded like: {slightly doubtful, very slightly calm}.
_EXPRESSION = r"(?:very |extremely |quite |moderately |somewhat |slightly |fairly |a bit )+[\w-]+"
_LONGEST: Final = 500
_TEXT_PARTS: Final = frozenset({"text", "refusal"})
_NAMES: Final = {
    "image_url": "image",
    "input_image": "image",
    "input_audio": "audio",
    "input_file": "file",
    "video_url": "video",
}


_TAIL = re.compile(rf"\{{{_EXPRESSION}(?:, {_EXPRESSION})*\}}")


class Speech(msgspec.Struct, frozen=True, gc=False):
    """What was spoken, typed, called or returned by a tool, in a window's order.

    ``answering`` is whether it tells what the assistant said: an answer that it leaves out was not heard.
    ``bidden`` are the instructions of a window without any speech: by them alone a model speaks. ``left`` is
    whether it is what is left of a window of which some was forgotten.
    """

    lines: Sequence[Message]
    shows_answers: bool
    instructions: Sequence[Message] = ()
    partial: bool = False

    @property
    def wordless(self) -> bool:
        """Whether it tells of the assistant that it was not heard, and no more."""
        return self.shows_answers and all(line.role != "assistant" for line in self.lines)


def speech_of(window: Sequence[Message]) -> Speech:
    """The speech of a window."""
    lines = speech_lines(window)
    bidden = () if lines else [message for message in window if message.role in SYSTEM]
    return Speech(lines, shows_answers(window), bidden)


def speech_lines(window: Sequence[Message]) -> list[Message]:
    """What was spoken, typed, called or returned by a tool, without expression tails and pictures.

    Functions, which came before tools, are called as these are.
    """
    return [_as_spoken(message) for message in window if is_speech(message)]


def shows_answers(window: Sequence[Message]) -> bool:
    """Whether the window tells what the assistant said, if without words.

    Engines that number their turns do. Of others, some never show an answer.
    """
    shown = any(message.role == "assistant" and message.source not in PROMPT_SOURCES for message in window)
    return shown or any(isinstance(message.turn_id, int) for message in window)


def is_speech(message: Message) -> bool:
    """Whether this is part of the talk: not an instruction, a prompt of the engine's, a sign or nothing."""
    role = message.role
    if role not in _ROLES:
        return False
    if role in RESULTS or message.tool_calls or (message.others and is_call(message)):
        return True
    if role == "assistant" and message.metadata and message.source in PROMPT_SOURCES:
        return False
    content = message.content
    if isinstance(content, str):
        words = content.strip()
        return bool(words) and (words[0] not in _SIGNS or _is_said(words, role))
    return bool(content) and (bool(message.text.strip()) or _more_than_text(message))


def _is_said(words: str, role: str) -> bool:
    if words[0] == "{":
        return not (role == "user" and _TAIL.fullmatch(words))
    return words not in _CONTROL


def _more_than_text(message: Message) -> bool:
    return isinstance(message.content, list) and any(p.get("type") != "text" for p in message.content)


def _as_spoken(message: Message) -> Message:
    if message.role != "user":
        return as_tool_call(message) if message.others or message.role == "function" else message
    text = message.content
    plain = isinstance(text, str) and "}" not in text
    return message if plain else message_without_media(_without_tail(message))


def _without_tail(message: Message) -> Message:
    text = message.content if isinstance(message.content, str) else message.text
    if "}" not in text or not text.rstrip().endswith("}"):
        return message
    start = text.rfind("{")
    said = text[:start].rstrip()
    return message.saying(said) if said and _TAIL.fullmatch(text[start:].rstrip()) else message


def as_tool_call(message: Message) -> Message:
    """The message as it is held: its ``function_call`` a tool call, or its result a tool's."""
    if message.role == "function":
        return msgspec.structs.replace(message, role="tool", tool_call_id=answered_call(message) or FUNCTION)
    function = function_of(message)
    if function is None or message.tool_calls:
        return message
    return msgspec.structs.replace(message, tool_calls=[tool_call_of(function)])


def as_function_call(message: Message) -> Message:
    """What is held, as it was said."""
    if message.role == "tool":
        return _result(message)
    calls = message.tool_calls or ()
    called = next((call["function"] for call in calls if call.get("type") == FUNCTION_CALL), None)
    if called is None:
        return message
    return msgspec.structs.replace(
        message, tool_calls=UNSET, others={**message.others, FUNCTION_CALL: called}
    )


def _result(message: Message) -> Message:
    answered = message.tool_call_id
    if not isinstance(answered, str) or not answered.startswith(FUNCTION):
        return message
    return msgspec.structs.replace(message, role="function", tool_call_id=UNSET)


def without_media(content: Content) -> Content:
    """The content with a mark such as ``[image]`` in the place of what is heavy; a short link stays.

    A session is read with each turn, and what it gives back to a model would be sent again and again.
    """
    if not isinstance(content, list) or not any(map(_is_heavy, content)):
        return content
    return [_mark(part) if _is_heavy(part) else part for part in content]


def message_without_media(message: Message) -> Message:
    """The message as it is held, so that it is known again."""
    content = message.content
    if not isinstance(content, list) or (kept := without_media(content)) is content:
        return message
    return msgspec.structs.replace(message, content=kept)


def _mark(part: dict[str, Any]) -> dict[str, Any]:
    kind = str(part.get("type"))[:_LONGEST]
    return {"type": "text", "text": f"[{_NAMES.get(kind, kind)}]"}


def _is_heavy(part: dict[str, Any]) -> bool:
    return _TEXT_PARTS.isdisjoint(part) and any(map(_is_data, part.values()))


def _is_data(value: object) -> bool:
    """Whether this is, or holds, something that was read from a file, or is as long as that."""
    if isinstance(value, str):
        return len(value) > _LONGEST or value.startswith("data:")
    if isinstance(value, dict):
        return any(map(_is_data, value.values()))
    return isinstance(value, list) and any(map(_is_data, value))
