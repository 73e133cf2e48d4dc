"""Who asks for the head alone, or for what may be asked, gets that from every path, and is answered again."""

import re

import pytest

from tests.peers.raw_client import RawClient
from tests.proxy_server import ProxyServer

GET = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\nx-request-id: next\r\n\r\n"
STREAMS = ["/live/events", "/v1/turns"]
PATHS = [
    *STREAMS,
    "/",
    "/live",
    "/conversations",
    "/conversations/x",
    "/turns/x",
    "/playground",
    "/users",
    "/users/x",
    "/health",
    "/login",
    "/assets/x",
    "/healthz",
    "/readyz",
    "/metrics",
    "/v1/models",
    "/v1/models/x",
    "/v1/chat/completions",
    "/pipelines/x/v1/chat/completions",
    "/v1/explain",
    "/v1/memory/sessions",
    "/v1/memory/sessions/x",
    "/v1/memory/sessions/x/summaries",
    "/v1/memory/sessions/x/context",
    "/v1/memory/sessions/x/state",
    "/v1/memory/users/x",
    "/v1/memory/users/x/facts",
    "/v1/memory/users/x/export",
    "/v1/memory/users/x/system_messages",
    "/v1/memory/agents/x/episodes",
    "/v1/memory/search",
    "/webhooks/agora",
    "/nowhere",
    "*",
]


def asked(method: str, path: str, version: str) -> bytes:
    return f"{method} {path} HTTP/{version}\r\nhost: 127.0.0.1\r\n\r\n".encode()


def test_a_head_is_all_of_an_answer(agora: ProxyServer) -> None:
    for path in PATHS:
        with RawClient(agora.port) as client:
            client.send(asked("HEAD", path, "1.1") + GET)
            first, second = re.split(rb"(?=HTTP/1\.1 )", client.until(b"alive"))[1:]
        assert first.endswith(b"\r\n\r\n"), path
        assert first.count(b"\r\n\r\n") == 1, path
        assert int(first[9:12]) in {200, 303, 401, 404, 405}, path
        assert b"x-request-id: next" in second, path


def test_the_same_before_http_1_1(agora: ProxyServer) -> None:
    for path in PATHS:
        with RawClient(agora.port) as client:
            client.send(asked("HEAD", path, "1.0"))
            assert client.rest().endswith(b"\r\n\r\n"), path


def test_what_may_be_asked_is_told_at_once(agora: ProxyServer) -> None:
    for path in PATHS:
        with RawClient(agora.port) as client:
            client.send(asked("OPTIONS", path, "1.1") + GET)
            got = client.until(b"alive")
        assert int(got[9:12]) in {303, 401, 404, 405}, path
        assert b"x-request-id: next" in got, path


@pytest.mark.parametrize("path", STREAMS)
def test_the_head_of_a_stream_is_the_streams(agora: ProxyServer, path: str) -> None:
    with agora.client.stream("GET", path) as got:
        own = ("content-type", "cache-control", "x-accel-buffering")
        said = [got.headers.get(name) for name in own]
    assert [agora.client.head(path).headers.get(name) for name in own] == said
