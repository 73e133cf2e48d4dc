import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from filters.base import Context
from filters.injection import Injected
from filters.user_context import UserContext
from tests.conversations import message_of


def a_message(content="Hi", role="user", **fields):
    return message_of({"role": role, "content": content, **fields})


def shown(message, **options):
    (result,) = UserContext(**options).apply([message], Context(now=0.0))
    return result.content


def by(user):
    return a_message(metadata={"user": user, "source": "asr"})


def test_every_name_can_be_told():
    message = a_message(name="ann", turn_id=0, metadata={"user": "u1", "source": "asr"})
    template = "{user}|{source}|{name}|{turn_id}|{role}: {{}} "
    assert shown(message, template=template) == "u1|asr|ann|0|user: {} Hi"


@pytest.mark.parametrize("metadata", [None, {}, {"user": None}, {"user": 7}, {"user": ""}, {"user": " \n"}])
def test_a_message_that_lacks_a_value_passes_or_gets_another(metadata):
    message = a_message(metadata=metadata)
    assert UserContext().apply([message], Context(now=0.0)) == [message]
    assert shown(message, otherwise={"user": "someone"}) == "someone: Hi"


def test_what_memory_tells_was_said_by_nobody():
    notes = Injected(role="user", content="<facts>")
    assert shown(notes, otherwise={"user": "someone"}) == "<facts>"


def test_messages_are_handed_on_as_they_are_when_nothing_is_known():
    messages = [a_message()]
    assert UserContext().apply(messages, Context(now=0.0)) is messages


def test_speakers_are_told_apart():
    told = UserContext().apply([by("ann"), by("bob"), by("ann")], Context(now=0.0))
    assert [m.content for m in told] == ["ann: Hi", "bob: Hi", "ann: Hi"]


@pytest.mark.parametrize(
    "user", ["a\nb", "a\r\n\tb", "a\u2028b", "a\x00b", "a\u202eb", "\x1ba b\x7f", "a\ud800b"]
)
def test_a_value_is_one_line_without_control_characters(user):
    assert shown(by(user)) == "a b: Hi"


@given(user=st.text())
def test_no_value_can_begin_a_line(user):
    prefix = shown(by(user), otherwise={"user": "someone"}).removesuffix("Hi")
    assert prefix.isprintable()
    assert len(prefix) <= 64 + len(": ")


def test_a_value_is_cut():
    assert shown(by("x" * 100)) == "x" * 64 + ": Hi"
    assert shown(by("abc def"), max_length=4) == "abc: Hi"


def test_braces_in_a_value_are_words():
    assert shown(by("{user} {0} }")) == "{user} {0} }: Hi"


def test_roles_say_whose():
    answer = a_message(role="assistant", metadata={"source": "llm"})
    assert shown(answer, template="({source}) ") == "Hi"
    assert shown(answer, template="({source}) ", roles=["assistant"]) == "(llm) Hi"


@pytest.mark.parametrize("content", [None, "", []])
def test_what_has_no_words_gets_no_prefix(content):
    assert shown(a_message(content, metadata={"user": "ann"})) == content


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"template": "user: "}, "contains no name"),
        (
            {"template": "{speaker}: "},
            "{speaker} is not a name .* {user}, {name}, {source}, {turn_id}, {role}",
        ),
        ({"template": "{user.__class__}: "}, "is not a name"),
        ({"template": "{user[0]}: "}, "is not a name"),
        ({"template": "{user!r}: "}, "stand alone"),
        ({"template": "{user:9}: "}, "stand alone"),
        ({"template": "{user: "}, "unpaired brace"),
        ({"otherwise": {"name": "x"}}, "{name}, which the template does not contain"),
        ({"otherwise": {"speaker": "x"}}, "'user', 'name'"),
        ({"max_length": 0}, "greater than or equal to 1"),
        ({"roles": []}, "at least 1 item"),
    ],
)
def test_a_setting_that_cannot_work_is_a_fault(options, fault):
    with pytest.raises(ValidationError, match=fault):
        UserContext(**options)
