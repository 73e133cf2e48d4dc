"""What of a replayed window is speech at all: the rest is never remembered."""

import re
from collections.abc import Sequence

import msgspec

from filters.group import RESULTS, is_call
from filters.message import Message
from filters.role import SYSTEM
from proxy.memory.speech.functions import modern
from proxy.memory.speech.media import lightened

_ROLES = frozenset({"user", "assistant", "tool", "function"})
PROMPTS = frozenset({"silence", "llm_failure"})
_CONTROL = frozenset({"<continue>"})
_SIGNS = "<{"

# Hume ends the user's words with what the voice sounded like: {slightly doubtful, very slightly calm}.
_EXPRESSION = r"(?:very |extremely |quite |moderately |somewhat |slightly |fairly |a bit )+[\w-]+"
_TAIL = re.compile(rf"\{{{_EXPRESSION}(?:, {_EXPRESSION})*\}}")


class Speech(msgspec.Struct, frozen=True, gc=False):
    """What was spoken, typed, called or returned by a tool, in a window's order.

    ``answering`` is whether it tells what the assistant said: an answer that it leaves out was not heard.
    ``bidden`` are the instructions of a window without any speech: by them alone a model speaks. ``left`` is
    whether it is what is left of a window of which some was forgotten.
    """

    lines: Sequence[Message]
    answering: bool
    bidden: Sequence[Message] = ()
    left: bool = False

    @property
    def wordless(self) -> bool:
        """Whether it tells of the assistant that it was not heard, and no more."""
        return self.answering and all(line.role != "assistant" for line in self.lines)


def spoken(window: Sequence[Message]) -> Speech:
    """The speech of a window."""
    lines = speech(window)
    bidden = () if lines else [message for message in window if message.role in SYSTEM]
    return Speech(lines, answers(window), bidden)


def speech(window: Sequence[Message]) -> list[Message]:
    """What was spoken, typed, called or returned by a tool, without expression tails and pictures.

    Functions, which came before tools, are called as these are.
    """
    return [_as_spoken(message) for message in window if is_speech(message)]


def answers(window: Sequence[Message]) -> bool:
    """Whether the window tells what the assistant said, if without words.

    Engines that number their turns do. Of others, some never show an answer.
    """
    shown = any(message.role == "assistant" and message.source not in PROMPTS for message in window)
    return shown or any(isinstance(message.turn_id, int) for message in window)


def is_speech(message: Message) -> bool:
    """Whether this is part of the talk: not an instruction, a prompt of the engine's, a sign or nothing."""
    role = message.role
    if role not in _ROLES:
        return False
    if role in RESULTS or message.tool_calls or (message.others and is_call(message)):
        return True
    if role == "assistant" and message.metadata and message.source in PROMPTS:
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
        return modern(message) if message.others or message.role == "function" else message
    text = message.content
    plain = isinstance(text, str) and "}" not in text
    return message if plain else lightened(_without_tail(message))


def _without_tail(message: Message) -> Message:
    text = message.content if isinstance(message.content, str) else message.text
    if "}" not in text or not text.rstrip().endswith("}"):
        return message
    start = text.rfind("{")
    said = text[:start].rstrip()
    return message.saying(said) if said and _TAIL.fullmatch(text[start:].rstrip()) else message
