"""Tool groups: a call and its results, which are moved, trimmed and completed as one."""

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET

from filters.message import Message, says_something

FUNCTION: Final = "function:"
"""The prefix of the ids given to calls in the old form, which has no ids; the function's name follows."""
FUNCTION_CALL: Final = "function_call"
"""The field of a call in the old form, and the type of the tool call that replaces it."""
RESULTS: Final = ("tool", "function")
Unanswered = Literal["stub", "drop"]
STUB: Final = "No result: the call was not completed."


class Group(msgspec.Struct, frozen=True):
    """The positions of an assistant message with tool calls, or a function call, and of all its results.

    ``results`` are in the order of the messages, with repeated results of one call. ``unanswered`` are the
    ids of calls without a result.
    """

    call: int
    results: tuple[int, ...]
    unanswered: tuple[str, ...]

    @property
    def open(self) -> bool:
        """Whether a result is missing; an open group is never cut."""
        return bool(self.unanswered)


def groups(messages: Sequence[Message]) -> tuple[Group, ...]:
    """Returns the tool groups, in the order of their calls; a result may be anywhere in the conversation.

    Voice platforms reuse call ids (``call_0`` in every turn), so that a result belongs to the nearest call
    with its id before it, or else to the first one after it.
    """
    ids = {i: call_ids(m) for i, m in enumerate(messages) if m.role == "assistant" and is_call(m)}
    if not ids:
        return ()
    calls_by_id: dict[object, list[int]] = {}
    for call, names in ids.items():
        for call_name in names:
            calls_by_id.setdefault(call_name, []).append(call)
    results: dict[int, list[int]] = {call: [] for call in ids}
    for i, message in enumerate(messages):
        if message.role in RESULTS and (calls := calls_by_id.get(answered_call(message))):
            before = bisect_left(calls, i)
            results[calls[before - 1] if before else calls[0]].append(i)
    tool_groups = []
    for call, positions in results.items():
        answers = {answered_call(messages[i]) for i in positions}
        unanswered = tuple(name for name in ids[call] if name not in answers)
        tool_groups.append(Group(call, tuple(positions), unanswered))
    return tuple(tool_groups)


def call_ids(message: Message) -> tuple[str, ...]:
    """Returns the ids of a message's tool calls or function call, without repeats."""
    if function := function_of(message):
        return (f"{FUNCTION}{function.get('name')}",)
    ids = (call_id(call) for call in message.tool_calls or ())
    return tuple(dict.fromkeys(i for i in ids if i is not None))


def is_call(message: Message) -> bool:
    """Whether a message has tool calls, or a function call."""
    return bool(message.tool_calls) or bool(message.others and function_of(message))


def function_of(message: Message) -> dict[str, Any] | None:
    """Returns the ``function_call`` of an assistant message, the form before tools; ``None`` without one."""
    function = message.others.get(FUNCTION_CALL)
    return function if isinstance(function, dict) and message.role == "assistant" else None


def answered_call(message: Message) -> str | None:
    """Returns the id of the call whose result a message is; ``None`` for all other messages."""
    if message.role == "function":
        return FUNCTION + message.name if isinstance(message.name, str) else None
    wanted = message.tool_call_id if message.role == "tool" else None
    return wanted if isinstance(wanted, str) else None


def tool_call_of(function: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the tool call that replaces a ``function_call``; models send no call of its type."""
    return {"id": f"{FUNCTION}{function.get('name')}", "type": FUNCTION_CALL, "function": {**function}}


def call_id(call: dict[str, Any]) -> str | None:
    """Returns the id of an entry of ``tool_calls``; ``None`` for one without id, which can have no result."""
    value = call.get("id")
    return value if isinstance(value, str) else None


def with_results(messages: Sequence[Message], chosen: Collection[int]) -> set[int]:
    """Returns the chosen positions with whole tool groups: results are in the set exactly if their call is.

    A result without a call stays as chosen.
    """
    whole = set(chosen)
    for group in groups(messages) if whole else ():
        (whole.update if group.call in whole else whole.difference_update)(group.results)
    return whole


def close_groups(messages: Sequence[Message], stub: str | None, *, waits: bool = False) -> list[Message]:
    """Returns the messages with tool results moved after their call, in its order, and others removed.

    A call without a result gets ``stub`` as its result, or is removed if that is ``None``. With ``waits``, a
    call at the end of the conversation keeps waiting for its results.
    """
    by_call = {group.call: group for group in groups(messages)}
    results = {i for group in by_call.values() for i in group.results}
    last = next((i for i in reversed(range(len(messages))) if messages[i].role not in RESULTS), None)
    whole: list[Message] = []
    for i, message in enumerate(messages):
        if group := by_call.get(i):
            answers: dict[str | None, Message] = {}
            for result in group.results:
                answers.setdefault(answered_call(messages[result]), messages[result])
            if not (waits and i == last):
                if stub is not None:
                    for name in call_ids(message):
                        answers.setdefault(name, _stub(message, name, stub))
                message = _with_answered_calls(message, answers)  # noqa: PLW2901
                if not (is_call(message) or says_something(message)):
                    continue
            whole += [message, *(answers[name] for name in call_ids(message) if name in answers)]
        elif message.role != "tool" and i not in results:
            # Strict models refuse an empty list of calls.
            empty = message.tool_calls == []
            whole.append(msgspec.structs.replace(message, tool_calls=UNSET) if empty else message)
    return whole


def _stub(call: Message, name: str, words: str) -> Message:
    """Returns a result for a call without one."""
    if name.startswith(FUNCTION):
        function = name.removeprefix(FUNCTION)
        return Message(role="function", name=function, content=words, turn_id=call.turn_id)
    return Message(role="tool", tool_call_id=name, content=words, turn_id=call.turn_id)


def _with_answered_calls(message: Message, answers: Mapping[str | None, Message]) -> Message:
    """Returns a message without those of its calls that have no result."""
    if function_of(message):
        if answers:
            return message
        others = {name: value for name, value in message.others.items() if name != FUNCTION_CALL}
        return msgspec.structs.replace(message, others=others)
    calls = message.tool_calls or []
    answered = [call for call in calls if call_id(call) in answers]
    if len(answered) == len(calls):
        return message
    return msgspec.structs.replace(message, tool_calls=answered or UNSET)
