"""A chat completion request, read once from its bytes: fields stay raw JSON, messages become values."""

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import Any, Final

import msgspec
from msgspec import Raw

from filters.message import LARGEST, Message
from proxy.errors import RequestError, TooLarge

Types = frozenset[object]
_TEXT: Final = frozenset({str, NoneType})
_FLAG: Final = frozenset({bool, NoneType})
_WHOLE: Final = frozenset({int, NoneType})
_NUMBER: Final = frozenset({int, float, NoneType})
_NULL = Raw(b"null")
_CHOICES = frozenset({b"true", b"false", b"null"})
_top_level = msgspec.json.Decoder(dict[str, Raw])
_items = msgspec.json.Decoder(list[Raw])
_SHORTEST: Final = len('{"role":""},')
_strict = msgspec.json.Decoder(list[Message])
_EXTENSIONS = frozenset({"turn_id", "timestamp", "metadata"})


TOP_LEVEL: Final[Mapping[str, Types]] = {"turn_id": _WHOLE, "timestamp": _NUMBER, "interruptable": _FLAG}
"""Beside the messages."""


_MARKS: Final[Mapping[str, Types]] = {
    "source": _TEXT,
    "user": _TEXT | {int},  # a whole number names a caller as well as a text does
    "interrupted": _FLAG,
    "interrupt_timestamp": _NUMBER,
    "original": _TEXT,
}


_ALL: Final = _MARKS.keys()


def _fits(name: str, value: object) -> bool:
    """Whether a field of the top level is of use; whatever is no extension is."""
    types = TOP_LEVEL.get(name)
    return types is None or (type(value) in types and not _is_beyond(value))


def _misfits(messages: Sequence[Message]) -> list[str]:
    """The paths of what cannot be used in the messages' metadata."""
    return [
        f"messages[{i}].metadata.{name}"
        for i, message in enumerate(messages)
        if message.metadata
        for name, value in message.metadata.items()
        if name in _ALL and type(value) not in _MARKS[name]
    ]


def _is_beyond(value: Any) -> bool:
    return value is not None and abs(value) > LARGEST


class ClientRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One chat completion as a client asked for it.

    Header names are in lower case. ``fields`` holds the body's top level as raw JSON, in the client's
    order, without ``messages``. ``left_out`` names fields of messages that could not be kept.
    """

    headers: Mapping[str, str]
    query: Mapping[str, str]
    fields: dict[str, Raw]
    messages: Sequence[Message]
    left_out: tuple[str, ...] = ()

    @property
    def ignored(self) -> tuple[str, ...]:
        """The extension fields that cannot be used, by their paths.

        They are looked for when they are asked for, which is when the caller has been answered.
        """
        given = TOP_LEVEL.keys() & self.fields.keys()
        unfit = sorted(name for name in given if not _fits(name, self.field(name)))
        return (*self.left_out, *unfit, *_misfits(self.messages))

    def field(self, name: str) -> Any:
        """A field of the top level, decoded; ``None`` where it is missing, or cannot be read."""
        raw = self.fields.get(name)
        try:
            return None if raw is None else msgspec.json.decode(raw)
        except msgspec.DecodeError:  # a number beyond all that a machine counts with
            return None


def read_request(
    body: bytes, headers: Mapping[str, str], query: Mapping[str, str], most: int = sys.maxsize
) -> ClientRequest:
    """The call that a body asks for.

    Raises RequestError, naming the field and what was expected, where OpenAI's own fields are wrong, and
    TooLarge for more than ``most`` messages. A wrong *extension* field (``turn_id``, ``timestamp``,
    ``metadata``) is left out.
    """
    fields = raw_fields(body)
    raw = fields.pop("messages", None)
    if raw is None:
        raise RequestError("'messages' is missing; send an array of messages.", param="messages")
    _check(fields)
    if memoryview(raw).nbytes > most * _SHORTEST:
        _bound(raw, most)
    messages, left_out = read_messages(raw)
    return ClientRequest(headers=headers, query=query, fields=fields, messages=messages, left_out=left_out)


def _bound(raw: Raw, most: int) -> None:
    """Raises TooLarge, before any of them is looked at, for too many messages."""
    try:
        count = len(_items.decode(raw))
    except (msgspec.DecodeError, RecursionError):  # no list, or none that can be read: what is wrong is told
        return
    if count > most:
        raise TooLarge(
            f"'messages' has {count} items; 'listen.max_messages' sets the limit of {most}.", param="messages"
        )


def _check(fields: Mapping[str, Raw]) -> None:
    """Raises RequestError for what no model's name and no choice of streaming can be; ``null`` is neither."""
    model, stream = bytes(fields.get("model", _NULL)), bytes(fields.get("stream", _NULL))
    if not model.startswith(b'"') and model != b"null":
        raise RequestError("'model' must be a string.", param="model")
    if stream not in _CHOICES:
        raise RequestError("'stream' must be true or false.", param="stream")


