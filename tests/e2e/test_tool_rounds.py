"""A model that is asked again, after tools of ours: what it gets, and what becomes of a call that fails."""

import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from proxy.answer.transcript import transcript
from proxy.memory.session import decode
from proxy.memory.stores.store import Key
from proxy.observe.observation import usage_of
from tests.long_call import settle
from tests.peers.fake_upstream import (
    DONE,
    HANG,
    HEAD,
    ROLE,
    FakeUpstream,
    Received,
    Step,
    answer,
    calling,
    chunk,
    completion,
    delta,
    event,
    sse,
    stream_of,
)
from tests.proxy_server import ProxyServer, Serve
from tests.waiting import until

CONFIG = """
memory: {sessions: "${MEMORY_URL}", deadline: 5s}
upstreams:
  main: {base_url: "${UPSTREAM_BASE_URL}", %s}
  reserve: {base_url: "${RESERVE}", retries: 0}
pipelines:
  default: {upstreams: [%s], tools: [memory_recall, memory_store]}
"""
SIGNED = {"extra_content": {"google": {"thought_signature": "c2ln"}}}


def recalling(words: str = "") -> list[Step]:
    """A round in which a tool is called, behind some words."""
    function = {"name": "memory_recall", "arguments": '{"query": "name"}'}
    call = {"index": 0, "id": "call_1", "type": "function", "function": function, **SIGNED}
    said = delta(content=words) if words else b""
    return sse(ROLE + said + delta(tool_calls=[call]) + delta(finish="tool_calls") + DONE)


@pytest.fixture
def reserve() -> Iterator[FakeUpstream]:
    with FakeUpstream() as fake:
        yield fake


@pytest.fixture
def served(serve: Serve, reserve: FakeUpstream, tmp_path: Path) -> Serve:
    def start(main: str = "retries: 0", upstreams: str = "main") -> ProxyServer:
        memory = f"sqlite:{tmp_path / 'memory.db'}"
        return serve(CONFIG % (main, upstreams), MEMORY_URL=memory, RESERVE=reserve.url)

    return start


def chat(proxy: ProxyServer, words: str = "Hi", *, stream: bool = True) -> httpx2.Response:
    who = {"x-session-id": "s1", "x-user-id": "ann"}
    return proxy.chat([{"role": "user", "content": words}], headers=who, stream=stream)


def in_rounds(upstream: FakeUpstream, first: list[Step], *then: Step) -> None:
    """Answers with the next step once a request has the result of the last tool call."""

    def script(request: Received) -> list[Step]:
        return [*then] if request.json["messages"][-1]["role"] == "tool" else first

    upstream.script = script


def ready(proxy: ProxyServer) -> tuple[int, list[str]]:
    got = proxy.client.get("/readyz")
    return got.status_code, got.json()["degraded"]


def refusal(status: int, headers: str = "") -> list[Step]:
    return answer({"error": {"message": "No."}}, status, headers)


def test_a_signature_returns_with_the_call_that_it_came_with(served: Serve, upstream: FakeUpstream) -> None:
    proxy = served("accepts: gemini")
    in_rounds(upstream, recalling(), *sse(stream_of("Ann.")))
    assert transcript(chat(proxy).content).text == "Ann."
    [call] = upstream.last.json["messages"][-2]["tool_calls"]
    assert call["extra_content"] == SIGNED["extra_content"]


@pytest.mark.parametrize("stream", [True, False])
def test_what_is_refused_in_a_later_round_is_told_as_it_was_said(
    served: Serve, upstream: FakeUpstream, *, stream: bool
) -> None:
    proxy = served()
    first = calling("memory_recall", stream=stream)
    in_rounds(upstream, first, *refusal(429, "retry-after: 30\r\nx-ratelimit-reset-tokens: 30s\r\n"))
    got = chat(proxy, stream=stream)
    assert (got.status_code, got.json()["error"]["message"]) == (429, "No.")
    assert (got.headers["retry-after"], got.headers["x-ratelimit-reset-tokens"]) == ("30", "30s")
    assert len(upstream.requests) == 2


def test_a_bad_request_in_a_later_round_is_not_asked_again_from_the_first(
    served: Serve, upstream: FakeUpstream
) -> None:
    proxy = served("retries: 2")
    in_rounds(upstream, recalling(), *refusal(400))
    assert chat(proxy).status_code == 400
    assert len(upstream.requests) == 2


@pytest.mark.parametrize("words", ["", "Let me see. "])
def test_refusals_in_a_later_round_speak_against_no_upstream(
    served: Serve, upstream: FakeUpstream, words: str
) -> None:
    proxy = served()
    in_rounds(upstream, recalling(words), *refusal(400))
    for _ in range(6):
        got = chat(proxy)
        assert got.status_code == (200 if words else 400)
        assert b'"No."' in got.content
        assert transcript(got.content).text == words
    assert ready(proxy) == (200, [])


