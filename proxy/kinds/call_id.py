"""Ids of tool calls, for an upstream that takes its own form of them alone."""

import hashlib
import re
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from filters.message import Message

_NINE = re.compile("[a-zA-Z0-9]{9}")


def with_nine(messages: Sequence[Message]) -> Sequence[Message]:
    """The same conversation with nine letters and digits for each call's id; one id stays one id."""
    return [_with_nine(message) for message in messages]


def _with_nine(message: Message) -> Message:
    if isinstance(message.tool_call_id, str):
        message = replace(message, tool_call_id=_nine(message.tool_call_id))
    if message.tool_calls:
        message = replace(message, tool_calls=[_called(call) for call in message.tool_calls])
    return message


def _called(call: dict[str, Any]) -> dict[str, Any]:
    name = call.get("id")
    return {**call, "id": _nine(name)} if isinstance(name, str) else call


def _nine(name: str) -> str:
    return name if _NINE.fullmatch(name) else hashlib.blake2b(name.encode()).hexdigest()[:9]
