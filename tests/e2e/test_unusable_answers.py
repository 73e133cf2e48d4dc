"""Useless answers to background requests replace no turn, and lose no fact."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from filters.tokens import in_text
from proxy.background import backoff
from proxy.circuit import Backoff
from tests.long_call import LongCall, config, is_notes, model, noted, settle
from tests.peers.fake_upstream import FakeUpstream, Received, Step, answer, completion
from tests.peers.scripted_model import fact, is_extraction, lines, listed, says
from tests.proxy_server import ProxyServer
from tests.remembering import call, user
from tests.waiting import until

Serve = Callable[..., ProxyServer]
SUMMARIES = "/v1/memory/sessions/long/summaries"


def ended(text: str | None, finish: str = "stop", **message: Any) -> list[Step]:
    """The script of a whole answer with an end of its own."""
    whole = completion()
    whole["choices"][0] |= {
        "finish_reason": finish,
        "message": {"role": "assistant", "content": text, **message},
    }
    return answer(whole)


def refused(status: int, message: str, **more: Any) -> list[Step]:
    return answer({"error": {"message": message, "type": "x", "param": None, "code": None, **more}}, status)


NO = "I'm sorry, but I can't assist with that request."
USELESS = {
    "cut": ended("The caller is", "length"),
    "filtered": ended("The caller is", "content_filter"),
    "refused": ended(None, refusal=NO),
    "refused in parts": ended([{"type": "refusal", "refusal": NO}]),  # type: ignore[arg-type]
    "refused in words": ended(NO),
    "of nothing": ended('qqqq {"a":[[['),
    "of something else": ended("Sunshine is expected over Portugal, followed by showers."),
    "filtered before": refused(400, "The prompt was filtered.", code="content_filter"),
    "thoughts that were cut": ended(None, "length", reasoning_content="The caller"),
    "thoughts that came to no end": ended("[THINK]The caller"),
    "broken off in a stream": answer(
        b'data: {"choices": [{"index": 0, "delta": {"content": "The caller is"}}]}\n\n',
        kind="text/event-stream",
    ),
}


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "_SESSION", Backoff(0.02, 0.2))


def digests(proxy: ProxyServer) -> list[bool]:
    got = proxy.client.get(SUMMARIES)
    return [one["digest"] for one in got.json()["data"]] if got.status_code == 200 else []


@pytest.mark.parametrize("useless", USELESS)
def test_what_is_no_summary_covers_no_turn(serve: Serve, upstream: FakeUpstream, useless: str) -> None:
    upstream.script = model(lambda _: USELESS[useless])
    proxy = serve(config(6, 2), MEMORY_URL="memory:")
    long = LongCall(proxy, upstream)
    for _ in range(3):
        long.turn()
    assert proxy.client.post(SUMMARIES).status_code == 502
    assert digests(proxy) == []
    long.turn()
    assert until(lambda: digests(proxy) == [True]), "after three answers in vain a digest stands in"
    upstream.script = model()
    assert until(lambda: digests(proxy) == [False])
    settle(proxy)
    long.check(long.turn())


def test_messages_from_elsewhere_give_way_to_no_refusal(serve: Serve, upstream: FakeUpstream) -> None:
    proxy = serve(config(6, 2), MEMORY_URL="memory:")
    upstream.script = model(lambda _: ended(NO))
    told = [{"role": "user", "content": "user77 said before that the hotel by the lake is full."}]
    assert proxy.client.post(SUMMARIES, json={"messages": told}).status_code == 502
    assert proxy.client.get("/v1/memory/sessions").json()["data"] == []


def test_a_summary_that_was_cut_is_asked_for_in_fewer_words(serve: Serve, upstream: FakeUpstream) -> None:
    def brief(request: Received) -> Iterable[Step]:
        words = int(request.json["messages"][0]["content"].rpartition("at most ")[2].split()[0])
        asked.append(words)
        return noted(request) if len(asked) % 2 == 0 else ended("So far: u0", "length")

    asked: list[int] = []
    upstream.script = model(brief)
    proxy = serve(config(6, 2), MEMORY_URL="memory:")
    long = LongCall(proxy, upstream)
    for _ in range(4):
        long.turn()
    assert until(lambda: digests(proxy) == [False])
    assert asked[1] <= asked[0] // 2 + 1
    settle(proxy)
    long.check(long.turn())


TOO_LONG = {
    "OpenAI": refused(
        400,
        "This model's maximum context length is 1000 tokens. However, your messages resulted in 5000 tokens.",
        code="context_length_exceeded",
    ),
    "llama.cpp": refused(
        400,
        "the request exceeds the available context size, try increasing it",
        type="exceed_context_size_error",
    ),
    "Anthropic": refused(400, "prompt is too long: 5000 tokens > 1000 maximum"),
    "a gateway": answer(b"<html>Request Entity Too Large</html>", 413, kind="text/html"),
}


@pytest.mark.parametrize("way", TOO_LONG)
def test_a_session_that_is_too_long_for_the_model_is_summarised_in_parts(
    serve: Serve, upstream: FakeUpstream, way: str
) -> None:
    def small(request: Received) -> Iterable[Step]:
        shown = sum(in_text(message["content"]) for message in request.json["messages"])
        return noted(request) if shown < 1000 else TOO_LONG[way]

    upstream.script = model(small)
    proxy = serve(config(10, 4), MEMORY_URL="memory:")
    contents = [
        {
            "role": role,
            "content": f"{name}{n} is about the sea and the sky " + "and the train by the lake " * 4,
        }
        for n in range(100)
        for role, name in (("user", "user"), ("assistant", "answer"))
    ]
    proxy.client.put("/v1/memory/sessions/long", json={"contents": contents})
    assert until(lambda: digests(proxy) == [False])
    settle(proxy)
    long = LongCall(proxy, upstream, numbered=False, number=100)
    long.lines = [{**line} for line in contents[-8:]]
    long.check(long.turn())
    assert sum(map(is_notes, upstream.requests)) < 80


FACTS = """
memory:
  sessions: "${MEMORY_URL}"
  archive: {url: "${ARCHIVE_URL}"}
  facts: {upstream: main, model: small, pause: 100ms, timeout: 5s}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}"}}
