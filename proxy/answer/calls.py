"""Tool calls as they come in the pieces of a stream: which piece is of which, and when one is whole."""

from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Any

import msgspec

from proxy.memory.speech.functions import held

# What a function and a custom tool are given comes in pieces; all else of a call is said at once.
_PIECEMEAL = frozenset({"arguments", "input"})


def put_together(said: Iterable[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """The calls of an answer, from the pieces in its deltas; ``None`` where there are none."""
    said = list(said)
    calls: list[tuple[int, dict[str, Any]]] = []
    newest: dict[int, dict[str, Any]] = {}
    for delta in said:
        pieces = delta.get("tool_calls")
        for place, piece in enumerate(pieces if isinstance(pieces, list) else ()):
            if isinstance(piece, dict):
                index = index_of(piece, place)
                if index not in newest or is_another(newest[index], piece):
                    newest[index] = {}
                    calls.append((index, newest[index]))
                _add(newest[index], piece)
    return [call for _, call in sorted(calls, key=itemgetter(0))] or _function(said)


def _function(said: Iterable[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """The one call of the form that came before tools."""
    function: dict[str, Any] = {}
    for delta in said:
        if isinstance(piece := delta.get("function_call"), dict):
            _add(function, piece)
    return [held(function)] if function else None


def index_of(piece: Mapping[str, Any], place: int) -> int:
    """Which call of a delta a piece says it is of; its place there, where it says nothing of use."""
    index = piece.get("index")
    return index if isinstance(index, int) else place


def is_another(call: Mapping[str, Any], piece: Mapping[str, Any]) -> bool:
    """Whether a piece begins another call than the one that its index last stood for."""
    # Some servers give all parallel calls one index; others give each piece of one call an id and the name.
    function = piece.get("function") or piece.get("custom")
    named = piece.get("id") and isinstance(function, dict) and function.get("name")
    differs = bool(named and call.get("id") and call["id"] != piece["id"])
    return differs and (bool(call.get("custom")) or _is_whole(call))


def _is_whole(call: Mapping[str, Any]) -> bool:
    """Whether nothing of a call's arguments is to come."""
    try:
        return isinstance(msgspec.json.decode(call["function"]["arguments"]), dict)
    except (KeyError, TypeError, ValueError, RecursionError):
        return False


def stands(call: Mapping[str, Any]) -> bool:
    """Whether a call of an answer that broke off is whole; of what a custom tool is given nobody can tell."""
    function = call.get("function")
    if not isinstance(function, dict) or not function.get("name"):
        return False
    return not function.get("arguments") or _is_whole(call)


def _add(call: dict[str, Any], piece: dict[str, Any]) -> None:
    for name, value in piece.items():
        if name == "index":
            continue
        before = call.get(name)
        if isinstance(value, dict):
            call[name] = before if isinstance(before, dict) else {}
            _add(call[name], value)
        elif name in _PIECEMEAL and isinstance(value, str):
            call[name] = (before if isinstance(before, str) else "") + value
        elif value or name not in call:  # some say in every later piece that it has no id and no name
            call[name] = value
