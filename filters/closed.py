"""Tool groups as strict models demand them: all results behind their call, and no result without one."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET

from filters.group import FUNCTION, RESULTS, Group, answered, call_id, call_ids, function_of, groups, is_call
from filters.message import Message, says_something

Unanswered = Literal["stub", "drop"]
STUB: Final = "No result: the call was not completed."


def closed(messages: Sequence[Message], stub: str | None, *, waits: bool = False) -> list[Message]:
    """The messages with tool results behind their call, in its order, and those without a call dropped.

    A call that has no result gets ``stub`` for one, or goes where that is ``None``; where it ``waits``, one
    at the very end is left alone.
    """
    found = {group.call: group for group in groups(messages)}
    last = max((i for i, m in enumerate(messages) if m.role not in RESULTS), default=None)
    results = {i for group in found.values() for i in group.results}
    told: list[Message] = []
    for i, message in enumerate(messages):
        if group := found.get(i):
            answers = _answers(messages, group)
            told += _waiting(message, answers) if waits and i == last else _whole(message, answers, stub)
        elif message.role != "tool" and i not in results:
            told.append(_without_no_calls(message))
    return told


def _answers(messages: Sequence[Message], group: Group) -> dict[Any, Message]:
    """The first result of each call that has one."""
    answers: dict[Any, Message] = {}
    for i in group.results:
        answers.setdefault(answered(messages[i]), messages[i])
    return answers


def _waiting(call: Message, answers: Mapping[Any, Message]) -> list[Message]:
    return [call, *(answers[i] for i in call_ids(call) if i in answers)]


def _whole(call: Message, answers: dict[Any, Message], stub: str | None) -> list[Message]:
    if stub is not None:
        answers = {i: _stub(call, i, stub) for i in call_ids(call)} | answers
    call = _calling_only(call, answers)
    return _waiting(call, answers) if is_call(call) or says_something(call) else []


def _stub(call: Message, answers: str, words: str) -> Message:
    if answers.startswith(FUNCTION):
        name = answers.removeprefix(FUNCTION)
        return Message(role="function", name=name, content=words, turn_id=call.turn_id)
    return Message(role="tool", tool_call_id=answers, content=words, turn_id=call.turn_id)


def _calling_only(message: Message, answers: Mapping[Any, Message]) -> Message:
    if function_of(message):
        return message if answers else _without_function(message)
    calls = message.tool_calls or []
    kept = [call for call in calls if call_id(call) in answers]
    if len(kept) == len(calls):
        return message
    return msgspec.structs.replace(message, tool_calls=kept or UNSET)


def _without_function(message: Message) -> Message:
    others = {name: value for name, value in message.others.items() if name != "function_call"}
    return msgspec.structs.replace(message, others=others)


def _without_no_calls(message: Message) -> Message:
    """A message without its empty list of tool calls, which strict models refuse."""
    return msgspec.structs.replace(message, tool_calls=UNSET) if message.tool_calls == [] else message