def raw_fields(body: bytes, example: str = '{"messages": [...]}') -> dict[str, Raw]:
    """A body's fields as raw JSON; raises RequestError, which shows ``example``."""
    try:
        body.decode()  # raw fields are sent on unread, and must not carry broken text
        return _top_level.decode(body)
    except msgspec.ValidationError:
        raise RequestError(f"The body is JSON, but no object; send {example}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return _mended(body, str(error))
    except RecursionError:
        raise _too_deep() from None


def _mended(body: bytes, fault: str) -> dict[str, Raw]:
    """A body whose only fault is half a character, as a transcript cut inside an emoji has."""
    try:
        loose = json.loads(body)
        whole = json.dumps(loose, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
        return _top_level.decode(whole)
    except RecursionError:
        raise _too_deep() from None
    except (ValueError, msgspec.ValidationError):
        raise RequestError(f"The body is not JSON: {fault}.") from None


def _too_deep() -> RequestError:
    return RequestError("The body is nested too deeply.")


def read_messages(raw: Raw, field: str = "messages") -> tuple[list[Message], tuple[str, ...]]:
    """The messages that stand in a field, and the extension fields that could not be used, by their paths.

    Raises RequestError, naming what is wrong and what was expected.
    """
    try:
        return _strict.decode(raw), ()
    except (msgspec.ValidationError, RecursionError):
        return _read_patiently(_decoded(raw, field), field)


def _decoded(raw: Raw, field: str) -> Any:
    try:
        return json.loads(bytes(raw))  # takes any number of up to 4300 digits
    except RecursionError:
        raise _too_deep() from None
    except ValueError:
        raise RequestError(f"A number in '{field}' has too many digits.", param=field) from None


def _read_patiently(items: Any, field: str) -> tuple[list[Message], tuple[str, ...]]:
    """Messages as they are, less bad extensions; unknown fields are kept, other faults named."""
    if not isinstance(items, list):
        raise RequestError(f"'{field}' must be an array of objects.", param=field)
    ignored: list[str] = []
    messages = [_message(item, f"{field}[{i}]", ignored) for i, item in enumerate(items)]
    return messages, tuple(ignored)


def _message(item: Any, path: str, ignored: list[str]) -> Message:
    if not isinstance(item, dict):
        raise RequestError(f"'{path}' must be an object.", param=path)
    if "role" not in item:
        raise RequestError(
            f"'{path}.role' is missing; write user, assistant, system, …", param=f"{path}.role"
        )
    known = {name: value for name, value in item.items() if name in _EXPECTED}
    for name, value in [*known.items()]:
        fits, expected = _EXPECTED[name]
        if fits(value):
            continue
        if name not in _EXTENSIONS:
            raise RequestError(f"'{path}.{name}' must be {expected}.", param=f"{path}.{name}")
        ignored.append(f"{path}.{name}")
        del known[name]
    return Message(**known, others={name: item[name] for name in item.keys() - _EXPECTED.keys()})


def _is_number(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST


def _is_text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _are_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


_EXPECTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "role": (lambda value: isinstance(value, str), "a string"),
    "content": (lambda value: _is_text(value) or _are_objects(value), "a string, an array of parts or null"),
    "name": (_is_text, "a string"),
    "tool_calls": (lambda value: value is None or _are_objects(value), "an array of tool calls"),
    "tool_call_id": (_is_text, "a string"),
    "turn_id": (lambda value: value is None or (_is_number(value) and isinstance(value, int)), "an integer"),
    "timestamp": (lambda value: value is None or _is_number(value), "a number"),
    "metadata": (lambda value: value is None or isinstance(value, dict), "an object"),
}
