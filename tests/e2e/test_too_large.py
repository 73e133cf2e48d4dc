"""A body over the limit is refused, and its client gets the answer."""

import http.client
import socket

import pytest

from proxy.http import request
from tests.proxy_server import Serve

PIECE, PIECES = b"x" * 65536, 300
SMALL = """
listen: {max_body: 2KB}
upstreams: {main: {base_url: "practice:"}}
pipelines: {default: {upstreams: [main]}}
"""
SHORT = SMALL.replace("{max_body: 2KB}", "{max_messages: 3}")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/explain"])
def test_more_messages_than_anybody_says_are_refused(serve: Serve, path: str) -> None:
    """Others wait while they are looked through, however small each is."""
    client, body = serve(SHORT).client, {"model": "m", "messages": [{"role": "user", "content": "Hi"}] * 3}
    assert client.post(path, json=body).status_code == 200
    body["messages"] = [*body["messages"], {"none": "of these is read"}]
    got = client.post(path, json=body)
    assert got.status_code == 413
    assert got.json()["error"] == {
        "message": "'messages' has 4 items; 'listen.max_messages' sets the limit of 3.",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "request_too_large",
    }


@pytest.mark.parametrize("framing", [{"Content-Length": str(len(PIECE) * PIECES)}, {}])
def test_a_client_that_reads_only_after_it_has_said_all_is_told(
    serve: Serve, framing: dict[str, str]
) -> None:
    client = http.client.HTTPConnection("127.0.0.1", serve(SMALL).port, timeout=10)
    headers = {"Connection": "close", **framing}  # without a length, http.client sends it chunked
    client.request("POST", "/v1/chat/completions", iter([PIECE] * PIECES), headers)
    assert client.getresponse().status == 413


def test_a_client_that_asks_first_is_told_at_once(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "_LINGER", 60)  # so long it would wait for a body
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n"
    with socket.create_connection(("127.0.0.1", serve(SMALL).port), timeout=8) as client:
        client.sendall(head + b"Expect: 100-continue\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 413 ")


def test_a_client_that_never_says_it_all_is_told(serve: Serve) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n\r\n"
    with socket.create_connection(("127.0.0.1", serve(SMALL).port), timeout=8) as client:
        client.sendall(head)
        assert client.recv(100).startswith(b"HTTP/1.1 413 ")
