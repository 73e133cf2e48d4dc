"""A chat completion request, decoded once: messages become values, other fields stay raw JSON."""

import json
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import Any, Final

import msgspec
from msgspec import Raw

from filters.message import LARGEST, REPLACEMENT, Message
from proxy.answer.sse import decode_raw
from proxy.errors import RequestError, TooLarge

_TEXT: Final = frozenset({str, NoneType})
_FLAG: Final = frozenset({bool, NoneType})
_MESSAGE_EXTENSIONS: Final = frozenset({"turn_id", "timestamp", "metadata"})
_NULL: Final = Raw(b"null")
_BOOLEANS: Final = frozenset({b"true", b"false", b"null"})
_SMALLEST_MESSAGE: Final = len('{"role":""},')
_LARGEST_MENDED: Final = 1_000_000
_LONE_SURROGATES: Final = re.compile("[\ud800-\udfff]")
_TOO_DEEP: Final = "The body is nested too deeply."
_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_items = msgspec.json.Decoder(list[Raw]).decode
_decode_messages = msgspec.json.Decoder(list[Message]).decode
_TOP_LEVEL_EXTENSIONS: Final[Mapping[str, frozenset[object]]] = {
    "interruptable": _FLAG,
    "timestamp": frozenset({int, float, NoneType}),
    "turn_id": frozenset({int, NoneType}),
}
_MARKS: Final[Mapping[str, frozenset[object]]] = {
    "source": _TEXT,
    "user": _TEXT | {int},  # a whole number names a user as well as a text does
    "interrupted": _FLAG,
    "interrupt_timestamp": frozenset({int, float, NoneType}),
    "original": _TEXT,
}


class ClientRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A chat completion request as the client sent it.

    Header names are in lower case. ``fields`` holds the body's top level as raw JSON, in the client's
    order, without ``messages``. ``ignored`` are paths of extension fields whose values cannot be used.
    """

    headers: Mapping[str, str]
    query: Mapping[str, str]
    fields: dict[str, Raw]
    messages: Sequence[Message]
    ignored: tuple[str, ...] = ()

    def field(self, name: str) -> Any:
        """A field of the top level, decoded; ``None`` where it is missing, or cannot be read."""
        return decode_raw(self.fields.get(name))


def read_request(
    body: bytes, headers: Mapping[str, str], query: Mapping[str, str], max_messages: int = sys.maxsize
) -> ClientRequest:
    """Decodes a request's body.

    Raises RequestError, naming the field and what it must be, where a field of OpenAI's is wrong, and
    TooLarge for more than ``max_messages``. A wrong *extension* field (``turn_id``, ``timestamp``,
    ``metadata``) is dropped.
    """
    fields = raw_fields(body)
    raw = fields.pop("messages", None)
    if raw is None:
        raise RequestError("'messages' is missing; send an array of messages.", param="messages")
    model, stream = bytes(fields.get("model", _NULL)), bytes(fields.get("stream", _NULL))
    if not model.startswith(b'"') and model != b"null":
        raise RequestError("'model' must be a string.", param="model")
    if stream not in _BOOLEANS:
        raise RequestError("'stream' must be true or false.", param="stream")
    if memoryview(raw).nbytes > max_messages * _SMALLEST_MESSAGE:
        check_count(raw, "messages", max_messages, "'listen.max_messages' sets the limit of {limit}")
    messages, dropped = read_messages(raw)
    # Now that they are in the processor's caches, this takes a sixth of what it took behind the answer.
    ignored = [*dropped]
    for name, types in _TOP_LEVEL_EXTENSIONS.items():
        if name in fields:
            value: Any = decode_raw(fields[name])
            if type(value) not in types or (value is not None and abs(value) > LARGEST):
                ignored.append(name)
    for i, message in enumerate(messages):
        for marks, place in ((message.metadata, ".metadata"), (message.others, "")):
            if not marks:
                continue
            for name, value in marks.items():
                expected = _MARKS.get(name)
                if expected is None:
                    continue
                if type(value) not in expected or (name == "user" and REPLACEMENT in str(value)):
                    ignored.append(f"messages[{i}]{place}.{name}")
    return ClientRequest(
        headers=headers, query=query, fields=fields, messages=messages, ignored=tuple(ignored)
    )


def check_count(raw: Raw, field: str, limit: int, advice: str) -> None:
    """Raises TooLarge for an array of more items than the limit, before any item is decoded."""
    try:
        count = len(_decode_items(raw))
    except (msgspec.DecodeError, RecursionError):  # read_messages says what is wrong
        return
    if count > limit:
        raise TooLarge(f"'{field}' has {count} items; {advice.format(limit=limit)}.", param=field)


def raw_fields(body: bytes, example: str = '{"messages": [...]}') -> dict[str, Raw]:
    """A body's fields as raw JSON; raises RequestError, which shows ``example``."""
    try:
        body.decode()  # raw fields are sent on unread, and must not carry broken text
        return _decode_fields(body)
    except msgspec.ValidationError:
        raise RequestError(f"The body must be a JSON object; send {example}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        reason = str(error)
    except RecursionError:
        raise RequestError(_TOO_DEEP) from None
    try:  # it may be half a character, and nothing else
        return _decode_fields(mend_json(body))
    except RecursionError:
        raise RequestError(_TOO_DEEP) from None
    except (ValueError, msgspec.ValidationError):
        raise RequestError(f"The body is not JSON: {reason}.") from None


def mend_json(body: bytes) -> bytes:
    """JSON with a replacement character for each lone surrogate, as in a text cut inside an emoji.

    Raises ValueError for any other error, and for more than a megabyte: the standard library's parser would
    hold up all calls. Raises RecursionError for what is nested too deeply.
    """
    if len(body) > _LARGEST_MENDED:
        raise ValueError("it is too large to be repaired")
    text = json.dumps(json.loads(body), ensure_ascii=False, allow_nan=False)
    return _LONE_SURROGATES.sub(REPLACEMENT, text).encode()


def read_messages(raw: Raw, field: str = "messages") -> tuple[list[Message], tuple[str, ...]]:
    """The messages of a field, and the paths of the extension fields that were dropped.

    Unknown fields are kept. Raises RequestError, naming what is wrong and what it must be.
    """
    try:
        return _decode_messages(raw), ()
    except (msgspec.ValidationError, RecursionError):
        pass
    try:
        items = json.loads(bytes(raw))  # takes any number of up to 4300 digits
    except RecursionError:
        raise RequestError(_TOO_DEEP) from None
    except ValueError:
        raise RequestError(f"A number in '{field}' has too many digits.", param=field) from None
    if not isinstance(items, list):
        raise RequestError(f"'{field}' must be an array of objects.", param=field)
    dropped: list[str] = []
    return [_message(item, f"{field}[{i}]", dropped) for i, item in enumerate(items)], tuple(dropped)


def _message(item: Any, path: str, dropped: list[str]) -> Message:
    if not isinstance(item, dict):
        raise RequestError(f"'{path}' must be an object.", param=path)
    if "role" not in item:
        raise RequestError(
            f"'{path}.role' is missing; write user, assistant, system, …", param=f"{path}.role"
        )
    named = {name: value for name, value in item.items() if name in _MESSAGE_FIELDS}
    for name, value in [*named.items()]:
        fits, expected = _MESSAGE_FIELDS[name]
        if fits(value):
            continue
        if name not in _MESSAGE_EXTENSIONS:
            raise RequestError(f"'{path}.{name}' must be {expected}.", param=f"{path}.{name}")
        dropped.append(f"{path}.{name}")
        del named[name]
    return Message(**named, others={name: item[name] for name in item.keys() - _MESSAGE_FIELDS.keys()})


def _is_number(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST


def _is_text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _are_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


_MESSAGE_FIELDS: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "role": (lambda value: isinstance(value, str), "a string"),
    "content": (lambda value: _is_text(value) or _are_objects(value), "a string, an array of parts or null"),
    "name": (_is_text, "a string"),
    "tool_calls": (lambda value: value is None or _are_objects(value), "an array of tool calls"),
    "tool_call_id": (_is_text, "a string"),
    "turn_id": (lambda value: value is None or (_is_number(value) and isinstance(value, int)), "an integer"),
    "timestamp": (lambda value: value is None or _is_number(value), "a number"),
    "metadata": (lambda value: value is None or isinstance(value, dict), "an object"),
}
