"""``X-Turnkeeper-Error`` says whose error it is: an upstream's, with its name and status, or our own."""

import json

import pytest

from tests.peers.fake_upstream import CLOSE, HANG, FakeUpstream, Step, answer
from tests.peers.raw_client import RawClient, split
from tests.peers.redis_server import free_port
from tests.proxy_server import Serve
from tests.waiting import awaited

CONFIG = """
memory: {sessions: "memory:"}
upstreams:
  main: {base_url: "${UPSTREAM_BASE_URL}", connect: 5s, first_token: 300ms, total: 600ms, retries: 0}
pipelines: {default: {upstreams: [main], request: [drop_messages: {sources: [silence]}]}}
"""
SILENCE = {"role": "assistant", "content": "Are you still there?", "metadata": {"source": "silence"}}


def refused(status: int) -> list[Step]:
    return answer({"error": {"message": "No.", "type": "x", "param": None, "code": None}}, status)


@pytest.mark.parametrize(
    ("steps", "status", "origin"),
    [
        *((refused(status), status, f"upstream main {status}") for status in (400, 401, 403, 404, 429, 500)),
        (answer({}, 302), 502, "upstream main redirected"),
        ([HANG], 504, "upstream main timeout"),
        ([CLOSE], 502, "upstream main broken"),
        (refused(200), 502, "upstream main refused"),
        (answer({"error": {"message": "No.", "code": 429}}, 200), 429, "upstream main 429"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_an_upstreams_error(
    serve: Serve, upstream: FakeUpstream, steps: list[Step], status: int, origin: str, *, stream: bool
) -> None:
    upstream.says(*steps)
    got = serve(CONFIG).chat(stream=stream)
    assert (got.status_code, got.headers["x-turnkeeper-error"]) == (status, origin)


def test_an_upstream_that_is_not_there(serve: Serve) -> None:
    got = serve(CONFIG, UPSTREAM_BASE_URL=f"http://127.0.0.1:{free_port()}/v1").chat()
    assert (got.status_code, got.headers["x-turnkeeper-error"]) == (502, "upstream main unreachable")


def test_one_that_keeps_failing(serve: Serve, upstream: FakeUpstream) -> None:
    upstream.says(*refused(500))
    proxy = serve(CONFIG)
    awaited(lambda: proxy.chat().headers["x-turnkeeper-error"] == "upstream main unavailable")


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/chat/completions", b"{", 400),
        ("POST", "/v1/chat/completions", b"{}", 400),
        ("GET", "/v1/chat/completions", b"", 405),
        ("GET", "/v1/nowhere", b"", 404),
        ("GET", "/v1/memory/sessions/nobody", b"", 404),
        ("PUT", "/v1/memory/sessions/s1", b"{", 400),
        ("POST", "/v1/explain", json.dumps({"messages": [SILENCE]}).encode(), 400),
    ],
)
def test_our_own(serve: Serve, method: str, path: str, body: bytes, status: int) -> None:
    got = serve(CONFIG, UPSTREAM_BASE_URL="http://127.0.0.1:1/v1").client.request(method, path, content=body)
    assert (got.status_code, got.headers["x-turnkeeper-error"]) == (status, "turnkeeper")


def test_a_request_that_cannot_be_read(serve: Serve) -> None:
    proxy = serve(CONFIG, UPSTREAM_BASE_URL="http://127.0.0.1:1/v1")
    with RawClient(proxy.port) as client:
        client.send(b"NOT HTTP\r\n\r\n")
        status, headers, _ = split(client.rest())
    assert status == 400
    assert headers["x-turnkeeper-error"] == "turnkeeper"


def test_an_answer_says_nothing_of_errors(serve: Serve, upstream: FakeUpstream) -> None:
    assert "x-turnkeeper-error" not in serve(CONFIG).chat().headers