def test_failures_in_a_later_round_do(served: Serve, upstream: FakeUpstream) -> None:
    proxy = served()
    in_rounds(upstream, recalling("Let me see. "), *refusal(503))
    for _ in range(5):
        assert chat(proxy).status_code == 200
    status, missing = ready(proxy)
    assert status == 503
    assert "upstream main" in missing


def test_who_takes_long_for_all_rounds_is_slow_and_not_ill(served: Serve, upstream: FakeUpstream) -> None:
    proxy = served("retries: 0, first_token: 300ms")
    in_rounds(upstream, recalling(), HANG)
    for _ in range(6):
        assert chat(proxy).status_code == 504
    assert ready(proxy) == (200, [])


def test_a_round_is_over_soon_after_its_end_though_the_upstream_stays(
    served: Serve, upstream: FakeUpstream
) -> None:
    """A call beside the client's own call is run, too."""
    proxy = served("retries: 0, first_token: 20s, total: 30s")
    in_rounds(upstream, [*recalling()[:-1], HANG], *sse(stream_of("Ann."))[:-1], HANG)
    assert transcript(chat(proxy).content).text == "Ann."
    noted = {"name": "memory_store", "arguments": '{"text": "Ann is tall.", "category": "core"}'}
    asked = {"name": "weather", "arguments": "{}"}
    calls = [
        {"index": place, "id": f"call_{place}", "type": "function", "function": function}
        for place, function in enumerate((noted, asked))
    ]
    both = sse(ROLE + delta(tool_calls=calls) + delta(finish="tool_calls") + DONE)
    in_rounds(upstream, [*both[:-1], HANG])
    assert b'"weather"' in chat(proxy).content
    assert until(lambda: proxy.client.get("/v1/memory/users/ann/facts").json()["data"])


@pytest.mark.parametrize("then", [[HANG], [HEAD, chunk(ROLE), HANG]], ids=["no head", "a role"])
def test_who_is_silent_in_a_later_round_gives_way_to_the_next_upstream(
    served: Serve, upstream: FakeUpstream, reserve: FakeUpstream, then: list[Step]
) -> None:
    proxy = served("retries: 0, first_token: 500ms", "main, reserve")
    in_rounds(upstream, recalling(), *then)
    started = time.monotonic()
    assert transcript(chat(proxy).content).text == "Hello there."
    assert time.monotonic() - started < 5
    assert (len(upstream.requests), len(reserve.requests)) == (2, 1)
    assert upstream.last.closed.wait(1)


def test_an_answer_that_has_begun_may_take_its_time_in_a_later_round(
    served: Serve, upstream: FakeUpstream, reserve: FakeUpstream
) -> None:
    proxy = served("retries: 0, first_token: 500ms", "main, reserve")
    in_rounds(upstream, recalling("Let me see. "), 0.8, HEAD, chunk(ROLE), 0.8, *sse(stream_of("Ann."))[1:])
    assert transcript(chat(proxy).content).text == "Let me see. Ann."
    assert not reserve.requests


def counted(*, calls: bool, stream: bool) -> list[Step]:
    """A round that says how many tokens it took."""
    usage = {"prompt_tokens": 1200, "completion_tokens": 5, "total_tokens": 1205}
    function = {"name": "memory_recall", "arguments": '{"query": "name"}'}
    call = {"index": 0, "id": "call_1", "type": "function", "function": function}
    said, finish = ({"tool_calls": [call]}, "tool_calls") if calls else ({"content": "Ann."}, "stop")
    if stream:
        return sse(ROLE + delta(**said) + delta(finish=finish) + event(choices=[], usage=usage) + DONE)
    choice = {"index": 0, "message": {"role": "assistant", **said}, "finish_reason": finish}
    return answer({**completion(), "choices": [choice], "usage": usage})


def scale(proxy: ProxyServer) -> float:
    settle(proxy)
    memory = proxy.app.memory
    assert memory
    return decode(proxy.run(memory.store.read(Key("default", "s1"))).blob).scale


@pytest.mark.parametrize("stream", [True, False])
def test_what_all_rounds_took_tells_nothing_of_how_a_model_counts(
    served: Serve, upstream: FakeUpstream, *, stream: bool
) -> None:
    proxy, words = served(), "word " * 1000
    upstream.says(*counted(calls=False, stream=stream))
    chat(proxy, words, stream=stream)
    learned = scale(proxy)
    assert 0.8 < learned < 1.2
    in_rounds(upstream, counted(calls=True, stream=stream), *counted(calls=False, stream=stream))
    for number in range(4):
        got = chat(proxy, f"{words} {number}", stream=stream)
        assert usage_of(got.content).input == 2400
    assert scale(proxy) == learned
