"""Keep-alive comments while the model thinks; the result is still a valid stream."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from proxy.answer.transcript import transcript
from tests.peers.fake_upstream import (
    DONE,
    END,
    HANG,
    HEAD,
    RESET,
    ROLE,
    FakeUpstream,
    answer,
    by_default,
    chunk,
    completion,
    delta,
    stream_of,
)
from tests.proxy_server import ProxyServer, Serve
from tests.waiting import until

CONFIG = """
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}", first_token: "${FIRST_TOKEN:-30s}"}}
pipelines:
  default: {upstreams: [main], keep_alive: 200ms, answer: [%s]}
"""
COMMENT = b": keep-alive\n\n"
PERIOD = 0.2
SILENCE = 1.5
"""Seconds in which seven comments are due; two will do where the machine does other things as well."""
BODY = stream_of("Two", " eggs.")


@pytest.fixture
def proxy(serve: Serve) -> ProxyServer:
    return serve(CONFIG % "")


def arriving(proxy: ProxyServer, **fields: Any) -> Iterator[tuple[float, bytes]]:
    """What comes, and when."""
    call = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Hi"}], **fields}
    started = time.monotonic()
    with proxy.client.stream("POST", "/v1/chat/completions", json=call) as got:
        assert got.status_code == 200
        assert got.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert got.headers["x-accel-buffering"] == "no"
        assert got.headers["x-request-id"]
        yield from ((time.monotonic() - started, data) for data in got.iter_raw())


def test_comments_go_out_until_the_model_speaks(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    upstream.says(SILENCE, HEAD, chunk(BODY), END)
    pieces = list(arriving(proxy))
    whole = b"".join(data for _, data in pieces)
    assert whole == COMMENT * whole.count(COMMENT) + BODY
    assert 2 <= whole.count(COMMENT) <= pieces[-1][0] / PERIOD + 1
    assert pieces[0][0] > 0.15


def test_they_come_between_two_words_too(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    half = BODY.index(b"eggs")
    upstream.says(HEAD, chunk(BODY[:half]), SILENCE, chunk(BODY[half:]), END)
    pieces = list(arriving(proxy))
    whole = b"".join(data for _, data in pieces)
    assert whole.replace(COMMENT, b"") == BODY
    assert 2 <= whole.count(COMMENT) <= pieces[-1][0] / PERIOD + 1
    assert whole.index(COMMENT) < BODY.index(b"eggs"), "half an event waits behind them"


def test_an_answer_without_pauses_has_none(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    words = [step for _ in range(12) for step in (chunk(delta(content="x")), 0.05)]
    upstream.says(HEAD, chunk(ROLE), *words, chunk(DONE), END)
    assert COMMENT not in b"".join(data for _, data in arriving(proxy))


def test_a_whole_answer_has_none(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    upstream.says(0.5, *answer(completion()))
    assert proxy.chat().json() == completion()


def test_a_failure_in_time_is_still_a_status(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    upstream.says(*answer(b"", 400))
    assert proxy.chat(stream=True).status_code == 400


def test_a_failure_after_one_is_an_event(serve: Serve, upstream: FakeUpstream) -> None:
    upstream.says(HANG)
    proxy = serve(CONFIG % "", FIRST_TOKEN="2s")
    got = b"".join(data for _, data in arriving(proxy))
    assert got.startswith(COMMENT)
    assert json.loads(got.splitlines()[-2][6:])["error"]["code"] == "upstream_timeout"
    assert DONE not in got


def test_after_one_the_upstream_may_still_be_asked_again(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    failing = iter([[0.5, RESET]])
    upstream.script = lambda request: next(failing, None) or by_default(request)
    got = b"".join(data for _, data in arriving(proxy))
    assert got == COMMENT * got.count(COMMENT) + stream_of("Hello", " there.")
    assert len(upstream.requests) == 2


def test_it_goes_together_with_a_filler(serve: Serve, upstream: FakeUpstream) -> None:
    upstream.says(2.5, HEAD, chunk(BODY), END)
    proxy = serve(CONFIG % "filler: {after: 1200ms, phrases: [One moment.]}, interruptable: {value: false}")
    got = b"".join(data for _, data in arriving(proxy))
    assert got.startswith(COMMENT)
    events = got.replace(COMMENT, b"")
    assert transcript(events).text == "One moment. Two eggs."
    assert events.endswith(DONE)
    assert events.index(b'"interruptable":false') < events.index(b"One moment.")


def test_agoras_first_event_stands_before_the_models_own(serve: Serve, upstream: FakeUpstream) -> None:
    upstream.says(0.4, HEAD, chunk(BODY), END)
    got = b"".join(data for _, data in arriving(serve(CONFIG % "interruptable: {value: false}")))
    first, own = got.replace(COMMENT, b"").split(b"\n\n", 1)
    assert b'"interruptable":false' in first
    assert own == BODY


def test_a_silent_line_that_is_left_leaves_nothing(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    assert proxy.chat(stream=True).status_code == 200
    tasks = proxy.tasks()
    upstream.says(HANG)
    coming = arriving(proxy)
    next(coming)
    coming.close()
    assert upstream.last.closed.wait(10)
    assert until(lambda: proxy.tasks() <= tasks)
