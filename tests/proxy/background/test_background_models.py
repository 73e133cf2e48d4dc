"""A model is asked for an answer in a form, and without one where it does not know forms."""

import asyncio
import contextlib
from typing import Any

import msgspec
import pytest

from filters.message import Message
from proxy.background.models import (
    EmptyAnswer,
    ModelClient,
    PromptTooLong,
    RefusedAnswer,
    TruncatedAnswer,
    answer_text,
)
from proxy.errors import UpstreamBroken, UpstreamRefused
from proxy.upstream.client import HttpUpstream
from proxy.upstream.providers import PROVIDERS
from proxy.upstream.target import Health, Target
from tests.peers.fake_upstream import DONE, FakeUpstream, answer, completion, delta, sse, stream_of

FORM = {"type": "json_schema", "json_schema": {"name": "facts", "schema": {}}}
ASKED = [Message(role="user", content="Facts?")]


def ask(upstream: FakeUpstream, times: int = 1, kind: str = "openai") -> list[str]:
    async def run() -> list[str]:
        http = HttpUpstream(upstream.url, connect=1, max_connections=1, environ={})
        target = Target(
            name="main",
            health=Health(),
            upstream=http,
            provider=PROVIDERS[kind],
            headers=(),
            first_token=1,
            total=1,
        )
        client = ModelClient(target, timeout=2)
        try:
            return [await client.ask(ASKED, model="small", form=FORM) for _ in range(times)]
        finally:
            await http.aclose()

    return asyncio.run(run())


def test_the_form_is_sent_along(upstream: FakeUpstream) -> None:
    assert ask(upstream) == ["Hello there."]
    assert upstream.last.json == {
        "response_format": FORM,
        "model": "small",
        "messages": [{"role": "user", "content": "Facts?"}],
    }


@pytest.mark.parametrize("status", [400, 422])
def test_an_upstream_that_refuses_forms_is_asked_without_from_then_on(
    upstream: FakeUpstream, status: int
) -> None:
    def script(request: Any) -> Any:
        refused = "response_format" in request.json
        return answer({"error": {"message": "unknown"}}, status) if refused else answer(completion("Yes."))

    upstream.script = script
    assert ask(upstream, 3) == ["Yes."] * 3
    assert ["response_format" in request.json for request in upstream.requests] == [True, False, False, False]


@pytest.mark.parametrize(("status", "requests"), [(400, 2), (500, 1), (401, 1)])
def test_an_upstream_that_refuses_all_has_failed(upstream: FakeUpstream, status: int, requests: int) -> None:
    upstream.says(*answer({"error": {"message": "no"}}, status))
    with pytest.raises(UpstreamRefused, match=str(status)):
        ask(upstream)
    assert len(upstream.requests) == requests


@pytest.mark.parametrize(
    "thought",
    [
        "<think>Facts? No </think></think>\n\n",
        "So.</think>",
        "<thinking>Facts?</thinking>",
        "[THINK]Facts?[/THINK]",
        "<|channel|>analysis<|message|>Facts?<|end|><|start|>assistant<|channel|>final<|message|>",
    ],
)
def test_what_a_model_thinks_before_is_no_answer(upstream: FakeUpstream, thought: str) -> None:
    upstream.says(*answer(completion(f"{thought}Yes.")))
    assert ask(upstream) == ["Yes."]


@pytest.mark.parametrize("silence", ["", "\n", "<think>Hm.</think>\n"])
def test_a_model_that_says_nothing_has_failed(upstream: FakeUpstream, silence: str) -> None:
    upstream.says(*answer(completion(silence)))
    with pytest.raises(EmptyAnswer):
        ask(upstream)


@pytest.mark.parametrize("other", [{}, {"choices": []}, {"error": "no"}, "<html>Log in</html>"])
def test_what_is_no_answer_of_a_model_is_no_silence(upstream: FakeUpstream, other: Any) -> None:
    upstream.says(*answer(other))
    with pytest.raises(UpstreamBroken) as failure:
        ask(upstream)
    assert not isinstance(failure.value, EmptyAnswer)


def test_marks_of_a_template_behind_an_answer_are_none_of_it(upstream: FakeUpstream) -> None:
    upstream.says(*answer(completion("Yes.<|return|>")))
    assert ask(upstream) == ["Yes."]


def test_content_in_parts_beside_thoughts_is_an_answer(upstream: FakeUpstream) -> None:
    whole = completion()
    parts = [{"type": "thinking", "thinking": "Well."}, {"type": "text", "text": "Yes."}]
    whole["choices"][0]["message"] |= {"content": parts, "reasoning_content": "Well."}
    upstream.says(*answer(whole))
    assert ask(upstream) == ["Yes."]


@pytest.mark.parametrize("reason", ["length", "max_tokens", "MAX_TOKENS", "model_length", "error", "abort"])
def test_an_answer_that_was_cut_is_none(upstream: FakeUpstream, reason: str) -> None:
    whole = completion("Ann is")
    whole["choices"][0]["finish_reason"] = reason
    upstream.says(*answer(whole))
    with pytest.raises(TruncatedAnswer):
        ask(upstream)


@pytest.mark.parametrize("reason", [None, "stop", "eos", "end_turn", "tool_calls"])
def test_other_ends_are_an_end(upstream: FakeUpstream, reason: str | None) -> None:
    whole = completion("Yes.")
    whole["choices"][0]["finish_reason"] = reason
    upstream.says(*answer(whole))
    assert ask(upstream) == ["Yes."]


@pytest.mark.parametrize("stream", [stream_of("Ye", "s."), stream_of("Ye", "s.").replace(b"\n", b"\r\n")])
def test_who_streams_unasked_has_answered(upstream: FakeUpstream, stream: bytes) -> None:
    upstream.says(*sse(stream))
    assert ask(upstream) == ["Yes."]
    upstream.says(*sse(delta(content="Ye") + delta(finish="length") + DONE))
    with pytest.raises(TruncatedAnswer):
        ask(upstream)
    upstream.says(*sse(delta(refusal="No.") + delta(finish="stop") + DONE))
    with pytest.raises(RefusedAnswer):
        ask(upstream)


def test_what_is_too_long_is_not_sent_again_without_its_form(upstream: FakeUpstream) -> None:
    error = {"message": "This model's maximum context length is 4096 tokens.", "code": None}
    upstream.says(*answer({"error": error}, 400))
    with pytest.raises(PromptTooLong):
        ask(upstream)
    assert len(upstream.requests) == 1


@pytest.mark.parametrize("unit", ["word and ", "<", "</think ", "<think>", "[/", "<|end|>", "<|end|>x", "\n"])
def test_a_long_answer_of_one_thing_is_read_to_its_end(unit: str) -> None:
    """Where reading takes the square of an answer, the suite's own time-out ends it."""
    with contextlib.suppress(UpstreamBroken):
        answer_text(msgspec.json.encode(completion(unit * (900_000 // len(unit)))))
