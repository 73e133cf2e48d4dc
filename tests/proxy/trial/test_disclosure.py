import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.trial import disclosure
from proxy.trial.disclosure import stripped_fields
from proxy.trial.explain import message_dict
from proxy.upstream.body import compose
from proxy.upstream.providers import PROVIDERS
from tests.bodies import SECRET, conversations, fields_of, messages_of

HI = {"role": "user", "content": "Hi"}


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
        (True, "boolean"),
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


def lost(kind, body, messages=(HI,)):
    fields, told = fields_of({"model": "m", **body}), messages_of(list(messages))
    sent = json.loads(compose(PROVIDERS[kind], fields, told))
    return [
        (each.name, each.why, each.form, each.count)
        for each in stripped_fields(fields, list(map(message_dict, told)), sent, PROVIDERS[kind])
    ]


def test_what_goes_on_as_it_is_is_not_told():
    assert lost("openai", {"temperature": 1, "max_tokens": 5}) == []


@pytest.mark.parametrize(
    ("kind", "body", "told"),
    [
        (
            "openai",
            {"rtm_token": "abc"},
            ("rtm_token", "not a field that OpenAI takes", "text of 3 characters", 1),
        ),
        ("openai", {"max_tokens": -1}, ("max_tokens", "a limit that is none", "number", 1)),
        ("openai", {"max_tokens": 0}, ("max_tokens", "a limit that is none", "number", 1)),
        (
            "openai",
            {"maxTokens": 5, "max_tokens": 6},
            ("maxTokens", "not a field that OpenAI takes", "number", 1),
        ),
        ("openai", {"maxTokens": 5}, ("maxTokens", "sent as max_tokens", "number", 1)),
        (
            "openai",
            {"user_id": "ann"},
            ("user_id", "not a field that OpenAI takes", "text of 3 characters", 1),
        ),
        ("mistral", {"seed": 5}, ("seed", "sent as random_seed", "number", 1)),
        (
            "mistral",
            {"functions": []},
            ("functions", "sent as tools, or already there as tools", "list of 0 items", 1),
        ),
        (
            "openai",
            {"metadata": {"a": "b"}},
            ("metadata", "taken only together with store, as short texts", "object of 1 keys", 1),
        ),
        (
            "openai",
            {"metadata": {"a": "b", "n": 1}, "store": True},
            ("metadata", "only short texts, and no names of ours, may be stored", None, 1),
        ),
        ("groq", {"metadata": {}}, ("metadata", "not a field that Groq takes", "object of 0 keys", 1)),
    ],
)
def test_a_field_that_is_lost_is_told_with_the_reason(kind, body, told):
    assert lost(kind, body) == [told]


@pytest.mark.parametrize(
    ("kind", "why"), [("openai", "sent as user"), ("gemini", "not a field that Gemini takes")]
)
def test_the_user_of_elevenlabs_is_told_to_go_on_where_it_does(kind, why):
    body = {"user_id": "ann", "elevenlabs_extra_body": {}}
    assert ("user_id", why, "text of 3 characters", 1) in lost(kind, body)


def test_fields_of_messages_are_counted():
    calls = [{"id": "c", "type": "function", "x": 1, "function": {"name": "f", "arguments": "{}", "y": 1}}]
    messages = [{**HI, "turn_id": 1}, {**HI, "turn_id": 2}, {"role": "assistant", "tool_calls": calls}]
    assert [(name, count) for name, _, _, count in lost("openai", {}, messages)] == [
        ("messages[].turn_id", 2),
        ("messages[].tool_calls[].x", 1),
        ("messages[].tool_calls[].function.y", 1),
    ]


def test_what_becomes_of_roles_and_places_is_told():
    messages = [{"role": "developer", "content": "a"}, HI, {"role": "system", "content": "b"}]
    assert lost("mistral", {}, messages) == [
        ("messages[].role developer", "sent as system", None, 1),
        ("messages[].role system", "joined to the first, or sent as the user's", None, 1),
    ]
    assert lost("anthropic", {}, [HI, HI]) == [
        ("messages", "sent as 1, in the order that anthropic takes", None, 2)
    ]
