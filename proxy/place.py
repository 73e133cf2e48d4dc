"""A place in a call where an id may stand, and what counts as an id there."""

import ast
import re
import warnings
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final, Self

import msgspec

from filters.message import Message

SOURCES: Final = ("header", "query", "body", "message")

_LONGEST_ID = 256
_LONGEST_EMBEDDED = 8192
# Controls and line breaks could end a header or a log line; a lone surrogate cannot be stored as UTF-8.
_UNFIT = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_BEYOND = 10**_LONGEST_ID  # str() of an int has a limit of its own, and raises
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
# Clients take these on a path for a step in it, and never ask for what they name.
_STEPS = {".", ".."}
_CREDENTIALS = {"authorization", "proxy-authorization", "cookie", "x-api-key", "api-key"}
_NO_IDS = {"role", "content", "tool_calls", "tool_call_id", "turn_id", "timestamp"}


class Place(msgspec.Struct, frozen=True):
    """Where an id may stand: ``header:X-User-Id``, ``query:user_id``, ``body:call.id``, ``message:name``.

    ``message`` is the newest user message. ``name`` is the key to look up (a header's in lower case);
    ``steps`` lead on from there into an object, and through a string that holds one.
    """

    source: str
    name: str
    steps: tuple[str, ...]
    spelling: str

    @classmethod
    def parse(cls, spelling: str) -> Self:
        """The place that ``spelling`` names; ``ValueError`` says how to spell one."""
        source, colon, path = (part.strip() for part in spelling.partition(":"))
        if not colon or source not in SOURCES:
            raise ValueError(f"{spelling!r} is no place for an id{_advice(source, path)}")
        name, steps = _path(source, path, spelling)
        return cls(source, name, steps, f"{source}:{path}")

    def __str__(self) -> str:
        return self.spelling


def newest_user(messages: Sequence[Message]) -> Mapping[str, Any]:
    """What the newest user message says beside its words."""
    for message in reversed(messages):
        if message.role == "user":
            return {"metadata": message.metadata, "name": message.name, **message.others}
    return {}


def identifier(value: object) -> str | None:
    """The id that ``value`` is: a short printable text, but no ``.`` or ``..``, or a whole number."""
    if type(value) is int and abs(value) < _BEYOND:
        value = str(value)
    if not isinstance(value, str):
        return None
    text = value.strip(" ")
    if len(text) > _LONGEST_ID or _UNFIT.search(text):
        return None
    text = text.strip()
    return None if text in _STEPS else text or None


def decoded(value: object) -> object:
    """A value of the body as Python has it; ``None`` for one that cannot be read."""
    if not isinstance(value, msgspec.Raw):
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def written(value: str) -> str:
    """A header's value as it was written: UTF-8 where its bytes are that, else Latin-1.

    Servers hand a header on with a character for each byte.
    """
    if value.isascii():
        return value
    try:
        return value.encode("latin-1").decode()
    except UnicodeError:
        return value


def is_given(value: object) -> bool:
    """Whether a value is more than an empty one."""
    return bool(value.strip()) if isinstance(value, str) else value is not None


def opened(value: object) -> Mapping[Any, Any]:
    """The object that ``value`` is, or holds as text; an empty one otherwise."""
    if isinstance(value, str):
        value = _embedded(value.strip()) if len(value) <= _LONGEST_EMBEDDED else None
    return value if isinstance(value, dict) else {}


def _embedded(text: str) -> object:
    if not text.startswith("{"):
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return _literal(text)


def _literal(text: str) -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the parser would print a caller's words to stderr
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError, SystemError):
            return None


def _path(source: str, path: str, spelling: str) -> tuple[str, tuple[str, ...]]:
    if source == "header":
        return _header(path, spelling), ()
    name, *steps = [path] if source == "query" else path.split(".")
    if not name or not all(steps) or path.split() != [path]:
        raise ValueError(f"{spelling!r} names nothing; write it like body:call.id or query:user_id")
    if source == "message" and name in _NO_IDS:
        raise ValueError(f"{spelling!r} holds no id; a message's speaker stands in message:metadata.user")
    if source == "body" and name == "messages":
        raise ValueError(f"{spelling!r} cannot be read; the newest user message is message:metadata.user")
    return name, tuple(steps)


def _header(name: str, spelling: str) -> str:
    if not _HEADER_NAME.fullmatch(name):
        raise ValueError(f"{spelling!r} is no header's name; write it like header:X-Session-Id")
    if name.lower() in _CREDENTIALS:
        raise ValueError(f"{spelling!r} is a secret, and ids are stored and shown; name another place")
    return name.lower()


def _advice(source: str, path: str) -> str:
    near = get_close_matches(source.lower(), SOURCES, n=1)
    if near and path:
        return f"; did you mean {near[0]}:{path}?"
    return "; it begins with header:, query:, body: or message:, like header:X-Session-Id or body:call.id"
