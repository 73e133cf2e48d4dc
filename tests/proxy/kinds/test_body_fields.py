import json

import pytest

from filters.message import Message
from proxy.upstream.body import OWN_KEYS, compose
from proxy.upstream.providers import PROVIDERS
from tests.composed import every_kind, sent, sent_message


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

    @pytest.mark.parametrize("name", sorted(PROVIDERS.keys() - {"gemini"}))
    def test_carries_thought_signatures_to_gemini_alone(self, name):
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        signed = {**call, "extra_content": {"google": {"thought_signature": "s"}}}
        message = {
            "role": "assistant",
            "content": None,
            "tool_calls": [signed],
            "extra_content": {"google": 1},
        }
        assert sent_message(PROVIDERS["gemini"], message) == message
        assert "extra_content" not in json.dumps(sent_message(PROVIDERS[name], message))

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
