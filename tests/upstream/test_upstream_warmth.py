"""A connection stands open before the first request, and while requests come."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trustme

from proxy.upstream.client import HttpUpstream, Pool
from proxy.upstream.dial import Route, system_trust
from tests.contract_upstream import Make, now, server_context, trusting, whole
from tests.peers.http_peer import Peer, Talk, answering, serve, sized

pytestmark = pytest.mark.anyio
PAUSE = 0.1


@asynccontextmanager
async def running(work: Any) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.get_running_loop().create_task(work)
    yield task
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@asynccontextmanager
async def warmed(url: str, active: float = 60.0) -> AsyncIterator[Pool]:
    """A pool that looks often whether it is warm."""
    pool = Pool(Route.of(url, {}, system_trust), size=1, connect=1, idle=60)
    async with running(pool.keep_warm(every=0.01, pause=PAUSE, active=active)):
        yield pool
    await pool.aclose()


async def until(condition: Any, within: float = 5.0) -> None:
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110 - as tests of another thread would
            await asyncio.sleep(0.002)


async def lose(peer: Peer) -> None:
    """The peer closes what is open, and the client knows."""
    await until(lambda: peer.open)
    peer.talks[-1].close()
    await asyncio.wait_for(peer.talks[-1].lost.wait(), 1)


async def test_the_first_request_finds_a_connection_whose_tls_stands(client: Make) -> None:
    authority = trustme.CA()
    async with serve(answering(sized(b"hi")), tls=server_context(authority, "127.0.0.1")) as peer:
        upstream = client(peer.url, context=trusting(authority))
        async with running(upstream.keep_warm()):
            await until(lambda: peer.talks)
            await asyncio.sleep(0.05)
            assert not peer.talks[0].received, "nothing is asked over it"
            assert await whole(upstream) == b"hi"
            assert [len(talk.requests) for talk in peer.talks] == [1]


async def test_a_connection_that_ends_as_the_first_request_goes_out_costs_no_answer(client: Make) -> None:
    async def script(talk: Talk) -> None:
        await talk.request()
        if len(talk.peer.talks) > 1:
            talk.send(sized(b"hi"))
        else:
            talk.close()

    async with serve(script) as peer:
        upstream = client(peer.url)
        async with running(upstream.keep_warm()):
            await until(lambda: peer.open)
            await asyncio.sleep(0.02)
            assert await whole(upstream) == b"hi"
        assert [len(talk.requests) for talk in peer.talks] == [1, 1]


async def test_what_the_peer_closes_is_opened_anew_and_not_often() -> None:
    async with serve(answering(sized(b"hi"))) as peer, warmed(peer.url):
        began = now()
        for _ in range(3):
            await lose(peer)
        await until(lambda: peer.open)
        assert len(peer.talks) == 4
        assert now() - began >= 3 * PAUSE - 0.02


async def test_without_requests_what_is_closed_stays_closed() -> None:
    async with serve(answering(sized(b"hi"))) as peer, warmed(peer.url, active=0.03) as pool:
        await until(lambda: peer.open)
        await asyncio.sleep(PAUSE)
        await lose(peer)
        await asyncio.sleep(2 * PAUSE)
        assert len(peer.talks) == 1
        pool.requested = True
        await until(lambda: peer.open)


async def test_while_a_connection_is_in_use_no_other_is_opened() -> None:
    async with serve(answering(sized(b"hi"))) as peer, warmed(peer.url) as pool:
        await until(lambda: len(pool))
        taken = pool.take_idle()
        await asyncio.sleep(2 * PAUSE)
        assert (len(peer.talks), taken.transport.is_closing()) == (1, False)


async def test_a_dead_upstream_costs_one_look_and_a_line_for_those_who_debug(caplog: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with caplog.at_level(logging.DEBUG, logger="turnkeeper"):
        async with warmed(f"http://127.0.0.1:{port}") as pool:
            await until(lambda: caplog.records)
            await asyncio.sleep(3 * PAUSE)
            assert [(r.levelname, f":{port}" in r.getMessage()) for r in caplog.records] == [("DEBUG", True)]
            pool.requested = True
            await until(lambda: len(caplog.records) == 2)
            assert not len(pool)


async def test_warming_ends_with_its_upstream() -> None:
    async with serve(answering(sized(b"hi"))) as peer:
        upstream = HttpUpstream(peer.url, connect=2, environ={})
        async with running(upstream.keep_warm()) as keeping:
            await until(lambda: peer.open)
            await upstream.aclose()
            await peer.all_closed()
            await asyncio.wait_for(keeping, 5)
        assert len(peer.talks) == 1
