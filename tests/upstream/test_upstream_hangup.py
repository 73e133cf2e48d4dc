"""Slow readers, and readers that leave."""

import asyncio
import random

import pytest

from proxy.errors import UpstreamBroken, UpstreamUnreachable
from tests.contract_upstream import Make, ask, path_says, rest, whole
from tests.peers.http_peer import CHUNKED, LAST, Talk, answering, chunk, serve, sized

pytestmark = [pytest.mark.anyio, pytest.mark.faults]


async def test_a_cancelled_read_loses_nothing(client: Make) -> None:
    async with serve(answering(CHUNKED, *[chunk(b"%03d" % n) for n in range(100)], LAST)) as peer:
        response, got = await ask(client(peer.url)), b""
        while True:
            try:
                data = await asyncio.wait_for(response.read(), random.random() / 500)
            except TimeoutError:
                continue
            if not data:
                break
            got += data
        assert got == b"".join(b"%03d" % n for n in range(100))


async def test_close_is_heard_at_once_and_may_be_said_twice(client: Make) -> None:
    async with serve(answering(CHUNKED, chunk(b"hi"))) as peer:
        response = await ask(client(peer.url))
        await response.read()
        response.close()
        response.close()
        await peer.all_closed()
        with pytest.raises(UpstreamBroken):
            await response.read()


async def test_closing_a_whole_answer_keeps_its_connection(client: Make) -> None:
    async with serve(answering(sized(b"hi"))) as peer:
        upstream = client(peer.url)
        response = await ask(upstream)
        await asyncio.sleep(0.01)
        response.close()
        assert await response.read() == b""
        await whole(upstream)
        assert len(peer.talks) == 1


async def test_a_slow_reader_slows_the_model(client: Make) -> None:
    sent = 0

    async def script(talk: Talk) -> None:
        nonlocal sent
        await talk.request()
        talk.send(CHUNKED)
        piece = chunk(bytes(1 << 20))
        while sent < 60:
            while talk.transport.get_write_buffer_size() > 1 << 20:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            talk.send(piece)
            sent += 1
        talk.send(LAST)
        await talk.request()
        talk.send(sized(b"hi"))

    async with serve(script) as peer:
        upstream = client(peer.url)
        response = await ask(upstream, within=20)
        await asyncio.sleep(0.4)
        assert sent < 30
        assert len(await response.read()) < 3 << 20
        assert len(await rest(response)) > 50 << 20
        assert len(await response.read()) == 0
        assert await whole(upstream) == b"hi"
        assert len(peer.talks) == 1


async def test_the_end_reaches_a_slow_reader(client: Make) -> None:
    async with serve(answering(b"HTTP/1.1 200 OK\r\n\r\n" + bytes(5_000_000), then="close")) as peer:
        response = await ask(client(peer.url))
        await asyncio.sleep(0.1)
        assert len(await rest(response)) == 5_000_000


async def test_lines_of_a_megabyte(client: Make) -> None:
    line = b"data: " + b"x" * (1 << 20) + b"\n\n"
    async with serve(answering(CHUNKED + chunk(line) * 3 + LAST)) as peer:
        upstream = client(peer.url)
        assert await whole(upstream) == line * 3
        await whole(upstream)
        assert len(peer.talks) == 1


async def test_aclose_turns_everybody_away(client: Make) -> None:
    async with serve(path_says) as peer:
        upstream = client(peer.url, max_connections=3)
        body = await ask(upstream, "/body")
        await whole(upstream, "/whole")
        head = asyncio.create_task(ask(upstream, "/nothing"))
        other = asyncio.create_task(ask(upstream, "/nothing"))
        queued = asyncio.create_task(ask(upstream, "/nothing"))
        await asyncio.sleep(0.05)
        await upstream.aclose()
        for task in (head, other, queued):
            with pytest.raises(UpstreamUnreachable, match="closed"):
                await task
        assert await body.read() == b"hi"
        with pytest.raises(UpstreamBroken, match="closed"):
            await body.read()
        with pytest.raises(UpstreamUnreachable, match="closed"):
            await ask(upstream)
        await upstream.aclose()
        await peer.all_closed()


async def test_aclose_ends_dials(client: Make) -> None:
    async with serve(lambda _: asyncio.sleep(60)) as peer:
        upstream = client(f"https://127.0.0.1:{peer.port}")
        task = asyncio.create_task(ask(upstream))
        await asyncio.sleep(0.05)
        await upstream.aclose()
        with pytest.raises(UpstreamUnreachable, match="closed"):
            await task
        await peer.all_closed()
