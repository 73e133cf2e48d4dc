"""The body that an upstream gets: nothing in it that its kind does not name."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from filters.message import Message
from proxy.kinds.call_id import with_nine
from proxy.kinds.kind import Kind, Names
from proxy.kinds.legacy import tool_choice, tool_list, with_tool_calls
from proxy.kinds.order import arranged

# Keys of ``metadata`` that speak to this proxy, not to the model.
OWN_KEYS = frozenset({"agent_id", "background", "session_id", "user_id"})

# OpenAI's bounds: pairs, and characters of a key and of a value.
_PAIRS, _KEY, _VALUE = 16, 64, 512

_LIMITS = ("max_tokens", "max_completion_tokens", "maxTokens")
_NOT_POSITIVE = re.compile(rb"-.*|0+(\.0*)?([eE].*)?")
_TRUE, _NULL = Raw(b"true"), Raw(b"null")

_STRUCT_FIELDS = frozenset(Message.__struct_fields__)
_OPTIONAL = ("name", "tool_calls", "tool_call_id", "turn_id", "timestamp", "metadata")
_INNER = {
    "audio": frozenset({"id"}),
    "custom": frozenset({"input", "name"}),
    "function": frozenset({"arguments", "name"}),
    "function_call": frozenset({"arguments", "name"}),
}
_NO_NAMES: Names = frozenset()
_BARE = frozenset({"content"})
_encode = msgspec.json.Encoder().encode


def compose(
    kind: Kind,
    fields: Mapping[str, Raw],
    messages: Sequence[Message],
    *,
    model: str | None = None,
    allow: Names = _NO_NAMES,
) -> bytes:
    """A request body as JSON that holds what ``kind`` takes, and what ``allow`` names, at every level.

    ``fields`` is the client's top level without ``messages``; what passes keeps its bytes and its order.
    ``model`` stands in the place of the client's. Neither argument is changed.
    """
    body = _top_level(kind, _bounded(fields), allow)
    if model is not None:
        body["model"] = model
    kept = messages if kind.functions else with_tool_calls(messages)
    kept = with_nine(kept) if kind.nine else kept
    body["messages"] = _history(kind, arranged(kind, kept), allow)
    return _encode(body)


def _top_level(kind: Kind, fields: Mapping[str, Raw], allow: Names) -> dict[str, Any]:
    names = kind.fields | allow if allow else kind.fields
    body: dict[str, Any] = {name: raw for name, raw in fields.items() if name in names}
    body |= _renamed(kind, fields, names)
    if not kind.functions:
        body |= _modernised(fields, names)
    if "metadata" in body and "metadata" not in allow:
        body |= _stored(body.pop("metadata"), fields.get("store"))
    return body


def _bounded(fields: Mapping[str, Raw]) -> Mapping[str, Raw]:
    """The fields without a limit that is none: engines say -1 where they mean no limit."""
    limitless = [name for name in _LIMITS if name in fields and _NOT_POSITIVE.fullmatch(fields[name])]
    return {name: raw for name, raw in fields.items() if name not in limitless} if limitless else fields


def _renamed(kind: Kind, fields: Mapping[str, Raw], names: Names) -> dict[str, Raw]:
    return {
        target: fields[source]
        for source, target in kind.renames.items()
        if source in fields and source not in names and target not in fields
    }


def _modernised(fields: Mapping[str, Raw], names: Names) -> dict[str, Any]:
    if "functions" not in fields or "functions" in names or "tools" in fields:
        return {}
    tools = tool_list(fields["functions"])
    choice = tool_choice(fields["function_call"]) if "function_call" in fields else None
    return {
        **({"tools": tools} if tools else {}),
        **({"tool_choice": choice} if tools and choice and "tool_choice" not in fields else {}),
    }


def _stored(metadata: Raw, store: Raw | None) -> dict[str, Any]:
    """What of ``metadata`` may be sent: OpenAI takes it only together with ``store``."""
    if metadata == _NULL:
        return {"metadata": metadata}
    try:
        pairs = msgspec.json.decode(metadata) if store == _TRUE else None
    except msgspec.DecodeError:  # a number beyond all that a machine counts with
        pairs = None
    if not isinstance(pairs, dict):
        return {}
    kept = {key: value for key, value in pairs.items() if _may_be_stored(key, value)}
    if kept == pairs and len(kept) <= _PAIRS:
        return {"metadata": metadata} if kept else {}
    return {"metadata": dict(list(kept.items())[:_PAIRS])} if kept else {}


def _may_be_stored(key: str, value: Any) -> bool:
    return isinstance(value, str) and key not in OWN_KEYS and len(key) <= _KEY and len(value) <= _VALUE


def _history(kind: Kind, messages: Sequence[Message], allow: Names) -> list[dict[str, Any]]:
    by_role, calls = kind.messages, kind.calls
    if allow:
        by_role = {role: names | allow for role, names in by_role.items()}
        calls |= allow
    other = _BARE | allow
    return [_sent(message, by_role.get(message.role, other), calls) for message in messages]


def _sent(message: Message, names: Names, calls: Names) -> dict[str, Any]:
    sent: dict[str, Any] = {"role": message.role}
    if message.content is not UNSET:
        sent["content"] = message.content
    for name in _OPTIONAL:
        if name in names and (value := getattr(message, name)) is not UNSET:
            sent[name] = value
    if message.others:
        sent |= _only(message.others, names - _STRUCT_FIELDS)
    if sent.get("tool_calls"):
        sent["tool_calls"] = [_only(call, calls) for call in sent["tool_calls"]]
    return sent


def _only(entry: Mapping[str, Any], names: Names) -> dict[str, Any]:
    """The named keys of an entry, and of the objects in it whose keys are known."""
    return {key: _inner(key, value) for key, value in entry.items() if key in names}


def _inner(key: str, value: Any) -> Any:
    names = _INNER.get(key)
    if names is None or not isinstance(value, dict) or value.keys() <= names:
        return value
    return {name: inner for name, inner in value.items() if name in names}
