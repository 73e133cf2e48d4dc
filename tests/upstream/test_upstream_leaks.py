"""Cancelled and finished requests of the HTTP client leave nothing behind."""

import asyncio
import gc
import random

import pytest
import trustme

from proxy.upstream.client import HttpUpstream
from proxy.upstream.connection import HttpResponse
from tests.contract_upstream import Make, ask, path_says, server_context, trusting, whole
from tests.peers.http_peer import serve

pytestmark = [pytest.mark.anyio, pytest.mark.faults]


@pytest.mark.parametrize("secure", [False, True])
async def test_a_thousand_cancellations_leave_nothing(client: Make, secure: bool) -> None:
    authority = trustme.CA()
    tls = server_context(authority, "127.0.0.1") if secure else None
    loop, count = asyncio.get_running_loop(), 200 if secure else 1000
    async with serve(path_says, tls=tls) as peer:
        upstream = client(peer.url, max_connections=20, context=trusting(authority) if secure else None)
        before = len(asyncio.all_tasks())

        async def one() -> None:
            response = await ask(upstream, random.choice(["/body", "/nothing", "/whole", "/slow"]))
            try:
                while await response.read():
                    pass
            finally:
                response.close()

        tasks = []
        for _ in range(count):
            tasks.append(task := asyncio.create_task(one()))
            loop.call_later(random.choice([0, 0.001, 0.003, 0.01, 0.03]) * random.random(), task.cancel)
            await asyncio.sleep(0.0005 * random.random())
        _, late = await asyncio.wait(tasks, timeout=10)
        assert not late
        for task in tasks:
            assert task.cancelled() or task.exception() is None
        if isinstance(upstream, HttpUpstream):
            pool = upstream._pool
            await asyncio.sleep(0.05)
            assert (pool.free, len(pool._queue), len(pool._dials)) == (20, 0, 0)
            assert len(pool) == len(pool._idle) <= 20
            assert _deadlines(loop) <= 1 + len(pool)  # a connection keeps its timer for the next request
        assert await whole(upstream, "/whole") == b"hi"
        await asyncio.sleep(0.2)
        assert peer.open <= 20
        await upstream.aclose()
        await peer.all_closed()
        await asyncio.sleep(0)
        assert len([t for t in asyncio.all_tasks() if t.get_name() != "peer"]) <= before


def _deadlines(loop: asyncio.AbstractEventLoop) -> int:
    """Timers of ours that are alive (asyncio's loop tells, uvloop does not)."""
    timers = [t for t in getattr(loop, "_scheduled", ()) if not t.cancelled()]
    return sum(str(getattr(t._callback, "__module__", "")).startswith("proxy.upstream") for t in timers)


async def test_finished_answers_leave_nothing_for_the_garbage_collector(client: Make) -> None:
    async with serve(path_says) as peer:
        upstream = client(peer.url)
        await whole(upstream, "/whole")
        gc.collect()
        others = _answers()  # of servers that other tests have started in this process
        gc.disable()
        try:
            for path in ("/whole", "/slow", "/body"):
                for _ in range(10):
                    response = await ask(upstream, path)
                    await response.read()
                    await asyncio.sleep(0.02)
                    response.close()
            del response
            await asyncio.sleep(0.05)
            assert not [one for one in _answers() if not any(one is other for other in others)]
        finally:
            gc.enable()


def _answers() -> list[object]:
    return [one for one in gc.get_objects() if type(one) is HttpResponse]
