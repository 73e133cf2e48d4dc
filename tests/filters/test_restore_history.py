"""Restored messages have the form that strict models require."""

import pytest
from hypothesis import given
from pydantic import ValidationError

from filters.base import Context, Snapshot
from filters.restore_history import RestoreHistory
from tests.conversations import conversations, messages_of
from tests.peers.strict_openai import tool_pairs

STUB = "No result: the call was not completed."


def restored(dropped, *window, **options):
    context = Context(now=0.0, memory=Snapshot(dropped=tuple(messages_of(dropped))))
    return list(RestoreHistory(**options).apply(messages_of(window), context))


def user(text="Go on"):
    return {"role": "user", "content": text}


def call(*ids, **fields):
    calls = [{"id": i, "type": "function", "function": {"name": "look", "arguments": "{}"}} for i in ids]
    return {"role": "assistant", "tool_calls": calls, **fields}


def result(answers, content="done"):
    return {"role": "tool", "tool_call_id": answers, "content": content}


def test_a_call_without_a_result_comes_back_with_one():
    dropped = [user("Look"), call("a", "b"), result("b"), user("Wait")]
    shown = restored(dropped, user())
    assert shown == messages_of(
        [user("Look"), call("a", "b"), result("a", STUB), result("b"), user("Wait"), user()]
    )


def test_a_call_that_comes_back_last_waits_for_nobody():
    assert restored([call("a")], user()) == messages_of([call("a"), result("a", STUB), user()])


def test_the_wording_of_a_missing_result_is_an_option():
    assert restored([call("a")], user(), stub="{lost}")[1].content == "{lost}"
    with pytest.raises(ValidationError, match="stub"):
        RestoreHistory(stub="")


def test_calls_without_results_can_go_and_leave_the_words():
    shown = restored([call("a", content="Let me see"), call("b")], user(), unanswered="drop")
    assert shown == messages_of([{"role": "assistant", "content": "Let me see"}, user()])


def test_a_result_that_came_late_comes_back_behind_its_call():
    dropped = [call("a"), user("Wait"), result("a"), {"role": "assistant", "content": "Done."}]
    assert restored(dropped, user()) == messages_of([dropped[0], dropped[2], dropped[1], dropped[3], user()])


def test_the_window_keeps_its_own_call_of_the_same_id():
    window = [user(), call("a"), result("a", "new")]
    assert restored([call("a")], *window) == messages_of([call("a"), result("a", STUB), *window])


@given(told=conversations())
def test_whatever_comes_back_has_its_results(told):
    context = Context(now=0.0, memory=Snapshot(dropped=tuple(told)))
    shown = RestoreHistory().apply(messages_of([user()]), context)
    body = [_wire(message) for message in shown if not _is_odd(message)]
    assert tool_pairs({"messages": body}) is None


def _wire(message):
    return {
        "role": message.role,
        "tool_calls": message.tool_calls or None,
        "tool_call_id": message.tool_call_id or None,
    }


def _is_odd(message):
    """Whether a message other than an assistant's has a tool call."""
    return message.role != "assistant" and bool(message.tool_calls)
