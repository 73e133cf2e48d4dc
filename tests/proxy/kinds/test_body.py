import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from proxy.upstream.body import compose
from proxy.upstream.providers import PROVIDERS
from tests.bodies import SECRET, TAKEN, bodies, conversations, encoded, fields_of, json_values, messages_of
from tests.composed import every_kind, sent
from tests.peers.strict_openai import SDK_MESSAGES
from tests.peers.strict_upstream import judge

JUDGED = [(name, "openai" if name == "any" else name) for name in PROVIDERS] + [("groq", "cerebras")]


@pytest.mark.parametrize(("name", "vendor"), JUDGED)
@given(body=bodies(), messages=conversations())
def test_no_upstream_sees_or_refuses_what_an_engine_merged_in(name, vendor, body, messages):
    composed = compose(PROVIDERS[name], fields_of(body), messages_of(messages))
    assert SECRET.encode() not in composed
    assert judge(vendor, json.loads(composed)) is None


@pytest.mark.parametrize(
    ("name", "vendor"), [pair for pair in JUDGED if pair[1] not in ("vllm", "ollama", "anthropic")]
)
def test_a_strict_upstream_refuses_the_engine_s_own_body(name, vendor):
    assert judge(vendor, {"model": "m", "messages": [{"role": "user", "content": "Hi", "turn_id": 1}]})
    assert judge(vendor, {"model": "m", "turn_id": 1, "messages": [{"role": "user", "content": "Hi"}]})


exact = st.dictionaries(
    st.sampled_from(sorted(TAKEN.keys() - {"metadata", "max_tokens", "max_completion_tokens"})), json_values()
)
limits = st.fixed_dictionaries({}, optional={"max_tokens": st.none() | st.integers(1) | st.just(0.5)})


@st.composite
def sdk_messages(draw: st.DrawFn) -> list[dict[str, Any]]:
    roles = draw(st.lists(st.sampled_from(sorted(SDK_MESSAGES)), max_size=4))
    return [{"role": role, **draw(_values_of(role))} for role in roles]


def _values_of(role: str) -> st.SearchStrategy[dict[str, Any]]:
    texts = st.none() | st.text()
    parts = st.lists(st.dictionaries(st.text(), json_values(), max_size=3), max_size=2)
    call = {"id": st.text(), "type": st.just("function")}
    function = st.fixed_dictionaries({"name": st.text(), "arguments": st.text()})
    calls = st.lists(st.fixed_dictionaries({**call, "function": function}), max_size=2)
    special = {
        "content": texts | parts,
        "tool_calls": st.none() | calls,
        "function_call": st.none() | function,
        "audio": st.none() | st.fixed_dictionaries({"id": st.text()}),
    }
    keys = SDK_MESSAGES[role] - {"role"}
    return st.fixed_dictionaries({}, optional={key: special.get(key, texts) for key in sorted(keys)})


@given(fields=exact, limit=limits, messages=sdk_messages(), extra=json_values())
def test_openai_gets_the_client_s_body_less_the_extension_fields(fields, limit, messages, extra):
    body = {"x_extra": extra, **fields, **limit, "turn_id": extra}
    extended = [{**message, "timestamp": 1, "x_extra": extra} for message in messages]
    composed = compose(PROVIDERS["openai"], fields_of(body), messages_of(extended))
    assert repr(json.loads(composed)) == repr({**fields, **limit, "messages": _as_sent(messages)})


def _as_sent(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With the keys in the order in which the proxy writes them, which JSON leaves open."""
    order = ["role", "content", "name", "tool_calls", "tool_call_id"]
    return [
        {
            key: message[key]
            for key in [*order, *(key for key in message if key not in order)]
            if key in message
        }
        for message in messages
    ]


def test_numbers_keep_the_form_in_which_the_client_wrote_them():
    fields = {
        "seed": Raw(b"123456789012345678901234567890"),
        "temperature": Raw(b"1.0"),
        "top_p": Raw(b"1e-1"),
    }
    expected = b'{"seed":123456789012345678901234567890,"temperature":1.0,"top_p":1e-1,"messages":[]}'
    assert compose(PROVIDERS["openai"], fields, []) == expected


@every_kind
@given(body=bodies(), messages=conversations(least=0))
def test_composing_changes_nothing_it_was_given(kind, body, messages):
    fields, values = fields_of(body), messages_of(messages)
    before = dict(fields), encoded(values)
    compose(kind, fields, values, model="other", allow=frozenset({"metadata"}))
    assert (fields, encoded(values)) == before


@every_kind
@given(messages=conversations())
def test_a_tool_call_travels_with_its_results_and_with_nothing_else(kind, messages):
    composed = json.loads(compose(kind, {}, messages_of(messages)))["messages"]
    assert _groups(composed) == _groups(messages)


def _groups(messages: list[dict[str, Any]]) -> list[tuple[Any, list[Any]]]:
    groups = []
    for i, message in enumerate(messages):
        if calls := message.get("tool_calls"):
            results = messages[i + 1 : i + 1 + len(calls)]
            ids = [(call["id"], call["function"]["name"]) for call in calls]
            groups.append((message["content"], [*ids, *((r["tool_call_id"], r["content"]) for r in results)]))
    return groups


@every_kind
def test_no_messages_are_no_fault_of_ours(kind):
    assert json.loads(compose(kind, {}, []))["messages"] == []


@every_kind
def test_a_model_of_the_pipeline_stands_in_the_client_s_place(kind):
    assert list(sent(kind, {"model": "theirs", "stream": True}, model='ours"')) == [
        "model",
        "stream",
        "messages",
    ]
    assert sent(kind, {"model": "theirs"}, model='ours"')["model"] == 'ours"'
    assert sent(kind, {}, model="ours")["model"] == "ours"


@every_kind
@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "maxTokens"])
@pytest.mark.parametrize("limit", [-1, 0, -0.5, 0.0])
def test_a_limit_that_is_none_is_not_sent(kind, name, limit):
    assert sent(kind, {name: limit}).keys() == {"messages"}


@every_kind
def test_a_limit_in_camel_case_counts_where_none_is_written_properly(kind):
    assert sent(kind, {"maxTokens": 9})["max_tokens"] == 9
    assert sent(kind, {"maxTokens": 9, "max_tokens": -1})["max_tokens"] == 9
    assert sent(kind, {"maxTokens": 9, "max_tokens": 5})["max_tokens"] == 5


@pytest.mark.parametrize(
    ("name", "limit"),
    [("openai", "max_completion_tokens"), ("mistral", "max_tokens"), ("gemini", "max_tokens")],
)
def test_the_newer_limit_is_said_in_the_upstream_s_word(name, limit):
    assert sent(PROVIDERS[name], {"max_completion_tokens": 9}) == {
        limit: 9,
        "messages": [{"role": "user", "content": "Hello"}],
    }


def test_a_seed_is_said_in_mistral_s_word():
    assert sent(PROVIDERS["mistral"], {"seed": 3})["random_seed"] == 3
