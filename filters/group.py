"""Tool groups: a call and all that answers it, which travel, are trimmed and are summarised as one."""

from bisect import bisect_left
from collections.abc import Collection, Sequence
from typing import Any, Final

import msgspec

from filters.message import Message

FUNCTION: Final = "function:"
"""What stands before a function's name where that is the id of its call: the form of before 2023 has none."""
RESULTS: Final = ("tool", "function")


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
