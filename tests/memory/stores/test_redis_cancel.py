"""A reply of Redis reaches the caller of its command, even if other callers were cancelled."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Iterator

import pytest
import redis.asyncio

from proxy.memory.errors import StoreError
from proxy.memory.stores.redis import open as open_store
from proxy.memory.stores.store import BlobWrite, Key, Store
from tests.peers.redis_server import RedisServer, single

pytestmark = [pytest.mark.anyio, pytest.mark.faults]

KEYS = [Key("t", f"session {number}") for number in range(40)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with single(tmp_path_factory.mktemp("redis")) as server:
        yield server


def blob_of(key: Key) -> bytes:
    return key.session.encode() * 300


@contextlib.asynccontextmanager
async def filled(server: RedisServer, deadline: float) -> AsyncIterator[Store]:
    server.ask("FLUSHALL")
    store = open_store(server.url, deadline=2)
    for key in KEYS:
        assert await store.write(key, BlobWrite(blob_of(key), version=0, ttl=60, cold=[blob_of(key)]))
    await store.aclose()
    store = open_store(server.url, deadline=deadline)
    try:
        yield store
    finally:
        await store.aclose()


async def looked_at(store: Store, key: Key) -> str:
    """One operation, and whether its answer was its own."""
    try:
        if random.random() < 0.3:
            right = await store.cold(key) == [blob_of(key)]
        else:
            right = (await store.read(key)).blob == blob_of(key)
    except StoreError:
        return "failed"
    return "right" if right else "wrong"


async def cancelled_somewhere(store: Store, longest: float) -> str:
    task = asyncio.create_task(looked_at(store, random.choice(KEYS)))
    await asyncio.sleep(random.random() * longest)
    task.cancel()
    try:
        return await task
    except asyncio.CancelledError:
        return "cancelled"


async def test_replies_go_to_their_askers_while_others_leave(server: RedisServer):
    seen: list[str] = []
    async with filled(server, 2) as store:
        # How many leave in time depends on how quick the machine is.
        for _ in range(400):
            work = [cancelled_somewhere(store, 0.002) for _ in range(30)]
            work += [looked_at(store, random.choice(KEYS)) for _ in range(10)]
            seen += await asyncio.gather(*work)
            if seen.count("cancelled") >= 500:
                break
        assert await asyncio.gather(*[looked_at(store, key) for key in KEYS]) == ["right"] * len(KEYS)
    assert seen.count("cancelled") >= 500
    assert set(seen) == {"cancelled", "right"}


async def test_replies_go_to_their_askers_where_the_server_stalls_past_every_grace(server: RedisServer):
    seen: list[str] = []
    async with filled(server, 0.003) as store, redis.asyncio.Redis(port=server.port, protocol=2) as admin:
        for _ in range(25):
            stall = asyncio.create_task(admin.execute_command("DEBUG", "SLEEP", random.choice([0.01, 0.05])))
            work = [cancelled_somewhere(store, 0.006) for _ in range(20)]
            seen += await asyncio.gather(*work, *[looked_at(store, random.choice(KEYS)) for _ in range(10)])
            await stall
            seen += [await looked_at(store, key) for key in KEYS[:5]]
    assert {"failed", "right"} <= set(seen) <= {"cancelled", "failed", "right"}


async def test_leaving_costs_no_connection(server: RedisServer):
    async with filled(server, 2) as store:
        await asyncio.gather(*[ask(key) for key in KEYS for ask in (store.read, store.cold)])
        before = server.ask("INFO", "stats")["total_connections_received"]
        for _ in range(100):
            await cancelled_somewhere(store, 0.0005)
        assert server.ask("INFO", "stats")["total_connections_received"] == before + 1


async def test_a_write_whose_caller_left_is_made_whole_or_not_at_all(server: RedisServer):
    async with filled(server, 2) as store:
        for number, key in enumerate(KEYS):
            held = await store.read(key)
            task = asyncio.create_task(
                store.write(key, BlobWrite(b"next", version=held.version, ttl=60, cold=[b"moved"]))
            )
            await asyncio.sleep(0.0001 * (number % 6))
            task.cancel()
            await asyncio.wait({task})
        await asyncio.sleep(0.1)
        for key in KEYS:
            parts = (await store.read(key)).blob, len(await store.cold(key))
            assert parts in {(blob_of(key), 1), (b"next", 2)}
