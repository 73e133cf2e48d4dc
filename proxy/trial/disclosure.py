"""What may be shown of a request: engines put secrets into fields that nobody named."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from filters.base import Fields
from filters.message import SYSTEM
from proxy.turn.identity import decode_raw
from proxy.upstream.practice import IN_MESSAGES, TOP_LEVEL
from proxy.upstream.providers import Names, Provider

_SIZED: Final = {str: ("text", "characters"), list: ("list", "items"), dict: ("object", "keys")}
_UNSIZED: Final = {bool: "truth value", int: "number", float: "number", type(None): "null"}
_MESSAGE: Final = IN_MESSAGES | {"turn_id", "timestamp", "metadata"}
_FUNCTION: Final = frozenset({"name", "arguments"})
_LIMITS = frozenset({"max_tokens", "max_completion_tokens", "maxTokens"})
_FUNCTIONS = frozenset({"functions", "function_call"})


_INNER: Final = {
    "metadata": frozenset({"source", "user", "interrupted", "interrupt_timestamp", "original"}),
    "content": frozenset({"type", "text", "image_url", "input_audio", "file", "refusal"}),
    "tool_calls": frozenset({"id", "type", "index", "function", "custom"}),
    "function": _FUNCTION,
    "function_call": _FUNCTION,
    "custom": frozenset({"name", "input"}),
    "audio": frozenset({"id"}),
}


def value_shape(value: object) -> str:
    """A value's type and length, and nothing of the value: ``text of 12 characters``."""
    for kind, (name, unit) in _SIZED.items():
        if isinstance(value, kind):
            return f"{name} of {len(value)} {unit}"
    return _UNSIZED.get(type(value), "value")


def shown_field(name: str, value: Raw, also: Names = frozenset()) -> Raw | str:
    """A field of the top level: whole where it is OpenAI's or named in ``also``, else its form."""
    return value if name in TOP_LEVEL or name in also else _hidden(decode_raw(value))


def shown_message(raw: Mapping[str, Any], also: Names = frozenset()) -> dict[str, Any]:
    """A message with the fields of OpenAI's and of the engines that mark turns; of all others the form."""
    return _known(raw, _MESSAGE | also, also)


def shown_body(sent: Fields, messages: Sequence[Mapping[str, Any]], kind: Provider) -> dict[str, Any]:
    """A body as ``kind`` gets it: whole, but for the fields that the configuration alone lets through."""
    named: Names = frozenset().union(*kind.messages.values()) | kind.calls
    shown = {name: shown_field(name, value, kind.fields) for name, value in sent.items()}
    return {**shown, "messages": [shown_message(each, named) for each in messages]}


def _known(raw: Mapping[str, Any], names: Names, also: Names) -> dict[str, Any]:
    return {name: _inside(name, raw[name], also) if name in names else _hidden(raw[name]) for name in raw}


def _inside(name: str, value: Any, also: Names) -> Any:
    """A value whose name is known; objects within it, or in a list of it, have names of their own."""
    names = _INNER.get(name)
    if names is None:
        return value
    if isinstance(value, list):
        return [_known(each, names | also, also) if isinstance(each, dict) else each for each in value]
    return _known(value, names | also, also) if isinstance(value, dict) else value


def _hidden(value: object) -> str:
    return f"(not shown: {value_shape(value)})"


_TOOL_KINDS = ("function", "custom")


class Stripped(msgspec.Struct, frozen=True):
    """Something that the upstream does not get as the client sent it.

    ``name`` is a field's, that of a message's field as ``messages[].turn_id``. ``form`` is its type and
    length where it stood once, at the top level; ``count`` says how often it stood.
    """

    name: str
    why: str
    form: str | None = None
    count: int = 1


def stripped_fields(
    fields: Fields, messages: Sequence[Mapping[str, Any]], sent: Mapping[str, Any], kind: Provider
) -> tuple[Stripped, ...]:
    """What is missing in ``sent``, or stands there under another name, with the reason; top level first."""
    there = {name: decode_raw(raw) for name, raw in fields.items()}
    return (*_of_fields(there, sent, kind), *_of_messages(messages, sent["messages"], kind))


def _of_fields(there: Mapping[str, object], sent: Mapping[str, Any], kind: Provider) -> Iterator[Stripped]:
    for name, value in there.items():
        if name not in sent:
            yield Stripped(name, _reason(name, value, there, kind), value_shape(value))
    lost = _keys_lost(there.get("metadata"), sent.get("metadata"))
    if lost:
        yield Stripped("metadata", "only short texts, and no names of ours, may be stored", count=lost)


def _reason(name: str, value: object, there: Mapping[str, object], kind: Provider) -> str:
    target = kind.renames.get(name)
    if name in _LIMITS and isinstance(value, int | float) and value <= 0:
        return "a limit that is none"
    if target and target not in there:
        return f"sent as {target}"
    if name in _FUNCTIONS and not kind.functions:
        return "sent as tools, or already there as tools"
    if name == "metadata" and name in kind.fields:
        return "taken only together with store, as short texts"
    return f"not on the list of {kind.name}"


def _keys_lost(before: object, after: object) -> int:
    if not isinstance(before, dict) or not isinstance(after, dict):
        return 0
    return len(before.keys() - after.keys())


def _of_messages(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]], kind: Provider
) -> Iterator[Stripped]:
    lost = Counter(_names(before)) - Counter(_names(after))
    for name, count in lost.items():
        yield Stripped(f"messages[].{name}", f"not on the list of {kind.name}", count=count)
    roles = Counter(str(message["role"]) for message in before)
    for role, other in kind.roles.items():
        if roles[role]:
            yield Stripped(f"messages[].role {role}", f"sent as {other}", count=roles[role])
    late = _systems(before) - _systems(after)
    if late > 0:
        yield Stripped("messages[].role system", "joined to the first, or sent as the user's", count=late)
    if len(before) != len(after):
        why = f"sent as {len(after)}, in the order that {kind.name} takes"
        yield Stripped("messages", why, count=len(before))


def _systems(messages: Sequence[Mapping[str, Any]]) -> int:
    return sum(message["role"] in SYSTEM for message in messages)


def _names(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The names of all fields, those of tool calls included; role and content are in every message."""
    for message in messages:
        yield from (name for name in message if name not in {"role", "content"})
        for call in message.get("tool_calls") or ():
            yield from (f"tool_calls[].{name}" for name in call)
            for inner in _TOOL_KINDS:
                if isinstance(call.get(inner), dict):
                    yield from (f"tool_calls[].{inner}.{name}" for name in call[inner])
