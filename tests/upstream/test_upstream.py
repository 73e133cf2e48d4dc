"""The HTTP client's requests, and to which addresses they may go."""

import random
import socket

import pytest

from proxy.upstream.client import HttpUpstream
from tests.contract_upstream import BODY, Make, ask, now, rest, whole
from tests.peers.http_peer import answering, serve, sized

pytestmark = pytest.mark.anyio


async def test_request_goes_out_whole_and_answer_comes_back(client: Make) -> None:
    async with serve(answering(sized(b"hi", b"X-Answer:  a b \t"))) as peer:
        response = await ask(client(peer.url))
        assert (response.status, await rest(response)) == (200, b"hi")
        assert (b"x-answer", b"a b") in response.headers
        (request,) = peer.talks[0].requests
        assert request.line == b"POST /v1/chat/completions HTTP/1.1"
        assert request.body == BODY
        assert request.headers == {
            b"host": b"127.0.0.1:%d" % peer.port,
            b"content-type": b"application/json",
            b"authorization": b"Bearer s3cret",
            b"accept-encoding": b"identity",
            b"content-length": b"13",
        }


async def test_large_bodies_arrive_whole(client: Make) -> None:
    async with serve(answering(sized(b"hi"))) as peer:
        body = random.randbytes(3_000_000)
        await rest(await ask(client(peer.url), body=body))
        assert peer.talks[0].requests[0].body == body


async def test_each_request_has_its_own_head(client: Make) -> None:
    first, second = ((b"x-n", b"1"),), ((b"x-n", b"2"),)
    asked = [("/a", first, b"x"), ("/a", first, b"long"), ("/a", second, b"x"), ("/b", second, b"x")]
    async with serve(answering(sized(b"hi"))) as peer:
        upstream = client(peer.url)
        for path, headers, body in asked:
            await rest(await upstream.open("POST", path, headers, body, due=now() + 5))
        heads = [
            (
                request.line.split()[1],
                request.headers[b"x-n"],
                request.headers[b"content-length"],
                request.body,
            )
            for talk in peer.talks
            for request in talk.requests
        ]
    assert heads == [
        (b"/v1" + path.encode(), headers[0][1], b"%d" % len(body), body) for path, headers, body in asked
    ]


async def test_get_has_no_body(client: Make) -> None:
    async with serve(answering(sized(b"hi"))) as peer:
        await rest(await client(peer.url).open("GET", "/models", [], b"", due=now() + 5))
        assert peer.talks[0].requests[0].line == b"GET /v1/models HTTP/1.1"
        assert b"content-length" not in peer.talks[0].requests[0].headers


async def test_no_delay_is_set(client: Make) -> None:
    async with serve(answering(sized(b"hi"))) as peer:
        upstream = client(peer.url)
        await whole(upstream)
        if isinstance(upstream, HttpUpstream):
            (connection,) = upstream._pool._all
            assert connection.transport is not None
            sock = connection.transport.get_extra_info("socket")
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
async def test_ipv6(client: Make) -> None:
    async with serve(answering(sized(b"hi")), host="::1") as peer:
        assert await whole(client(f"http://[::1]:{peer.port}")) == b"hi"
        assert peer.talks[0].requests[0].headers[b"host"] == b"[::1]:%d" % peer.port


@pytest.mark.parametrize(
    "headers",
    [
        [(b"x", b"a\r\nb: c")],
        [(b"x", b"a\nb")],
        [(b"x", b"\0")],
        [(b"x\r\ny", b"a")],
        [(b"x y", b"a")],
        [(b"", b"a")],
        [(b"X", b"a")],
        [(b"content-length", b"3")],
        [(b"transfer-encoding", b"chunked")],
    ],
)
async def test_headers_cannot_inject(client: Make, headers: list[tuple[bytes, bytes]]) -> None:
    async with serve(answering(sized(b"hi"))) as peer:
        with pytest.raises(ValueError, match="header"):
            await client(peer.url).open("POST", "/x", headers, b"", due=now() + 5)
        assert not peer.talks


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/a b"), ("POST", "/\r\nx: y"), ("PO ST", "/"), ("POST", "x"), ("HEAD", "/")],
)
async def test_request_lines_cannot_be_broken(client: Make, method: str, path: str) -> None:
    with pytest.raises(ValueError, match="not a method and a path"):
        await client("http://127.0.0.1:1").open(method, path, [], b"", due=now() + 5)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://h",
        "h:80",
        "http://",
        "http://u:pw@h/v1",
        "http://h/v1?x=1",
        "http://h/ v1",
        "http://h:99999/",
        "http://a b/",
        "http://u:pw/x@h",
    ],
)
async def test_bad_base_urls_are_refused(client: Make, url: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        client(url)
    assert "pw" not in str(caught.value)
