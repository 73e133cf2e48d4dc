"""What may be shown of a request: engines put secrets into fields that nobody named."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Raw

from filters.base import Fields
from proxy.kinds import Kind
from proxy.kinds.kind import Names
from proxy.shown import IN_MESSAGES, TOP_LEVEL
from proxy.turn.identity import decoded

_SIZED: Final = {str: ("text", "characters"), list: ("list", "items"), dict: ("object", "keys")}
_UNSIZED: Final = {bool: "truth value", int: "number", float: "number", type(None): "null"}

_MESSAGE: Final = IN_MESSAGES | {"turn_id", "timestamp", "metadata"}
_FUNCTION: Final = frozenset({"name", "arguments"})
_INNER: Final = {
    "metadata": frozenset({"source", "user", "interrupted", "interrupt_timestamp", "original"}),
    "content": frozenset({"type", "text", "image_url", "input_audio", "file", "refusal"}),
    "tool_calls": frozenset({"id", "type", "index", "function", "custom"}),
    "function": _FUNCTION,
    "function_call": _FUNCTION,
    "custom": frozenset({"name", "input"}),
    "audio": frozenset({"id"}),
}


def form(value: object) -> str:
    """A value's type and length, and nothing of the value: ``text of 12 characters``."""
    for kind, (name, unit) in _SIZED.items():
        if isinstance(value, kind):
            return f"{name} of {len(value)} {unit}"
    return _UNSIZED.get(type(value), "value")


def field(name: str, value: Raw, also: Names = frozenset()) -> Raw | str:
    """A field of the top level: whole where it is OpenAI's or named in ``also``, else its form."""
    return value if name in TOP_LEVEL or name in also else _hidden(decoded(value))


def message(raw: Mapping[str, Any], also: Names = frozenset()) -> dict[str, Any]:
    """A message with the fields of OpenAI's and of the engines that mark turns; of all others the form."""
    return _known(raw, _MESSAGE | also, also)


def body(sent: Fields, messages: Sequence[Mapping[str, Any]], kind: Kind) -> dict[str, Any]:
    """A body as ``kind`` gets it: whole, but for the fields that the configuration alone lets through."""
    named: Names = frozenset().union(*kind.messages.values()) | kind.calls
    shown = {name: field(name, value, kind.fields) for name, value in sent.items()}
    return {**shown, "messages": [message(each, named) for each in messages]}


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
    return f"(not shown: {form(value)})"
