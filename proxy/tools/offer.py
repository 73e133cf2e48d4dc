"""The definitions of the memory tools, and the request that offers them beside the client's own."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from filters.base import Fields

STORE: Final = "memory_store"
RECALL: Final = "memory_recall"
FORGET: Final = "memory_forget"

_NONE: Final = msgspec.Raw(b'"none"')


def _function(name: str, description: str, properties: Mapping[str, Any], *required: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": [*required]}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


TOOLS: Final[Mapping[str, Mapping[str, Any]]] = {
    STORE: _function(
        STORE,
        "Keep something about the user beyond this conversation. One fact a call, in a sentence of its own.",
        {
            "text": {"type": "string", "description": "The fact, understandable without the conversation."},
            "category": {
                "type": "string",
                "enum": ["core", "daily", "conversation"],
                "description": "core: lasting; daily: soon out of date; conversation: for this talk alone.",
            },
            "replaces": {
                "type": "string",
                "description": "What is known and no longer true because of it: its id, or its words.",
            },
        },
        "text",
    ),
    RECALL: _function(
        RECALL,
        "Look up what is known of the user from earlier conversations.",
        {"query": {"type": "string", "description": "What is to be found, in a few words."}},
        "query",
    ),
    FORGET: _function(
        FORGET,
        "Delete one thing that is known of the user, at the user's wish.",
        {"id": {"type": "string", "description": "Its id, or its words as they were told."}},
        "id",
    ),
}


class Offer(msgspec.Struct, frozen=True):
    """A request's fields with the memory tools in them, and the names of those.

    ``final_fields`` are for the last round, in which no memory tool may be called.
    """

    fields: Fields
    names: frozenset[str]
    final_fields: Fields


def offer_tools(fields: Fields, names: Sequence[str]) -> Offer | None:
    """The request with the named tools; ``None`` where it cannot have them.

    A tool of the client's that has the name of ours stays the client's. A request for several choices gets
    no tools, and neither does one with ``functions``, the form that came before tools.
    """
    theirs = _decoded(fields.get("tools"), [])
    if not isinstance(theirs, list) or "functions" in fields or _decoded(fields.get("n"), 1) != 1:
        return None
    taken = set()
    for tool in theirs:
        definition = tool.get("function") or tool.get("custom") if isinstance(tool, dict) else None
        taken.add(definition.get("name") if isinstance(definition, dict) else None)
    offered = [name for name in names if name not in taken]
    if not offered:
        return None
    tools = msgspec.Raw(msgspec.json.encode([*theirs, *(TOOLS[name] for name in offered)]))
    extended = {**fields, "tools": tools}
    # A request that requires one of its own tools gets a last round with these alone.
    required = _decoded(fields.get("tool_choice"), "auto") == "required" and theirs
    return Offer(extended, frozenset(offered), fields if required else {**extended, "tool_choice": _NONE})


def _decoded(raw: msgspec.Raw | None, default: Any) -> Any:
    if raw is None:
        return default
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return default if value is None else value
