"""An upstream that fails after tools of ours were carried out: whoever is asked next goes on from there."""

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
import pytest

from proxy.answer.transcript import transcript
from proxy.observe.observation import usage_of
from tests.peers.fake_upstream import (
    DONE,
    HANG,
    HEAD,
    RESET,
    ROLE,
    FakeUpstream,
    Received,
    Step,
    answer,
    chunk,
    completion,
    delta,
    event,
    sse,
)
from tests.peers.raw_client import RawClient, request
from tests.peers.strict_upstream import judge
from tests.proxy_server import ProxyServer, Serve
from tests.waiting import until

Served = Serve
CONFIG = """
memory: {sessions: "${MEMORY_URL}", deadline: 5s}
upstreams:
  main: {base_url: "${UPSTREAM_BASE_URL}", first_token: %s, %s}
  reserve: {base_url: "${RESERVE}", first_token: 5s, retries: 0, %s}
pipelines:
  default: {upstreams: [%s], first_token: 8s, tools: [memory_store], tool_rounds: %d, hedge: %s}
"""
WHO = {"x-session-id": "s1", "x-user-id": "ann"}
SIGNED = {"extra_content": {"google": {"thought_signature": "c2ln"}}}
ERROR = {"error": {"message": "Overloaded.", "code": 529}}
FAILURES = {
    "429": answer(ERROR, 429),
    "503": answer(ERROR, 503),
    "time-out": [HANG],
    "a reset": [HEAD, chunk(ROLE), RESET],
    "an error under 200": sse(event(**ERROR)),
    "a role, and an error": sse(ROLE + event(**ERROR)),
}


def usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": tokens, "completion_tokens": 1, "total_tokens": tokens + 1}


def whole(message: dict[str, Any], finish: str, tokens: int) -> list[Step]:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    return answer({**completion(), "choices": [choice], "usage": usage(tokens)})


class Model:
    """Stores another fact unless the last message is a tool's result; then it says what is ``left``."""

    def __init__(self, upstream: FakeUpstream, name: str, *left: list[Step]) -> None:
        self.left = list(left)
        self._name = name
        self._facts = count(1)
        upstream.script = self.script

    def script(self, request: Received) -> list[Step]:
        stream = request.json.get("stream") is True
        if request.json["messages"][-1]["role"] != "tool":
            return self._storing(stream=stream)
        return self.left.pop(0) if self.left else self._answering(stream=stream)

    def _storing(self, *, stream: bool) -> list[Step]:
        arguments = json.dumps({"text": f"{self._name} says {next(self._facts)}."})
        function = {"name": "memory_store", "arguments": arguments}
        call = {"id": f"call_{self._name}", "type": "function", "function": function, **SIGNED}
        if not stream:
            return whole({"content": "Noted. ", "tool_calls": [call]}, "tool_calls", 100)
        calling = delta(tool_calls=[{"index": 0, **call}]) + delta(finish="tool_calls")
        return sse(ROLE + calling + event(choices=[], usage=usage(100)) + DONE)

    def _answering(self, *, stream: bool) -> list[Step]:
        said = f"{self._name} knows."
        if not stream:
            return whole({"content": said}, "stop", 10)
        finish = delta(finish="stop") + event(choices=[], usage=usage(10))
        return sse(ROLE + delta(content=said) + finish + DONE)


@pytest.fixture
def reserve() -> Iterator[FakeUpstream]:
    with FakeUpstream() as fake:
        yield fake


@pytest.fixture
def served(reserve: FakeUpstream, serve: Serve, tmp_path: Path) -> Served:
    def start(
        main: str = "retries: 0",
        upstreams: str = "main, reserve",
        *,
        first_token: str = "600ms",
        other: str = "accepts: openai",
        most: int = 4,
        hedge: str = "null",
    ) -> ProxyServer:
        memory = f"sqlite:{tmp_path / 'memory.db'}"
        config = CONFIG % (first_token, main, other, upstreams, most, hedge)
        return serve(config, MEMORY_URL=memory, RESERVE=reserve.url)

    return start


