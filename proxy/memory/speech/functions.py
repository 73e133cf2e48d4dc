"""OpenAI's first form of tools, ``function_call``: held as the form that replaced it, shown as it came.

A function is called one at a time, and told by its name; the call gets an id that is made of it.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET

from filters.group import FUNCTION, answered, function_of
from filters.message import Message

_KIND: Final = "function_call"


def modern(message: Message) -> Message:
    """The message as it is held: its ``function_call`` a tool call, or its result a tool's."""
    if message.role == "function":
        return msgspec.structs.replace(message, role="tool", tool_call_id=answered(message) or FUNCTION)
    function = function_of(message)
    if function is None or message.tool_calls:
        return message
    return msgspec.structs.replace(message, tool_calls=[held(function)])


def held(function: Mapping[str, Any]) -> dict[str, Any]:
    """A ``function_call`` as a tool call, which no model has made."""
    return {"id": f"{FUNCTION}{function.get('name')}", "type": _KIND, "function": {**function}}


def former(message: Message) -> Message:
    """What is held, as it was said."""
    if message.role == "tool":
        return _result(message)
    calls = message.tool_calls or ()
    called = next((call["function"] for call in calls if call.get("type") == _KIND), None)
    if called is None:
        return message
    return msgspec.structs.replace(message, tool_calls=UNSET, others={**message.others, _KIND: called})


def _result(message: Message) -> Message:
    answered = message.tool_call_id
    if not isinstance(answered, str) or not answered.startswith(FUNCTION):
        return message
    return msgspec.structs.replace(message, role="function", tool_call_id=UNSET)
