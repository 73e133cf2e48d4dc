"""Tool groups: a call and its results, which are moved, trimmed and completed as one."""

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET

from filters.message import Message, says_something

FUNCTION: Final = "function:"
"""What stands before a function's name where that is the id of its call: the form of before 2023 has none."""
RESULTS: Final = ("tool", "function")
Unanswered = Literal["stub", "drop"]
STUB: Final = "No result: the call was not completed."


class Group(msgspec.Struct, frozen=True):
    """An assistant message that calls tools, or a function, and every message that answers it, by position.

    ``results`` are in the order in which they stand, second answers to one call included. ``unanswered``
    holds the calls' ids that have no result yet.
    """

    call: int
    results: tuple[int, ...]
    unanswered: tuple[str, ...]

    @property
    def open(self) -> bool:
        """Whether a result is still missing; an open group is never cut."""
        return bool(self.unanswered)


def groups(messages: Sequence[Message]) -> tuple[Group, ...]:
    """The tool groups, in the order of their calls, however far apart their messages stand.

    Engines count call ids anew (``call_0`` in every turn), so a result belongs to the nearest call before
    it that bears its id; only where none stands before it, to the first one after it.
    """
    calls = {i: call_ids(m) for i, m in enumerate(messages) if m.role == "assistant" and is_call(m)}
    if not calls:
        return ()
    results = _results(messages, calls)
    return tuple(_group(messages, call, ids, results[call]) for call, ids in calls.items())


def call_ids(message: Message) -> tuple[str, ...]:
    """The ids of the tool calls that a message makes, each once."""
    if function := function_of(message):
        return (f"{FUNCTION}{function.get('name')}",)
    ids = (call_id(call) for call in message.tool_calls or ())
    return tuple(dict.fromkeys(i for i in ids if i is not None))


def is_call(message: Message) -> bool:
    """Whether a message calls anything."""
    return bool(message.tool_calls) or bool(message.others and function_of(message))


def function_of(message: Message) -> dict[str, Any] | None:
    """The function that an assistant's message calls in the form of before 2023; ``None`` for all others."""
    function = message.others.get("function_call")
    return function if isinstance(function, dict) and message.role == "assistant" else None


def answered(message: Message) -> str | None:
    """The id of the call that a message is the result of; ``None`` where it is none's."""
    if message.role == "function":
        return FUNCTION + message.name if isinstance(message.name, str) else None
    wanted = message.tool_call_id if message.role == "tool" else None
    return wanted if isinstance(wanted, str) else None


def call_id(call: dict[str, Any]) -> str | None:
    """The id of one entry of ``tool_calls``; ``None`` for a call that nothing can answer."""
    value = call.get("id")
    return value if isinstance(value, str) else None


def with_results(messages: Sequence[Message], chosen: Collection[int]) -> set[int]:
    """The chosen positions with tool groups whole: results go where their call goes, whatever was chosen.

    A result that answers no call is chosen or not on its own.
    """
    whole = set(chosen)
    for group in groups(messages) if whole else ():
        (whole.update if group.call in whole else whole.difference_update)(group.results)
    return whole


def _results(messages: Sequence[Message], calls: dict[int, tuple[str, ...]]) -> dict[int, list[int]]:
    asked: dict[object, list[int]] = {}
    for call, ids in calls.items():
        for i in ids:
            asked.setdefault(i, []).append(call)
    results: dict[int, list[int]] = {call: [] for call in calls}
    for position, message in enumerate(messages):
        if message.role in RESULTS and (askers := asked.get(answered(message))):
            results[_asker(askers, position)].append(position)
    return results


def _asker(calls: list[int], result: int) -> int:
    before = bisect_left(calls, result)
    return calls[before - 1] if before else calls[0]


def _group(messages: Sequence[Message], call: int, ids: tuple[str, ...], results: list[int]) -> Group:
    told = {answered(messages[i]) for i in results}
    return Group(call, tuple(results), tuple(i for i in ids if i not in told))


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
