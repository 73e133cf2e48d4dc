"""What may be shown of a request: engines put secrets into fields that nobody named."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from msgspec import Raw

from filters.base import Fields
from proxy.kinds import Kind
from proxy.place import decoded
from proxy.shown import IN_MESSAGES, TOP_LEVEL

_SIZED: Final = {str: ("text", "characters"), list: ("list", "items"), dict: ("object", "keys")}
_UNSIZED: Final = {bool: "truth value", int: "number", float: "number", type(None): "null"}

_MESSAGE: Final = IN_MESSAGES | {"turn_id", "timestamp", "metadata"}
_MARKS: Final = frozenset({"source", "user", "interrupted", "interrupt_timestamp", "original"})
_CALL: Final = frozenset({"id", "type", "index", "function", "custom"})


def form(value: object) -> str:
    """A value's type and length, and nothing of the value: ``text of 12 characters``."""
    for kind, (name, unit) in _SIZED.items():
        if isinstance(value, kind):
            return f"{name} of {len(value)} {unit}"
    return _UNSIZED.get(type(value), "value")


def field(name: str, value: Raw, also: Collection[str] = ()) -> Raw | str:
    """A field of the top level: whole where it is OpenAI's or named in ``also``, else its form."""
    return value if name in TOP_LEVEL or name in also else _hidden(decoded(value))


def message(raw: Mapping[str, Any], also: Collection[str] = ()) -> dict[str, Any]:
    """A message with the fields of OpenAI's and of the engines that mark turns; of all others the form."""
    shown = _only(raw, _MESSAGE if not also else _MESSAGE | set(also))
    if isinstance(shown.get("metadata"), dict):
        shown["metadata"] = _only(shown["metadata"], _MARKS)
    if isinstance(shown.get("tool_calls"), list):
        shown["tool_calls"] = [_only(call, _CALL | set(also)) for call in shown["tool_calls"]]
    return shown


def body(sent: Fields, messages: Sequence[Mapping[str, Any]], kind: Kind) -> dict[str, Any]:
    """A body as ``kind`` gets it: whole, but for the fields that the configuration alone lets through."""
    named = frozenset().union(*kind.messages.values()) | kind.calls
    shown = {name: field(name, value, kind.fields) for name, value in sent.items()}
    return {**shown, "messages": [message(each, named) for each in messages]}


def _only(raw: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value if name in names else _hidden(value) for name, value in raw.items()}


def _hidden(value: object) -> str:
    return f"(not shown: {form(value)})"
