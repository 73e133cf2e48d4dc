"""OpenAI's first form of tools, ``functions``, as the form that replaced it in 2023."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw

from filters.message import Message

_functions = msgspec.json.Decoder(list[Raw]).decode


def tool_list(functions: Raw) -> list[dict[str, Any]]:
    """``functions`` as ``tools``; empty when it is no list."""
    try:
        return [{"type": "function", "function": function} for function in _functions(functions)]
    except msgspec.ValidationError:
        return []


def tool_choice(function_call: Raw) -> Any:
    """``function_call`` as ``tool_choice``; ``None`` when it says nothing known."""
    try:
        choice = msgspec.json.decode(function_call)
    except msgspec.DecodeError:  # a number beyond all that a machine counts with
        return None
    if isinstance(choice, dict) and "name" in choice:
        return {"type": "function", "function": {"name": choice["name"]}}
    return choice if choice in ("auto", "none") else None


def with_tool_calls(messages: Sequence[Message]) -> Sequence[Message]:
    """The same conversation with each ``function_call`` a tool call, and its result a tool's."""
    if not any(message.role == "function" or "function_call" in message.others for message in messages):
        return messages
    modern, call = [], ""
    for place, message in enumerate(messages):
        if message.role == "assistant" and isinstance(message.others.get("function_call"), dict):
            # Nine letters and digits: the one form of an id that every Mistral model has taken.
            call = f"call{place:05d}"
        modern.append(_modern(message, call))
    return modern


def _modern(message: Message, call: str) -> Message:
    if message.role == "function":
        return msgspec.structs.replace(message, role="tool", tool_call_id=call)
    function = message.others.get("function_call")
    if message.role != "assistant" or not isinstance(function, dict):
        return message
    others = {name: value for name, value in message.others.items() if name != "function_call"}
    entry = {"id": call, "type": "function", "function": function}
    return msgspec.structs.replace(message, tool_calls=[entry], others=others)