def chat(proxy: ProxyServer, *, stream: bool = True) -> httpx2.Response:
    return proxy.chat([{"role": "user", "content": "I am tall."}], headers=WHO, stream=stream)


def facts(proxy: ProxyServer) -> list[str]:
    return [fact["text"] for fact in proxy.client.get("/v1/memory/users/ann/facts").json()["data"]]


def roles(received: Received) -> list[str]:
    return [message["role"] for message in received.json["messages"]]


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
def test_the_same_upstream_goes_on_from_what_was_carried_out(
    served: Served, upstream: FakeUpstream, failure: list[Step]
) -> None:
    proxy = served("retries: 2", "main", most=2)
    Model(upstream, "main", failure)
    got = chat(proxy)
    assert transcript(got.content).text == "main knows."
    assert [roles(request)[-1] for request in upstream.requests] == ["user", "tool", "tool"]
    assert upstream.requests[1].body == upstream.requests[2].body
    assert facts(proxy) == ["main says 1."]


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
def test_the_next_upstream_goes_on_from_what_was_carried_out(
    served: Served, upstream: FakeUpstream, reserve: FakeUpstream, failure: list[Step]
) -> None:
    proxy = served()
    Model(upstream, "main", failure)
    Model(reserve, "reserve")
    got = chat(proxy)
    told = transcript(got.content)
    assert (told.text, told.finished) == ("reserve knows.", True)
    assert (len(upstream.requests), len(reserve.requests)) == (2, 1)
    assert roles(reserve.last) == ["user", "assistant", "tool"]
    assert json.loads(reserve.last.json["messages"][-1]["content"])["stored"] is True
    assert facts(proxy) == ["main says 1."]
    assert usage_of(got.content)[:2] == (110, 2)
    assert (got.content.count(b'"role"'), got.content.count(DONE)) == (1, 1)


@pytest.mark.parametrize("failure", [FAILURES["503"], answer(ERROR)], ids=["503", "an error under 200"])
def test_so_it_does_with_a_whole_answer(
    served: Served, upstream: FakeUpstream, reserve: FakeUpstream, failure: list[Step]
) -> None:
    """Words beside the tool call are sent once, too."""
    proxy = served()
    Model(upstream, "main", failure)
    Model(reserve, "reserve")
    got = chat(proxy, stream=False)
    assert got.json()["choices"][0]["message"] == {
        "role": "assistant",
        "content": "Noted. reserve knows.",
    }
    assert usage_of(got.content)[:2] == (110, 2)
    assert roles(reserve.last) == ["user", "assistant", "tool"]
    assert facts(proxy) == ["main says 1."]


def test_an_upstream_of_another_kind_puts_it_in_its_own_words(
    served: Served, upstream: FakeUpstream, reserve: FakeUpstream
) -> None:
    proxy = served("retries: 0, accepts: gemini", other="accepts: anthropic, model: claude")
    Model(upstream, "main", FAILURES["503"])
    Model(reserve, "reserve")
    assert transcript(chat(proxy).content).text == "reserve knows."
    [call] = upstream.last.json["messages"][-2]["tool_calls"]
    assert call["extra_content"] == SIGNED["extra_content"]
    assert reserve.last.json["model"] == "claude"
    [call] = reserve.last.json["messages"][-2]["tool_calls"]
    assert call.keys() == {"id", "type", "function"}
    assert call["id"] == reserve.last.json["messages"][-1]["tool_call_id"]


def test_an_upstream_with_ids_of_its_own_form_takes_the_calls_of_another(
    served: Served, upstream: FakeUpstream, reserve: FakeUpstream
) -> None:
    proxy = served(other="accepts: mistral, model: m")
    Model(upstream, "main", FAILURES["503"])
    Model(reserve, "reserve")
    assert transcript(chat(proxy).content).text == "reserve knows."
    assert judge("mistral", reserve.last.json) is None


