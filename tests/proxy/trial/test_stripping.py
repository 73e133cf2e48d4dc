import json

import pytest

from proxy.trial.disclosure import stripped_fields
from proxy.trial.explain import message_dict
from proxy.upstream.body import compose
from proxy.upstream.providers import PROVIDERS
from tests.bodies import fields_of, messages_of

HI = {"role": "user", "content": "Hi"}


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
            ("rtm_token", "not on the list of openai", "text of 3 characters", 1),
        ),
        ("openai", {"max_tokens": -1}, ("max_tokens", "a limit that is none", "number", 1)),
        ("openai", {"max_tokens": 0}, ("max_tokens", "a limit that is none", "number", 1)),
        (
            "openai",
            {"maxTokens": 5, "max_tokens": 6},
            ("maxTokens", "not on the list of openai", "number", 1),
        ),
        ("openai", {"maxTokens": 5}, ("maxTokens", "sent as max_tokens", "number", 1)),
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
        ("groq", {"metadata": {}}, ("metadata", "not on the list of groq", "object of 0 keys", 1)),
    ],
)
def test_a_field_that_is_lost_is_told_with_the_reason(kind, body, told):
    assert lost(kind, body) == [told]


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
