"""Nothing takes for ever."""

import asyncio
import socket
import time

import pytest

from proxy.errors import UpstreamTimeout, UpstreamUnreachable
from tests.contract_upstream import Make, ask, now, rest
from tests.peers.http_peer import CHUNKED, Talk, answering, black_hole, chunk, serve, sized

pytestmark = [pytest.mark.anyio, pytest.mark.faults]


async def test_nobody_there(client: Make) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        with pytest.raises(UpstreamUnreachable, match="cannot connect"):
            await ask(client(f"http://127.0.0.1:{sock.getsockname()[1]}"))


async def test_no_such_host(client: Make) -> None:
    with pytest.raises(UpstreamUnreachable, match="cannot connect"):
        await ask(client("http://nowhere.invalid"))


async def test_connecting_is_bounded(client: Make) -> None:
    with black_hole() as hole:
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)  # noqa: FBT003
            filler.connect_ex(hole.getsockname())
        started = time.monotonic()
        with pytest.raises(UpstreamTimeout, match="no connection"):
            await ask(client(f"http://127.0.0.1:{hole.getsockname()[1]}", connect=0.1))
        assert time.monotonic() - started < 1
        for filler in fillers:
            filler.close()


async def test_a_silent_tls_peer_is_bounded(client: Make) -> None:
    async with serve(lambda _: asyncio.sleep(60)) as peer:
        with pytest.raises(UpstreamTimeout, match="no connection"):
            await ask(client(f"https://127.0.0.1:{peer.port}", connect=0.1))
        await peer.all_closed()


async def test_the_head_is_bounded(client: Make) -> None:
    async with serve(answering(b"HTTP/1.1 200 OK\r\nx:")) as peer:
        with pytest.raises(UpstreamTimeout, match="any answer"):
            await ask(client(peer.url), within=0.3)
        await peer.all_closed()


async def test_the_head_s_deadline_holds_for_the_body(client: Make) -> None:
    async with serve(answering(CHUNKED, chunk(b"hi"))) as peer:
        response = await ask(client(peer.url), within=1)
        assert await response.read() == b"hi"
        for _ in range(2):
            with pytest.raises(UpstreamTimeout, match="rest"):
                await response.read()
        await peer.all_closed()


@pytest.mark.parametrize("times", [(0.05,), (9, 0.05), (0.02, 0.05), (0.05, 0.02, 0.06)])
async def test_the_last_deadline_counts(client: Make, times: tuple[float, ...]) -> None:
    async with serve(answering(CHUNKED)) as peer:
        response = await ask(client(peer.url))
        start = now()
        for after in times:
            response.due(start + after)
        with pytest.raises(UpstreamTimeout):
            await response.read()
        assert times[-1] - 0.003 <= now() - start < times[-1] + 2


async def test_unread_bytes_do_not_outlive_the_deadline(client: Make) -> None:
    async with serve(answering(CHUNKED + chunk(b"hi"))) as peer:
        response = await ask(client(peer.url))
        response.due(now() + 0.03)
        await asyncio.sleep(0.06)
        with pytest.raises(UpstreamTimeout):
            await response.read()


async def test_a_whole_answer_is_never_late(client: Make) -> None:
    async with serve(answering(sized(b"hi"))) as peer:
        response = await ask(client(peer.url))
        response.due(now() + 0.05)
        await asyncio.sleep(0.1)
        response.due(now() - 1)
        assert await rest(response) == b"hi"


async def test_a_deadline_is_that_of_its_own_request(client: Make) -> None:
    async def at_once_then_later_then_never(talk: Talk) -> None:
        await talk.request()
        talk.send(sized(b"first"))
        await talk.request()
        await asyncio.sleep(0.2)
        talk.send(sized(b"second"))
        await talk.request()
        await asyncio.sleep(60)

    async with serve(at_once_then_later_then_never) as peer:
        upstream = client(peer.url)
        assert await rest(await ask(upstream, within=0.1)) == b"first"
        assert await rest(await ask(upstream, within=9)) == b"second"
        started = now()
        with pytest.raises(UpstreamTimeout, match="any answer"):
            await ask(upstream, within=0.1)
        assert now() - started < 5
        assert len(peer.talks) == 1
