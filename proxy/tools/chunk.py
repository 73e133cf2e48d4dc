"""Tool calls in the chunks of a stream, read and written."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from proxy.answer.sse import MalformedJson, decode_json
from proxy.answer.transcript import call_index, starts_new_call

Chunk = dict[str, Any]
_CUT_SHORT = ("length", "content_filter")
_ARGUMENTS = {"function": "arguments", "custom": "input"}


def decode_object(data: bytes) -> Chunk | None:
    """A JSON object, or ``None``."""
    try:
        chunk = decode_json(data)
    except MalformedJson:
        return None
    return chunk if isinstance(chunk, dict) else None


def first_choice(chunk: Mapping[str, Any]) -> dict[str, Any]:
    """The first choice, empty where there is none."""
    choices = chunk.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, dict) else {}


def object_in(parent: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A member that is an object, empty where it is none."""
    value = parent.get(name)
    return value if isinstance(value, dict) else {}


def function_name(call: Mapping[str, Any]) -> str:
    """The function that a call names, empty where it names none."""
    name = object_in(call, "function").get("name")
    return name if isinstance(name, str) else ""


def has_content(delta: Mapping[str, Any]) -> bool:
    """Whether a delta or a message holds more than a role and calls."""
    return any(value for name, value in delta.items() if name not in {"role", "tool_calls"})


def normalize_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """A call as it would come in pieces: its id, its name and its arguments are text."""
    calls = CallAssembly()
    calls.add([call])
    return calls.calls()[0]


def finish_reason(reason: Any, theirs: Sequence[Mapping[str, Any]]) -> Any:
    """How a round finishes for the client, with the calls of its own tools; what was cut short stays so."""
    if reason in _CUT_SHORT:
        return reason
    return "tool_calls" if theirs else "stop" if reason == "tool_calls" else reason


class CallAssembly:
    """Tool calls as they are put together from the pieces of a stream."""

    def __init__(self) -> None:
        self._calls: list[dict[str, Any]] = []
        self._newest: dict[int, dict[str, Any]] = {}

    def add(self, pieces: Any) -> None:
        """Takes the ``tool_calls`` of one delta."""
        for position, piece in enumerate(pieces if isinstance(pieces, list) else ()):
            if not isinstance(piece, dict):
                continue
            index = call_index(piece, position)
            call = self._newest.get(index)
            if call is None or starts_new_call(call, piece):
                kind = "custom" if object_in(piece, "custom") else "function"
                call = {"id": "", "type": kind, kind: {"name": "", _ARGUMENTS[kind]: ""}}
                self._newest[index] = call
                self._calls.append(call)
            _add_piece(call, piece)

    def calls(self) -> list[dict[str, Any]]:
        """The calls so far, in the order in which they began."""
        return self._calls


def _add_piece(call: dict[str, Any], piece: Mapping[str, Any]) -> None:
    kind = call["type"]
    called, added = call[kind], object_in(piece, kind)
    name, arguments = added.get("name"), added.get(_ARGUMENTS[kind])
    called["name"] = called["name"] or (name if isinstance(name, str) else "")
    if arguments and not isinstance(arguments, str):  # as some servers send them: what the JSON stands for
        arguments = msgspec.json.encode(arguments).decode()
    called[_ARGUMENTS[kind]] += arguments or ""
    # What else a call says may have to return with it, as Gemini's signatures do.
    for other, value in piece.items():
        if value and other not in {"index", "type", "function", "custom"}:
            call[other] = call.get(other) or value


def sum_usage(usages: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Token counts, added up at every level."""
    total: dict[str, Any] = {}
    for usage in usages:
        for name, value in usage.items():
            if isinstance(value, dict):
                total[name] = sum_usage([object_in(total, name), value])
            elif isinstance(value, int | float) and isinstance(total.get(name, 0), int | float):
                total[name] = total.get(name, 0) + value
            else:
                total.setdefault(name, value)
    return total
