import json

import pytest

from proxy.upstream.body import compose
from proxy.upstream.providers import PROVIDERS
from tests.bodies import fields_of, messages_of
from tests.peers.strict_openai import SDK_CALL, SDK_FIELDS, SDK_MESSAGES
from tests.peers.strict_upstream import JUDGES, judge

# An engine's request as it comes: its own marks in every message, and a session's parameters at the top.
ENGINE = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "You are Ada."},
        {"role": "developer", "content": "Speak plainly."},
        {
            "role": "assistant",
            "content": "Hello!",
            "turn_id": 0,
            "timestamp": 1,
            "metadata": {"source": "greeting"},
        },
        {
            "role": "user",
            "content": "A joke",
            "turn_id": 1,
            "timestamp": 2,
            "metadata": {"user": "u"},
            "name": "Bo",
        },
        {"role": "user", "content": "please", "turn_id": 1, "timestamp": 3},
        {"role": "system", "content": "The caller cut in."},
        {"role": "assistant", "content": "Still there?", "turn_id": 2, "metadata": {"source": "command"}},
    ],
    "max_completion_tokens": 200,
    "seed": 7,
    "temperature": 1.0,
    "stream": True,
    "stream_options": {"include_usage": True},
    "store": False,
    "metadata": {"session_id": "s"},
    "turn_id": 2,
    "interruptable": True,
    "channel": "c",
    "rtm_token": "t",
}
SHARED = {"model": "m", "temperature": 1.0, "stream": True}
USAGE = {"stream_options": {"include_usage": True}}
NEW_LIMIT = {"max_completion_tokens": 200}
OPENAI = ["system: You are Ada.", "developer: Speak plainly.", "assistant: Hello!", "user: A joke"]
ADA, BOTH = ["system: You are Ada.", "system: Speak plainly."], ["system: You are Ada.\n\nSpeak plainly."]
CUT = ["user: A joke", "user: please", "user: [system] The caller cut in.", "assistant: Still there?"]
JOINED = ["user: …", "assistant: Hello!", "user: A joke\nplease\n[system] The caller cut in."]
TOPS = {
    "openai": {**SHARED, **USAGE, **NEW_LIMIT, "seed": 7, "store": False},
    "azure": {**SHARED, **USAGE, **NEW_LIMIT, "seed": 7, "store": False},
    "any": {**SHARED, **USAGE, **NEW_LIMIT, "seed": 7, "store": False},
    "groq": {**SHARED, **USAGE, **NEW_LIMIT, "seed": 7},
    "mistral": {**SHARED, "max_tokens": 200, "random_seed": 7},
    "gemini": {**SHARED, **USAGE, "max_tokens": 200},
    "anthropic": {**SHARED, **USAGE, **NEW_LIMIT, "seed": 7},
    "vllm": {**SHARED, **USAGE, **NEW_LIMIT, "seed": 7},
    "ollama": {**SHARED, **USAGE, "max_tokens": 200, "seed": 7},
}


OPENAI += ["user: please", "system: The caller cut in.", "assistant: Still there?"]


HISTORIES = {
    "openai": OPENAI,
    "azure": OPENAI,
    "any": OPENAI,
    "groq": [*ADA, *OPENAI[2:]],
    "mistral": [*ADA, "assistant: Hello!", *CUT, "user: …"],
    "gemini": [*BOTH, "assistant: Hello!", *CUT, "user: …"],
    "anthropic": [*ADA, *JOINED, "assistant: Still there?", "user: …"],
    "vllm": [*BOTH, *JOINED, "assistant: Still there?"],
    "ollama": [*BOTH, *JOINED, "assistant: Still there?"],
}


@pytest.mark.parametrize("name", PROVIDERS)
def test_an_engine_s_request_arrives_as_each_upstream_takes_it(name):
    composed = json.loads(compose(PROVIDERS[name], fields_of(ENGINE), messages_of(ENGINE["messages"])))
    assert {key: value for key, value in composed.items() if key != "messages"} == TOPS[name]
    assert [f"{m['role']}: {m['content']}" for m in composed["messages"]] == HISTORIES[name]
    assert judge("openai" if name == "any" else name, composed) is None


@pytest.mark.parametrize("vendor", JUDGES)
def test_the_same_request_would_be_refused_as_it_came(vendor):
    assert judge(vendor, ENGINE)


@pytest.mark.parametrize("name", ["openai", "azure", "any"])
def test_every_field_that_openai_s_sdk_knows_may_pass(name):
    assert PROVIDERS[name].fields >= SDK_FIELDS - {"messages"}


def test_no_field_goes_to_openai_that_its_sdk_does_not_know():
    assert PROVIDERS["openai"].fields <= SDK_FIELDS


@pytest.mark.parametrize("name", ["openai", "azure", "any"])
def test_every_field_of_a_message_that_openai_s_sdk_knows_may_pass(name):
    assert {role: names | {"role"} for role, names in PROVIDERS[name].messages.items()} == SDK_MESSAGES
    assert PROVIDERS[name].calls == SDK_CALL


@pytest.mark.parametrize("name", PROVIDERS)
def test_no_kind_takes_what_tells_a_session_or_a_secret(name):
    assert not PROVIDERS[name].fields & {"session_id", "user_id", "channel", "call", "context", "request_id"}


@pytest.mark.parametrize(("name", "kind"), PROVIDERS.items())
def test_a_kind_renames_only_to_what_it_takes(name, kind):
    assert kind.name == name
    assert kind.fields >= set(kind.renames.values())
    assert not kind.fields & kind.renames.keys()
    assert kind.messages.keys() >= set(kind.roles.values())
    assert kind.functions == ("functions" in kind.fields) == ("function" in kind.messages)
