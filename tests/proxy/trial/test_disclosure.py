import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.trial import disclosure
from proxy.upstream.providers import PROVIDERS
from tests.bodies import SECRET, conversations, fields_of


@given(conversations())
def test_a_message_shows_nothing_that_nobody_named(messages):
    marks = ("turn_id", "timestamp")  # of the wrong type: reading leaves them out
    told = [{name: value for name, value in each.items() if name not in marks} for each in messages]
    assert SECRET not in str([disclosure.shown_message(message) for message in told])


def test_a_message_shows_what_a_turn_is_told_by():
    marks = {"source": "llm", "user": "ann", "interrupted": True, "interrupt_timestamp": 1, "original": "x"}
    message = {"role": "user", "content": [{"type": "text", "text": "Hi"}], "turn_id": 1, "timestamp": 2}
    assert disclosure.shown_message({**message, "metadata": marks}) == {**message, "metadata": marks}


def test_what_is_hidden_keeps_its_name_type_and_length():
    shown = disclosure.shown_message(
        {"role": "user", "rtm_token": "abc", "metadata": {"x": [1, 2], "source": "asr"}}
    )
    assert shown["rtm_token"] == "(not shown: text of 3 characters)"
    assert shown["metadata"] == {"x": "(not shown: list of 2 items)", "source": "asr"}


@pytest.mark.parametrize("kind", PROVIDERS.values(), ids=PROVIDERS.keys())
def test_a_body_hides_what_the_configuration_alone_lets_through(kind):
    sent = fields_of({"model": "m", "my_token": SECRET, "temperature": 0.5})
    shown = disclosure.shown_body(sent, [{"role": "user", "content": "Hi", "my_mark": SECRET}], kind)
    assert SECRET not in str(shown)
    assert shown["temperature"] == sent["temperature"]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("ab", "text of 2 characters"),
        ([], "list of 0 items"),
        ({"a": 1}, "object of 1 keys"),
        (True, "truth value"),
        (1, "number"),
        (0.5, "number"),
        (None, "null"),
    ],
)
def test_a_form_tells_type_and_length(value, said):
    assert disclosure.value_shape(value) == said


@given(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_anything_has_a_form(value):
    assert disclosure.value_shape(value)