pipelines: {default: {upstreams: [main]}}
"""


def fact_texts(proxy: ProxyServer) -> list[str]:
    return [one["text"] for one in proxy.client.get("/v1/memory/users/ann/facts").json()["data"]]


@pytest.mark.parametrize("too_much", [ended('{"facts": [', "length"), TOO_LONG["OpenAI"]])
def test_who_cannot_look_at_much_at_once_is_asked_for_less(
    serve: Serve, upstream: FakeUpstream, tmp_path: Path, too_much: list[Step]
) -> None:
    def script(request: Received) -> Iterable[Step]:
        if not is_extraction(request):
            return says("Well.")(request)
        said = lines(request, "said")
        if len(said) > 3:
            return too_much
        return listed([fact(f"Said {one['text'].split()[0]}.", one["number"]) for one in said])

    upstream.script = script
    proxy = serve(FACTS, MEMORY_URL="memory:", ARCHIVE_URL=f"sqlite:{tmp_path}/a.db")
    contents = [
        {"role": "user", "content": f"number{n} " + "the train by the lake and the sea " * 60, "turn_id": n}
        for n in range(6)
    ]
    call(proxy, *contents, user("number6 the sea", 6), user="ann")
    assert until(lambda: len(fact_texts(proxy)) == 7), fact_texts(proxy)


@pytest.mark.parametrize("declined", ["refused", "filtered", "filtered before"])
def test_a_talk_that_a_model_refuses_to_read_is_passed_over(
    serve: Serve, upstream: FakeUpstream, tmp_path: Path, declined: str
) -> None:
    def script(request: Received) -> Iterable[Step]:
        if not is_extraction(request):
            return says("Well.")(request)
        said = lines(request, "said")
        if any("bomb" in one["text"] for one in said):
            return USELESS[declined]
        return listed([fact("Has a dog.", 1)])

    upstream.script = script
    proxy = serve(FACTS, MEMORY_URL="memory:", ARCHIVE_URL=f"sqlite:{tmp_path}/a.db")
    call(proxy, user("It is a bomb.", 0), user="ann")
    assert until(lambda: sum(map(is_extraction, upstream.requests)) == 4)
    settle(proxy)
    call(proxy, user("It is a bomb.", 0), user("I have a dog.", 1), user="ann")
    assert until(lambda: fact_texts(proxy) == ["Has a dog."])
