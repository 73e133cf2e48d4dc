import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from filters.message import Message
from proxy.upstream.body import OWN_KEYS, compose
from proxy.upstream.providers import PROVIDERS
from tests.bodies import SECRET, TAKEN, bodies, conversations, encoded, fields_of, json_values, messages_of
from tests.composed import every_kind, sent, sent_message
from tests.peers.strict_openai import SDK_MESSAGES
from tests.peers.strict_upstream import judge

JUDGED = [(name, "openai" if name == "any" else name) for name in PROVIDERS] + [("groq", "cerebras")]
exact = st.dictionaries(
    st.sampled_from(sorted(TAKEN.keys() - {"metadata", "max_tokens", "max_completion_tokens"})), json_values()
)
limits = st.fixed_dictionaries({}, optional={"max_tokens": st.none() | st.integers(1) | st.just(0.5)})


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


@every_kind
def test_the_user_of_elevenlabs_goes_where_openai_has_it(kind):
    body = {"user_id": "ann", "elevenlabs_extra_body": {"plan": "small"}}
    takes = "user" in kind.fields
    assert sent(kind, body).get("user") == ("ann" if takes else None)
    assert "user_id" not in sent(kind, body)
    assert sent(kind, {**body, "user": "bob"}).get("user") == ("bob" if takes else None)


@every_kind
@pytest.mark.parametrize("user", [5, None, ["ann"], {"id": "ann"}])
def test_a_user_of_elevenlabs_that_is_no_text_stays_here(kind, user):
    assert sent(kind, {"user_id": user, "elevenlabs_extra_body": {}}).keys() == {"messages"}


@every_kind
def test_a_user_id_of_another_platform_stays_here(kind):
    assert sent(kind, {"user_id": "ann"}).keys() == {"messages"}


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


class TestMetadata:
    @pytest.mark.parametrize("name", ["openai", "azure", "any"])
    def test_goes_on_with_store_alone(self, name):
        body = {"metadata": {"topic": "weather"}}
        assert "metadata" not in sent(PROVIDERS[name], body)
        assert "metadata" not in sent(PROVIDERS[name], {**body, "store": False})
        assert sent(PROVIDERS[name], {**body, "store": True})["metadata"] == {"topic": "weather"}

    @pytest.mark.parametrize("name", ["groq", "mistral", "gemini", "anthropic", "vllm"])
    def test_stays_here_where_it_is_unknown(self, name):
        assert sent(PROVIDERS[name], {"metadata": {"a": "b"}, "store": True}).keys() == {"messages"}

    def test_goes_without_our_keys_and_without_what_openai_refuses(self):
        metadata = {
            **dict.fromkeys(OWN_KEYS, "s"),
            "n": 1,
            "none": None,
            "k" * 65: "v",
            "v": "v" * 513,
            "a": "b",
        }
        assert sent(PROVIDERS["openai"], {"metadata": metadata, "store": True})["metadata"] == {"a": "b"}

    def test_goes_with_sixteen_pairs_at_most(self):
        metadata = {str(i): "v" for i in range(20)}
        assert len(sent(PROVIDERS["openai"], {"metadata": metadata, "store": True})["metadata"]) == 16

    @pytest.mark.parametrize("metadata", [{}, {"background": "true"}, [], "text"])
    def test_stays_here_when_nothing_of_it_is_left(self, metadata):
        assert "metadata" not in sent(PROVIDERS["openai"], {"metadata": metadata, "store": True})

    def test_of_null_stays_null(self):
        assert sent(PROVIDERS["openai"], {"metadata": None})["metadata"] is None


class TestAllow:
    NAMED = frozenset({"timestamp", "turn_id", "metadata", "extra_content"})

    def test_lets_named_fields_pass_at_every_level_as_they_came(self):
        body = {"turn_id": 4, "metadata": {"session_id": 1}, "custom": 1}
        assert sent(PROVIDERS["any"], body, allow=self.NAMED).keys() == {"turn_id", "metadata", "messages"}
        message = {"role": "user", "content": "Hi", "turn_id": 4, "timestamp": 1.0, "metadata": {"a": 1}}
        assert sent_message(PROVIDERS["any"], {**message, "id": 1}, allow=self.NAMED) == message

    def test_reaches_into_tool_calls(self):
        call = {
            "id": "1",
            "type": "function",
            "function": {"name": "f", "arguments": "{}"},
            "extra_content": {},
        }
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        assert sent_message(PROVIDERS["any"], message, allow=self.NAMED)["tool_calls"] == [call]

    def test_lets_pass_what_else_would_get_another_name(self):
        assert sent(PROVIDERS["mistral"], {"seed": 1}, allow=frozenset({"seed"})).keys() == {
            "seed",
            "messages",
        }


