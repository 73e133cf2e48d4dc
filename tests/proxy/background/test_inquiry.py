"""A model is asked for an answer in a form, and without one where it does not know forms."""

import asyncio
from typing import Any

import pytest

from filters.message import Message
from proxy.background.inquiry import Inquiry, SaidNothing
from proxy.errors import UpstreamBroken
from proxy.health import Health
from proxy.kinds import KINDS
from proxy.pipeline import Target
from proxy.upstream import HttpUpstream
from tests.fake_upstream import FakeUpstream, answer, completion

FORM = {"type": "json_schema", "json_schema": {"name": "facts", "schema": {}}}
ASKED = [Message(role="user", content="Facts?")]


def ask(upstream: FakeUpstream, times: int = 1, kind: str = "openai") -> list[str]:
    async def run() -> list[str]:
        http = HttpUpstream(upstream.url, connect=1, max_connections=1, environ={})
        target = Target(
            name="main", health=Health(), upstream=http, kind=KINDS[kind], headers=(), first_token=1, total=1
        )
        inquiry = Inquiry(target, timeout=2)
        try:
            return [await inquiry.ask(ASKED, model="small", form=FORM) for _ in range(times)]
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
    with pytest.raises(UpstreamBroken):
        ask(upstream)
    assert len(upstream.requests) == requests


@pytest.mark.parametrize("thought", ["<think>Facts? No </think></think>\n\n", "So.</think>"])
def test_what_a_model_thinks_before_is_no_answer(upstream: FakeUpstream, thought: str) -> None:
    upstream.says(*answer(completion(f"{thought}Yes.")))
    assert ask(upstream) == ["Yes."]


@pytest.mark.parametrize("silence", ["", "\n", "<think>Hm.</think>\n"])
def test_a_model_that_says_nothing_has_failed(upstream: FakeUpstream, silence: str) -> None:
    upstream.says(*answer(completion(silence)))
    with pytest.raises(SaidNothing):
        ask(upstream)


@pytest.mark.parametrize("other", [{}, {"choices": []}, {"error": "no"}, "<html>Log in</html>"])
def test_what_is_no_answer_of_a_model_is_no_silence(upstream: FakeUpstream, other: Any) -> None:
    upstream.says(*answer(other))
    with pytest.raises(UpstreamBroken) as failure:
        ask(upstream)
    assert not isinstance(failure.value, SaidNothing)
