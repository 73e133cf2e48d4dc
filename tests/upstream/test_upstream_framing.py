"""An upstream's answer is read correctly, wherever its bytes are cut."""

import asyncio
import gzip
import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.errors import UpstreamBroken
from proxy.upstream.client import HttpUpstream
from tests.contract_upstream import Make, ask, rest, whole
from tests.peers.http_peer import CHUNKED, LAST, Talk, answering, chunk, serve, sized

pytestmark = [pytest.mark.anyio, pytest.mark.faults]
FRAMED = {
    "length": sized(b"hello"),
    "empty": sized(b""),
    "chunked": CHUNKED + b"3;a=b\r\nhel\r\n2\r\nlo\r\n" + LAST,
    "trailers": CHUNKED + chunk(b"hello") + b"0\r\nx-sum: 1\r\ny: 2\r\n\r\n",
    "interim": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"
    + sized(b"hello"),
    "no content": b"HTTP/1.1 204 No Content\r\nx: y\r\n\r\n",
    "not modified": b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n",
    "gzip": sized(gzip.compress(b"hello", mtime=0), b"content-encoding: gzip"),
}
EMPTY = ("empty", "no content", "not modified")


@pytest.mark.parametrize("name", FRAMED)
async def test_framing_survives_a_cut_at_every_byte(client: Make, name: str) -> None:
    data = FRAMED[name]

    async def script(talk: Talk) -> None:
        for at in range(1, len(data)):
            await talk.request()
            await talk.send_slowly(data[:at], data[at:])

    async with serve(script) as peer:
        upstream = client(peer.url)
        for _ in range(1, len(data)):
            response = await ask(upstream)
            assert await rest(response) == (b"" if name in EMPTY else b"hello")
            assert b"link" not in dict(response.headers)
            assert b"x-sum" not in dict(response.headers)
        assert len(peer.talks) == 1


@pytest.mark.parametrize("name", FRAMED)
async def test_truncation_at_every_byte_is_broken(client: Make, name: str) -> None:
    data = FRAMED[name]
    cuts = iter(range(len(data)))

    async def script(talk: Talk) -> None:
        await talk.request()
        talk.send(data[: next(cuts)])
        talk.close()

    async with serve(script) as peer:
        upstream = client(peer.url)
        for _ in range(len(data)):
            with pytest.raises(UpstreamBroken):
                await whole(upstream)
        assert len(peer.talks) == len(data)


@pytest.mark.parametrize("status", [b"HTTP/1.1 200 OK", b"HTTP/1.0 200 OK", b"HTTP/1.1 200"])
async def test_without_a_length_the_end_is_the_end(client: Make, status: bytes) -> None:
    async with serve(answering(status + b"\r\nx: y\r\n\r\nhe", b"llo", then="close")) as peer:
        upstream = client(peer.url)
        assert [await whole(upstream), await whole(upstream)] == [b"hello", b"hello"]
        assert len(peer.talks) == 2


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(chunks=st.lists(st.binary(min_size=1, max_size=40), max_size=5), cuts=st.sets(st.integers(1, 300)))
def test_any_chunks_in_any_segments(chunks: list[bytes], cuts: set[int]) -> None:
    data = CHUNKED + b"".join(map(chunk, chunks)) + LAST
    marks = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    pieces = [data[a:b] for a, b in itertools.pairwise(marks)]

    async def main() -> None:
        async with serve(answering(*pieces)) as peer:
            upstream = HttpUpstream(peer.url, connect=2, environ={})
            assert await whole(upstream) == b"".join(chunks)
            await upstream.aclose()

    asyncio.run(main())


@pytest.mark.parametrize(
    "data",
    [
        b"junk\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 099 No\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na: \0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na : b\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nhi!",
        b"HTTP/1.1 200 OK\r\ncontent-length: -2\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        CHUNKED + b"zz\r\nhello\r\n0\r\n\r\n",
        CHUNKED + b"3\r\nhello\r\n0\r\n\r\n",
        CHUNKED + b"fffffffffffffffff\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: yyyy\r\n" * 20_000,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 20_000,
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 2_000_000,
        CHUNKED + b"0\r\n" + b"x: y\r\n" * 40_000,
        CHUNKED + b"1;" + b"e" * 300_000,
        sized(b"hi", b"content-encoding: br"),
        sized(b"not gzip", b"content-encoding: gzip"),
        sized(gzip.compress(b"hi", mtime=0)[:-4], b"content-encoding: gzip"),
        sized(gzip.compress(b"hi", mtime=0) + b"surplus", b"content-encoding: gzip"),
    ],
)
async def test_garbage_is_broken(client: Make, data: bytes) -> None:
    async with serve(answering(data)) as peer:
        with pytest.raises(UpstreamBroken):
            await whole(client(peer.url), within=3)


async def test_what_came_before_the_garbage_is_read_first(client: Make) -> None:
    async with serve(answering(CHUNKED + chunk(b"hello") + b"zz\r\n")) as peer:
        response = await ask(client(peer.url))
        assert await response.read() == b"hello"
        for _ in range(2):
            with pytest.raises(UpstreamBroken):
                await response.read()
        response.close()
        await peer.all_closed()


@pytest.mark.parametrize("then", ["close", "abort"])
@pytest.mark.parametrize("data", [CHUNKED + chunk(b"hello"), sized(b"hello world")[:-6]])
async def test_a_lost_connection_is_broken_after_what_came(client: Make, data: bytes, then: str) -> None:
    async with serve(answering(data, b"", then=then)) as peer:
        response = await ask(client(peer.url))
        assert await response.read() == b"hello"
        with pytest.raises(UpstreamBroken, match="middle"):
            await response.read()


async def test_redirects_and_errors_are_returned(client: Make) -> None:
    data = b"HTTP/1.1 302 Found\r\nlocation: /x\r\ncontent-length: 0\r\n\r\n"
    async with serve(answering(data)) as peer:
        assert (await ask(client(peer.url))).status == 302
        assert len(peer.talks[0].requests) == 1
