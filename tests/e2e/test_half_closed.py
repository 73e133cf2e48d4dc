"""A client that ends its side of the connection behind its request still gets the answer."""

import http.client
import io
import json
import socket
from collections.abc import Sequence

import pytest

from tests.peers.fake_upstream import END, HEAD, FakeUpstream, Step, answer, chunk, completion, stream_of
from tests.proxy_server import ProxyServer

LATE: Sequence[Step] = [0.5, *answer(completion("Hello there."))]
STREAM = stream_of("Hello", " there.")
SLOW: Sequence[Step] = [
    0.3,
    HEAD,
    chunk(STREAM[:500]),
    0.7,
    chunk(STREAM[500:700]),
    0.2,
    chunk(STREAM[700:]),
    END,
]


class Read(io.BytesIO):
    """What was received, for ``http.client`` to read."""

    def makefile(self, *_: object) -> "Read":
        return self

    def close(self) -> None:
        """There may be another answer behind this one."""


def request(*, stream: bool, version: str = "1.1") -> bytes:
    messages = [{"role": "user", "content": "Hi"}]
    body = json.dumps({"model": "m", "stream": stream, "messages": messages}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/{version}\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def received(client: socket.socket) -> bytes:
    data = b""
    while piece := client.recv(65536):
        data += piece
    return data


def read(data: Read) -> tuple[int, bytes]:
    response = http.client.HTTPResponse(data)  # type: ignore[arg-type]
    response.begin()
    return response.status, response.read()


@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_a_whole_answer_comes_late(proxy: ProxyServer, upstream: FakeUpstream, version: str) -> None:
    upstream.says(*LATE)
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as client:
        client.sendall(request(stream=False, version=version))
        client.shutdown(socket.SHUT_WR)
        status, body = read(Read(received(client)))
    assert (status, json.loads(body)["choices"][0]["message"]["content"]) == (200, "Hello there.")


@pytest.mark.parametrize("begun", [False, True])
def test_a_stream_comes_slowly(proxy: ProxyServer, upstream: FakeUpstream, *, begun: bool) -> None:
    upstream.says(*SLOW)
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as client:
        client.sendall(request(stream=True))
        first = client.recv(65536) if begun else b""
        client.shutdown(socket.SHUT_WR)
        status, body = read(Read(first + received(client)))
    assert (status, body) == (200, STREAM)


def test_each_of_several_requests_is_answered(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    upstream.says(*LATE)
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as client:
        client.sendall(request(stream=False) * 3)
        client.shutdown(socket.SHUT_WR)
        data = Read(received(client))
    assert [read(data)[0] for _ in range(3)] == [200, 200, 200]
    assert data.read() == b"", "and the connection is closed"


def test_an_error_comes_whole(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    upstream.says(0.5, *answer({"error": {"message": "No."}}, 400))
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as client:
        client.sendall(request(stream=True))
        client.shutdown(socket.SHUT_WR)
        assert read(Read(received(client)))[0] == 400


def test_half_a_request_is_none(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as client:
        client.sendall(request(stream=True)[:-5])
        client.shutdown(socket.SHUT_WR)
        assert received(client) == b""
    assert not upstream.requests
