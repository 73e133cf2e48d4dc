import pytest
from pydantic import ValidationError

from filters.base import Context
from filters.drop_messages import DropMessages
from tests.conversations import messages_of


def left(told, **options):
    return list(DropMessages(**options).apply(messages_of(told), Context(now=0.0)))


def a_message(role, text, source=None):
    return {"role": role, "content": text, **({"metadata": {"source": source}} if source else {})}


CALL = {"role": "assistant", "tool_calls": [{"id": "a"}], "metadata": {"source": "llm"}}
RESULT = {"role": "tool", "tool_call_id": "a", "content": "done", "metadata": {"source": "tools"}}


def test_a_step_that_can_do_nothing_is_a_fault():
    with pytest.raises(ValidationError, match="'sources', 'roles' or both"):
        DropMessages()


def test_a_role_that_nobody_has_is_a_fault():
    with pytest.raises(ValidationError, match="'assistant'"):
        DropMessages(roles=["bot"])


def test_messages_are_handed_on_as_they_are_when_none_matches():
    told = messages_of([a_message("user", "Hi", "asr")])
    assert DropMessages(sources=["silence"]).apply(told, Context(now=0.0)) is told


def test_a_message_goes_when_every_condition_holds():
    told = [
        a_message("user", "a", "command"),
        a_message("assistant", "b", "command"),
        a_message("user", "c", "asr"),
    ]
    assert left(told, roles=["assistant"], sources=["command"]) == messages_of([told[0], told[2]])


def test_a_message_of_unknown_source_matches_no_source():
    told = [
        a_message("assistant", "a"),
        {"role": "assistant", "content": "b", "metadata": {"source": ["llm"]}},
    ]
    assert left(told, sources=["llm"]) == messages_of(told)


def test_the_newest_message_of_the_user_stays():
    told = [a_message("user", "a"), a_message("user", "b"), a_message("assistant", "c")]
    assert left(told, roles=["user", "assistant"]) == messages_of([told[1]])


def test_everything_can_go_where_the_user_is_silent():
    assert left([a_message("assistant", "a", "silence")], sources=["silence"]) == []


def test_results_go_with_their_call():
    assert left([CALL, a_message("user", "Hi"), RESULT], sources=["llm"]) == messages_of(
        [a_message("user", "Hi")]
    )


@pytest.mark.parametrize("options", [{"sources": ["tools"]}, {"roles": ["tool"]}])
def test_results_stay_with_their_call(options):
    assert left([CALL, RESULT], **options) == messages_of([CALL, RESULT])


def test_a_result_without_a_call_may_go():
    assert left([RESULT], roles=["tool"]) == []


def test_system_messages_go_when_asked_for():
    assert left([a_message("system", "a"), a_message("user", "b")], roles=["system"]) == messages_of(
        [a_message("user", "b")]
    )
