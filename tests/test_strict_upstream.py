import json

import pytest

from tests.peers.strict_upstream import JUDGES, judge

HI = {"role": "user", "content": "Hi"}


def body(message=None, **fields):
    return {"model": "m", "messages": [{**HI, **(message or {})}], **fields}


@pytest.mark.parametrize("vendor", JUDGES)
def test_a_plain_request_is_taken(vendor):
    assert judge(vendor, body()) is None


@pytest.mark.parametrize(
    ("vendor", "sent", "status", "said"),
    [
        ("groq", body({"timestamp": 1}), 400, "for 'role:user' the following must be satisfied"),
        ("groq", body({"metadata": {}}), 400, "property 'metadata' is unsupported"),
        ("groq", body({"id": "1"}), 400, "property 'id' is unsupported"),
        ("groq", body({"name": "Ann"}), 400, "property 'name' is unsupported"),
        ("groq", body({"tool_calls": None}), 400, "property 'tool_calls' is unsupported"),
        ("groq", body({"role": "assistant", "tool_calls": None}), 400, "Value is not nullable"),
        ("groq", body(store=False), 400, "property 'store' is unsupported"),
        ("groq", body(n=2), 400, "'n'"),
        ("openai", body(turn_id=1), 400, "Unrecognized request argument supplied: turn_id"),
        ("openai", body(a=1, b=1), 400, "Unrecognized request arguments supplied: a, b"),
        ("openai", body(metadata={"a": "b"}), 400, "only allowed when 'store' is enabled"),
        ("openai", body(metadata={"a": 1}, store=True), 400, "'metadata.a'"),
        (
            "openai",
            body({"id": "1"}),
            400,
            "Additional properties are not allowed ('id' was unexpected) - 'messages.0'",
        ),
        ("openai", body(max_tokens=-1), 400, "'max_tokens': integer below minimum value"),
        ("azure", body(turn_id=1), 400, "Unrecognized request argument supplied: turn_id"),
        ("gemini", body(google={}), 400, 'Unknown name \\"google\\": Cannot find field'),
        ("gemini", body({"extra_content": {}}), 400, "Unknown name \\\"extra_content\\\" at 'messages.0'"),
        ("mistral", body({"trimmed": True}), 422, '"loc": ["body", "messages", 0, "user", "trimmed"]'),
        ("mistral", body(store=False), 422, '"loc": ["body", "store"]'),
        ("mistral", body({"role": "assistant"}), 400, "Expected last role User or Tool"),
        ("mistral", body({"role": "tool", "tool_call_id": "call_1"}), 400, "must be a-z, A-Z, 0-9, with a"),
        ("cerebras", body(store=False), 422, "body.store: property 'body.store' is unsupported"),
        ("anthropic", body(n=2), 400, "n: "),
        ("anthropic", body({"role": "assistant"}), 400, "first message must use"),
        ("vllm", body({"name": "Ann"}), 400, "messages.user.name"),
    ],
)
def test_a_refusal_is_worded_as_the_vendor_words_it(vendor, sent, status, said):
    refusal = judge(vendor, sent)
    assert refusal is not None
    assert refusal.status == status
    assert said in json.dumps(refusal.body)


@pytest.mark.parametrize("vendor", ["openai", "azure", "groq", "anthropic"])
def test_a_tool_call_without_its_result_is_refused(vendor):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [HI, {"role": "assistant", "content": None, "tool_calls": [call]}, HI]
    assert judge(vendor, {"model": "m", "messages": messages}) is not None
    answered = [*messages[:2], {"role": "tool", "tool_call_id": "1", "content": "x"}, HI]
    assert judge(vendor, {"model": "m", "messages": answered}) is None
    assert judge(vendor, {"model": "m", "messages": [HI, answered[2], HI]}) is not None
