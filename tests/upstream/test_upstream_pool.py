"""Pooled connections are reused, and their number is bounded."""

import asyncio

import pytest

from proxy.errors import UpstreamBroken, UpstreamTimeout
from tests.contract_upstream import Make, ask, now, rest, whole
from tests.peers.http_peer import CHUNKED, LAST, Talk, answering, chunk, serve, sized

pytestmark = pytest.mark.anyio


async def test_connections_are_reused(client: Make) -> None:
    async with serve(answering(sized(b"hi"))) as peer:
        upstream = client(peer.url)
        for _ in range(5):
            assert await whole(upstream) == b"hi"
        assert len(peer.talks) == 1


async def test_the_connection_used_last_is_used_next(client: Make) -> None:
    async with serve(answering(sized(b"hi"))) as peer:
        upstream = client(peer.url)
        await asyncio.gather(whole(upstream), whole(upstream))
        assert len(peer.talks) == 2
        for _ in range(4):
            await whole(upstream)
        assert sorted(len(talk.requests) for talk in peer.talks) == [1, 5]


@pytest.mark.parametrize(
    "data",
    [
        sized(b"hi", b"connection: close"),
        sized(b"hi").replace(b"1.1", b"1.0"),
        sized(b"hi") + b"surplus",
        sized(b"hi") + sized(b"hi"),
        CHUNKED + chunk(b"hi") + LAST + b"x",
    ],
)
async def test_some_answers_end_their_connection(client: Make, data: bytes) -> None:
    async with serve(answering(data)) as peer:
        upstream = client(peer.url)
        assert [await whole(upstream), await whole(upstream)] == [b"hi", b"hi"]
        assert len(peer.talks) == 2
        await peer.all_closed()


@pytest.mark.parametrize("later", ["send", "close", "abort"])
async def test_an_idle_connection_that_stirs_is_dropped(client: Make, later: str) -> None:
    async with serve(answering(sized(b"hi"))) as peer:
        upstream = client(peer.url)
        await whole(upstream)
        getattr(peer.talks[0], later)(*([b"HTTP/1.1 200 OK\r\n"] if later == "send" else []))
        await asyncio.sleep(0.05)
        assert await whole(upstream) == b"hi"
        assert len(peer.talks) == 2
        assert len(peer.talks[0].requests) == 1
        await asyncio.wait_for(peer.talks[0].lost.wait(), 1)


async def test_idle_connections_expire(client: Make) -> None:
    async with serve(answering(sized(b"hi"))) as peer:
        upstream = client(peer.url, idle=1.5)
        await asyncio.gather(*(whole(upstream) for _ in range(3)))
        await asyncio.sleep(0.6)
        used = now()
        await whole(upstream)
        while peer.open > 1:  # noqa: ASYNC110  (those that expire say nothing to this side)
            await asyncio.sleep(0.01)
        assert (peer.open, len(peer.talks)) == (1, 3)
        await peer.all_closed(10)
        assert now() - used > 1.4, "it was used since, and begins anew"


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_the_reuse_race_is_run_again_once(client: Make, how: str) -> None:
    async def script(talk: Talk) -> None:
        await talk.request()
        talk.send(sized(b"hi"))
        await talk.request()
        getattr(talk, how)()

    async with serve(script) as peer:
        upstream = client(peer.url)
        for _ in range(4):
            assert await whole(upstream) == b"hi"
        assert [len(talk.requests) for talk in peer.talks] == [2, 2, 2, 1]


async def test_the_second_try_is_the_last(client: Make) -> None:
    async def script(talk: Talk) -> None:
        await talk.request()
        if len(talk.peer.talks) < 3:
            talk.send(sized(b"hi"))
            await talk.request()
        talk.close()

    async with serve(script) as peer:
        upstream = client(peer.url)
        await asyncio.gather(whole(upstream), whole(upstream))
        with pytest.raises(UpstreamBroken):
            await whole(upstream)
        assert len(peer.talks) == 3


async def test_a_fresh_connection_gets_no_second_try(client: Make) -> None:
    async with serve(answering(b"", then="close")) as peer:
        with pytest.raises(UpstreamBroken):
            await whole(client(peer.url))
        assert len(peer.talks) == 1


async def test_an_answer_begun_gets_no_second_try(client: Make) -> None:
    async def script(talk: Talk) -> None:
        await talk.request()
        talk.send(sized(b"hi"))
        await talk.request()
        talk.send(b"H")
        talk.close()

    async with serve(script) as peer:
        upstream = client(peer.url)
        await whole(upstream)
        with pytest.raises(UpstreamBroken):
            await whole(upstream)
        assert len(peer.talks) == 1


async def test_first_come_first_served(client: Make) -> None:
    order: list[bytes] = []

    async def script(talk: Talk) -> None:
        while True:
            order.append((await talk.request()).line.split()[1])
            await asyncio.sleep(0.005)
            talk.send(sized(b"hi"))

    async with serve(script) as peer:
        upstream = client(peer.url, max_connections=1)
        tasks = [asyncio.create_task(whole(upstream, f"/{n:02}")) for n in range(12)]
        await asyncio.sleep(0.002)
        tasks[5].cancel()
        await asyncio.wait(tasks)
        assert order == sorted(order)
        assert len(order) == 11
        assert len(peer.talks) == 1


async def test_a_place_handed_to_somebody_who_leaves_goes_on(client: Make) -> None:
    async with serve(answering(CHUNKED)) as peer:
        upstream = client(peer.url, max_connections=1)
        response = await ask(upstream)
        second, third = asyncio.create_task(ask(upstream)), asyncio.create_task(ask(upstream))
        await asyncio.sleep(0.01)
        response.close()
        second.cancel()
        (await asyncio.wait_for(third, 1)).close()
        assert second.cancelled()


async def test_waiting_for_a_place_is_bounded(client: Make) -> None:
    async with serve(answering(CHUNKED)) as peer:
        upstream = client(peer.url, max_connections=1)
        response = await ask(upstream)
        with pytest.raises(UpstreamTimeout, match="busy"):
            await ask(upstream, within=0.05)
        response.close()
        (await ask(upstream)).close()
        await peer.all_closed()


async def test_an_answer_that_overtakes_its_request_ends_the_connection(client: Make) -> None:
    async def script(talk: Talk) -> None:
        talk.transport.pause_reading()
        talk.send(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno")

    async with serve(script) as peer:
        response = await ask(client(peer.url), body=bytes(30_000_000))
        assert (response.status, await rest(response)) == (413, b"no")
        peer.talks[0].transport.resume_reading()
        await peer.all_closed()
