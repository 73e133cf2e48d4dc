"""Tool groups as strict models demand them: all results behind their call, and no result without one."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET

from filters.group import Group, call_id, call_ids, groups
from filters.message import Message, says_something

Unanswered = Literal["stub", "drop"]
STUB: Final = "No result: the call was not completed."


def closed(messages: Sequence[Message], stub: str | None, *, waits: bool = False) -> list[Message]:
    """The messages with tool results behind their call, in its order, and those without a call dropped.

    A call that has no result gets ``stub`` for one, or goes where that is ``None``; where it ``waits``, one
    at the very end is left alone.
    """
    found = {group.call: group for group in groups(messages)}
    last = max((i for i, m in enumerate(messages) if m.role != "tool"), default=None)
    told: list[Message] = []
    for i, message in enumerate(messages):
        if group := found.get(i):
            answers = _answers(messages, group)
            told += _waiting(message, answers) if waits and i == last else _whole(message, answers, stub)
        elif message.role != "tool":
            told.append(_without_no_calls(message))
    return told


def _answers(messages: Sequence[Message], group: Group) -> dict[Any, Message]:
    """The first result of each call that has one."""
    answers: dict[Any, Message] = {}
    for i in group.results:
        answers.setdefault(messages[i].tool_call_id, messages[i])
    return answers


def _waiting(call: Message, answers: Mapping[Any, Message]) -> list[Message]:
    return [call, *(answers[i] for i in call_ids(call) if i in answers)]


def _whole(call: Message, answers: dict[Any, Message], stub: str | None) -> list[Message]:
    if stub is not None:
        answers = {i: _stub(call, i, stub) for i in call_ids(call)} | answers
    call = _calling_only(call, answers)
    return _waiting(call, answers) if call.tool_calls or says_something(call) else []


def _stub(call: Message, answers: str, words: str) -> Message:
    return Message(role="tool", tool_call_id=answers, content=words, turn_id=call.turn_id)


def _calling_only(message: Message, answered: Mapping[Any, Message]) -> Message:
    calls = message.tool_calls or []
    kept = [call for call in calls if call_id(call) in answered]
    if len(kept) == len(calls):
        return message
    return msgspec.structs.replace(message, tool_calls=kept or UNSET)


def _without_no_calls(message: Message) -> Message:
    """A message without its empty list of tool calls, which strict models refuse."""
    return msgspec.structs.replace(message, tool_calls=UNSET) if message.tool_calls == [] else message
