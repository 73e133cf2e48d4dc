"""HTTP as it should not be spoken, and still is."""

import asyncio
import json
import time

import pytest

from proxy.server import protocol
from tests.peers.fake_upstream import DONE, END, HANG, HEAD, ROLE, FakeUpstream, chunk, delta, stream_of
from tests.peers.raw_client import RawClient, request, split
from tests.proxy_server import ProxyServer
from tests.waiting import until

H2C = "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAAAAAMAAAAA\r\n"
CHUNKED = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n"
GET = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"


def is_openai_error(body: bytes) -> bool:
    return set(json.loads(body)["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("pieces", [1, 2, 7])
def test_an_offer_of_http_2_does_not_cost_the_body(
    proxy: ProxyServer, upstream: FakeUpstream, pieces: int
) -> None:
    data = request(extra=H2C)
    step = -(-len(data) // pieces)
    with RawClient(proxy.port) as client:
        for start in range(0, len(data), step):
            client.send(data[start : start + step])
            time.sleep(0.02)
        assert split(client.until(b"Hello there."))[0] == 200
        assert upstream.last.json["messages"] == [{"role": "user", "content": "Hi"}]
        client.send(request())  # and the connection goes on
        assert split(client.until(b"Hello there."))[0] == 200


def test_an_offer_of_http_2_does_not_cost_a_chunked_body(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    body = request().partition(b"\r\n\r\n")[2]
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: a.localhost\r\ntransfer-encoding: chunked\r\n{H2C}\r\n"
    )
    with RawClient(proxy.port) as client:
        client.send(head.encode() + chunk(body[:9]) + chunk(body[9:]) + END + GET)
        got = client.until(b"alive")
    assert split(got)[0] == 200
    assert b"Hello there." in got
    assert upstream.last.json["messages"] == [{"role": "user", "content": "Hi"}]


def test_an_offer_of_http_2_without_a_body_is_answered_in_http_1(proxy: ProxyServer) -> None:
    with RawClient(proxy.port) as client:
        client.send(GET[:-2] + H2C.encode() + b"\r\n" + GET)
        assert client.until(b'"alive"}HTTP/1.1 200')


def test_http_1_0_gets_a_stream_without_chunks(proxy: ProxyServer) -> None:
    with RawClient(proxy.port) as client:
        client.send(request(version="1.0", stream=True))
        status, headers, body = split(client.rest())
    assert status == 200
    assert "transfer-encoding" not in headers
    assert headers["connection"] == "close"
    assert body == stream_of("Hello", " there.")


def test_http_1_0_gets_a_whole_answer_with_its_length(proxy: ProxyServer) -> None:
    with RawClient(proxy.port) as client:
        client.send(request(version="1.0"))
        _, headers, body = split(client.rest())
    assert int(headers["content-length"]) == len(body)
    assert json.loads(body)["object"] == "chat.completion"


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"hello\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST http://127.0.0.1 HTTP/1.1\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: x\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nbad header: 1\r\n\r\n",
        b"POST /v1/models HTTP/1.1\r\nhost: a.localhost\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n",
    ],
)
def test_what_is_no_http_gets_400_in_openai_s_shape(proxy: ProxyServer, nonsense: bytes) -> None:
    with RawClient(proxy.port) as client:
        client.send(nonsense)
        status, headers, body = split(client.rest())
    assert status == 400
    assert headers["content-type"] == "application/json"
    assert headers["x-request-id"] and headers["server-timing"]
    assert is_openai_error(body)
    assert proxy.chat().status_code == 200


def test_a_client_that_sends_on_behind_a_broken_body_can_read_the_error(proxy: ProxyServer) -> None:
    """A connection that is closed while its client sends is reset, and what was answered lost with it."""
    with RawClient(proxy.port) as client:
        client.send(CHUNKED + b"\r\n" + b"18000\r\n" + b"x" * 0x18000 + b"\r\n")
        until(lambda: proxy.app._generation.calls)  # the request is being answered
        client.send(b"zz\r\n")
        status, _, body = split(client.until(b"}}"))
        until(lambda: not proxy.app._generation.calls)
        for _ in range(3):
            client.send(b"y" * 1000)
            proxy.run(asyncio.sleep(0))
    assert status == 400
    assert is_openai_error(body)


@pytest.mark.parametrize(
    ("version", "hosts", "status"),
    [("1.1", [], 400), ("1.1", ["localhost"] * 2, 400), ("1.0", ["localhost", "a.b"], 400), ("1.0", [], 200)],
)
def test_a_request_names_its_host_once(
    proxy: ProxyServer, version: str, hosts: list[str], status: int
) -> None:
    """Who stands in front may have gone by the other one (RFC 9112, 3.2)."""
    lines = "".join(f"host: {host}\r\n" for host in hosts)
    with RawClient(proxy.port) as client:
        client.send(f"GET /v1/models HTTP/{version}\r\n{lines}connection: close\r\n\r\n".encode())
        got, _, body = split(client.rest())
    assert got == status
    assert status == 200 or "'Host'" in json.loads(body)["error"]["message"]


@pytest.mark.parametrize(
    "codings",
    [["identity", "chunked"], ["chunked", "identity"], ["gzip, chunked"], ["chunked", "chunked"], [""]],
    ids=" then ".join,
)
def test_a_body_that_is_not_just_chunked_gets_400(
    proxy: ProxyServer, upstream: FakeUpstream, codings: list[str]
) -> None:
    """Two readers who take its end for another place take its rest for another's request."""
    head = "".join(f"transfer-encoding: {coding}\r\n" for coding in codings)
    body = request().partition(b"\r\n\r\n")[2]
    with RawClient(proxy.port) as client:
        client.send(CHUNKED[: CHUNKED.index(b"transfer")] + head.encode() + b"\r\n" + chunk(body) + END)
        status, _, error = split(client.rest())
    assert status == 400
    assert is_openai_error(error)
    assert not upstream.requests


def test_chunked_may_be_written_in_capitals(proxy: ProxyServer) -> None:
    body = request().partition(b"\r\n\r\n")[2]
    with RawClient(proxy.port) as client:
        client.send(CHUNKED.replace(b"chunked", b" Chunked ") + b"\r\n" + chunk(body) + END)
        assert split(client.until(b"Hello there."))[0] == 200


@pytest.mark.parametrize(
    "head",
    [
        b"GET /healthz HTTP/1.1\r\nhost: a.localhost\r\nx-big: " + b"x" * 100_000 + b"\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n" + b"".join(b"x-%d: y\r\n" % i for i in range(20_000)) + b"\r\n",
        b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nhost: a.localhost\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nx-endless: " + b"x" * 3_000_000,
    ],
    ids=["one header", "many headers", "path", "endless"],
)
def test_a_giant_head_gets_431(proxy: ProxyServer, head: bytes) -> None:
    with RawClient(proxy.port) as client:
        client.send(head)
        status, _, body = split(client.rest())
    assert status == 431
    assert is_openai_error(body)


@pytest.mark.parametrize(
    "behind",
    [b"0\r\nx-endless: " + b"x" * 3_000_000, b"0\r\n" + b"x: y\r\n" * 500_000, b"1;" + b"x" * 3_000_000],
    ids=["one trailer", "many trailers", "a chunk's extension"],
)
def test_what_is_giant_behind_a_body_gets_431(proxy: ProxyServer, behind: bytes) -> None:
    with RawClient(proxy.port) as client:
        client.send(CHUNKED + b"\r\n" + chunk(b"{"))
        client.send(behind)
        status, _, body = split(client.rest())
    assert status == 431
    assert is_openai_error(body)


def test_a_head_may_come_in_pieces(proxy: ProxyServer) -> None:
    head = GET[:-2] + b"".join(b"x-%d: %s\r\n" % (i, b"y" * 1000) for i in range(55)) + b"\r\n"
    with RawClient(proxy.port) as client:
        for start in range(0, len(head), 5000):
            client.send(head[start : start + 5000])
            time.sleep(0.01)
        assert split(client.until(b"alive"))[0] == 200


def test_what_stands_behind_a_body_is_no_header(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    body = request().partition(b"\r\n\r\n")[2]
    trailers = b"host: evil.example\r\nx-session-id: another\r\nx-request-id: another\r\n"
    with RawClient(proxy.port) as client:
        client.send(CHUNKED + b"x-session-id: mine\r\n\r\n" + chunk(body) + b"0\r\n" + trailers + b"\r\n")
        status, headers, _ = split(client.until(b"Hello there."))
    assert status == 200
    assert headers["x-turnkeeper-session"] == "mine"
    assert headers["x-request-id"] != "another"


@pytest.mark.parametrize("first", [b"", GET], ids=["before a request", "between requests"])
def test_blank_lines_are_no_reason_to_stay(
    proxy: ProxyServer, monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT", 0.3)
    monkeypatch.setattr(proxy._server.config, "timeout_keep_alive", 0.3)
    with RawClient(proxy.port) as client:
        client.send(first)
        if first:
            client.until(b"alive")
        client.send(b"\r\n")
        assert client.rest() == b""


def test_pipelined_requests_are_answered_in_their_order(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    upstream.says(HEAD, chunk(ROLE), chunk(delta(content="one")), 0.1, chunk(DONE), END)
    with RawClient(proxy.port) as client:
        client.send(request(stream=True) + GET + request("/v1/nowhere"))
        got = client.until(b"There is nothing")
    assert got.index(b"[DONE]") < got.index(b"alive") < got.index(b"There is nothing")


@pytest.mark.parametrize("ahead", [GET * 30, GET * 3 + request(pad="x" * 300_000)], ids=["many", "much"])
def test_who_sends_too_much_ahead_is_answered_what_came_before(
    proxy: ProxyServer, upstream: FakeUpstream, ahead: bytes
) -> None:
    upstream.says(HEAD, chunk(ROLE), chunk(delta(content="one")), 0.3, chunk(DONE), END)
    with RawClient(proxy.port) as client:
        client.send(request(stream=True))
        client.until(b"one")
        client.send(ahead)
        rest = client.rest()
    assert rest.count(b"alive") == min(ahead.count(GET), 8)
    assert b"HTTP/1.1 4" not in rest


def test_nonsense_behind_a_request_does_not_get_into_its_answer(
    proxy: ProxyServer, upstream: FakeUpstream
) -> None:
    upstream.says(HEAD, chunk(ROLE), chunk(delta(content="one")), 0.2, chunk(DONE), END)
    with RawClient(proxy.port) as client:
        client.send(request(stream=True))
        client.until(b"one")
        client.send(b"\x00nonsense\r\n\r\n")
        rest = client.rest()
    assert rest.endswith(b"0\r\n\r\n")
    assert b"HTTP/1.1 4" not in rest


@pytest.mark.parametrize("ahead", [GET, GET * 30, request(pad="x" * 300_000)], ids=["one", "many", "much"])
def test_a_client_that_leaves_after_sending_ahead_takes_its_turn_with_it(
    proxy: ProxyServer, upstream: FakeUpstream, ahead: bytes
) -> None:
    upstream.says(HEAD, chunk(ROLE), chunk(delta(content="one")), HANG)
    with RawClient(proxy.port) as client:
        client.send(request(stream=True))
        client.until(b"one")
        client.send(ahead)
    assert upstream.last.closed.wait(10)


def test_a_slow_head_times_out(proxy: ProxyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT", 0.2)
    with RawClient(proxy.port) as client:
        client.send(b"GET /healthz HT")
        status, _, body = split(client.rest())
    assert status == 408
    assert is_openai_error(body)
    with RawClient(proxy.port) as client:
        assert client.rest() == b""


def test_a_slow_body_times_out(
    proxy: ProxyServer, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "BODY_TIMEOUT", 0.2)
    with RawClient(proxy.port) as client:
        client.send(request()[:-1])
        status, _, body = split(client.rest())
    assert status == 408
    assert is_openai_error(body)
    assert not upstream.requests


def test_a_client_that_does_not_read_is_left_at_last(
    proxy: ProxyServer, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "READ_TIMEOUT", 0.3)
    much = chunk(delta(content="x" * 100_000))
    upstream.says(HEAD, chunk(ROLE), *([much] * 300), HANG)
    with RawClient(proxy.port) as client:
        client.send(request(stream=True))
        time.sleep(0.2)
        assert upstream.last.closed.wait(10)