class TestMessage:
    @every_kind
    def test_keeps_an_answer_of_null_that_calls_tools(self, kind):
        call = {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        assert sent_message(kind, message) == message

    def test_tells_null_from_missing(self):
        assert sent_message(PROVIDERS["openai"], {"role": "assistant", "refusal": None}) == {
            "role": "assistant",
            "refusal": None,
        }

    @every_kind
    def test_keeps_every_key_of_its_content_parts(self, kind):
        parts = [{"type": "image_url", "image_url": {"url": "u"}, "cache_control": {}, "x": 1.0}]
        assert sent_message(kind, {"role": "user", "content": parts})["content"][-1:] == parts

    @pytest.mark.parametrize("name", sorted(PROVIDERS))
    def test_carries_thought_signatures_to_gemini_and_from_their_place_alone(self, name):
        signed = {"extra_content": {"google": {"thought_signature": "s"}}}
        more = {"extra_content": {"google": {"thought_signature": "s", "thought": True}, "other": 1}}
        function = {"name": "f", "arguments": "{}"}
        call = {"id": "call00001", "type": "function", "function": function}
        message = {
            "role": "assistant",
            "content": [{"type": "text", "text": "Hi", **signed}],
            "tool_calls": [
                {**call, **signed},
                {**call, **more},
                {**call, "extra_content": {"google": 1}},
                {**call, "extra_content": None},
                {**call, "function": function | signed},
                call,
            ],
            **signed,
        }
        carried = sent_message(PROVIDERS[name], message)
        kept = [{**call, **signed}] * 2 if name == "gemini" else [call] * 2
        assert carried["tool_calls"] == [*kept, call, call, call, call]
        assert "extra_content" not in json.dumps({**carried, "tool_calls": []})

    @pytest.mark.parametrize("name", sorted(PROVIDERS.keys() - {"vllm"}))
    def test_carries_reasoning_to_vllm_alone(self, name):
        message = {"role": "assistant", "content": "Hi", "reasoning_content": "r", "reasoning": "r"}
        assert sent_message(PROVIDERS["vllm"], message) == message
        assert "reasoning" not in json.dumps(sent_message(PROVIDERS[name], message))

    @pytest.mark.parametrize("name", sorted(PROVIDERS.keys() - {"openai", "azure", "any"}))
    def test_carries_the_speaker_s_name_to_openai_alone(self, name):
        message = {"role": "user", "content": "Hi", "name": "Ann"}
        assert sent_message(PROVIDERS["openai"], message) == message
        assert "Ann" not in json.dumps(sent_message(PROVIDERS[name], message))

    def test_replays_of_an_answer_in_sound_only_its_id(self):
        heard = {"id": "audio_1", "data": "UklGRg==", "expires_at": 1, "transcript": "Hi"}
        assert sent_message(PROVIDERS["openai"], {"role": "assistant", "audio": heard})["audio"] == {
            "id": "audio_1"
        }

    def test_cannot_smuggle_fields_under_the_name_of_the_rest(self):
        smuggled = {"tool_calls": [{"x": 1}], "turn_id": 1, "content": "other"}
        message = Message(role="assistant", content="Hi", others={**smuggled, "annotations": []})
        composed = compose(PROVIDERS["openai"], {}, [message])
        assert json.loads(composed)["messages"] == [{"role": "assistant", "content": "Hi"}]

    def test_of_an_unknown_role_is_left_to_the_upstream_to_refuse(self):
        message = {"role": "narrator", "content": "Once", "name": "N"}
        assert sent_message(PROVIDERS["openai"], message) == {"role": "narrator", "content": "Once"}