def test_the_last_round_is_the_last_for_the_next_upstream_as_well(
    served: Served, upstream: FakeUpstream, reserve: FakeUpstream
) -> None:
    proxy = served(most=1)
    Model(upstream, "main", FAILURES["503"])
    Model(reserve, "reserve")
    assert transcript(chat(proxy).content).text == "reserve knows."
    assert reserve.last.json["tool_choice"] == "none"


def test_an_upstream_that_called_a_tool_in_vain_is_ill_when_it_is_silent_from_the_start(
    served: Served, upstream: FakeUpstream
) -> None:
    """What it took for the first round speaks for it in that try alone."""
    proxy = served("retries: 1", "main")
    for _ in range(3):
        Model(upstream, "main", FAILURES["503"], [HANG])
        proxy.chat([{"role": "user", "content": "Hi"}], headers=WHO, stream=True)
    assert proxy.client.get("/readyz").json()["degraded"] == ["upstream main"]


def test_in_a_hedge_the_second_upstream_goes_on_from_what_was_carried_out(
    served: Served, upstream: FakeUpstream, reserve: FakeUpstream
) -> None:
    proxy = served(first_token="8s", hedge="500ms")
    Model(upstream, "main", [HANG])
    Model(reserve, "reserve")
    assert transcript(chat(proxy).content).text == "reserve knows."
    assert (len(upstream.requests), len(reserve.requests)) == (2, 1)
    assert facts(proxy) == ["main says 1."]
    assert upstream.last.closed.wait(1)


class Late(Model):
    """A model that waits before it calls a tool."""

    def _storing(self, *, stream: bool) -> list[Step]:
        return [0.8, *super()._storing(stream=stream)]


def test_in_a_hedge_whoever_calls_a_tool_later_is_told_what_the_other_did(
    served: Served, upstream: FakeUpstream, reserve: FakeUpstream
) -> None:
    proxy = served(first_token="5s", hedge="50ms")
    Late(upstream, "main")
    Model(reserve, "reserve", [HANG])
    assert transcript(chat(proxy).content).text == "main knows."
    assert facts(proxy) == ["reserve says 1."]
    assert json.loads(upstream.last.json["messages"][-1]["content"])["stored"] is True


def test_in_a_hedge_nobody_answers_who_does_not_know_of_what_was_done(
    served: Served, upstream: FakeUpstream, reserve: FakeUpstream
) -> None:
    proxy = served(first_token="5s", hedge="50ms")
    slow = [0.8, *sse(ROLE + delta(content="What?") + delta(finish="stop") + DONE)]
    told = sse(ROLE + delta(content="main knows.") + delta(finish="stop") + DONE)
    upstream.script = lambda request: told if roles(request)[-1] == "tool" else slow
    Model(reserve, "reserve", [HEAD, chunk(ROLE), HANG])
    assert transcript(chat(proxy).content).text == "main knows."
    assert facts(proxy) == ["reserve says 1."]


@pytest.mark.parametrize("hedge", ["null", "50ms"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_hang_up_in_a_later_round_reaches_every_model_that_is_asked(
    served: Served, upstream: FakeUpstream, reserve: FakeUpstream, hedge: str, *, stream: bool
) -> None:
    proxy = served(first_token="5s", hedge=hedge)
    before = proxy.tasks()
    Model(upstream, "main", [HANG])
    Model(reserve, "reserve", [HANG])
    asked = [upstream, reserve] if stream and hedge != "null" else [upstream]
    extra = "x-session-id: s1\r\nx-user-id: ann\r\n"
    with RawClient(proxy.port) as client:
        client.send(request(extra=extra, stream=stream))
        assert until(lambda: all(len(each.requests) and roles(each.last)[-1] == "tool" for each in asked))
    assert all(each.last.closed.wait(1) for each in asked)
    assert until(lambda: proxy.tasks() <= before)
    assert facts(proxy) == []
