"""Counts for limits, on a Redis that is all others' as well."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from unittest.mock import ANY

import pytest

from proxy.memory.errors import StoreError
from proxy.memory.stores.counts import Permit
from proxy.memory.stores.redis import open as open_store
from proxy.memory.stores.redis_counts import RedisCounts
from proxy.memory.stores.store import BlobWrite, Key, Store
from tests.peers.redis_server import RedisServer, single

pytestmark = pytest.mark.anyio
MINUTE = 60.0
HALF_AN_HOUR = 1800


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with single(tmp_path, "maxmemory-policy volatile-ttl", "maxmemory-samples 10") as found:
        yield found


@pytest.fixture
async def counts(server: RedisServer) -> AsyncIterator[RedisCounts]:
    found = RedisCounts(server.url, deadline=5.0)
    yield found
    await found.aclose()


async def test_a_redis_that_makes_room_forgets_sessions_before_limits(
    counts: RedisCounts, server: RedisServer
) -> None:
    """Redis evicts keys that would expire first, and a limit's minute is shorter than a session's time."""
    await counts.count("key", {"requests": 3}, ttl=MINUTE)
    server.ask("CONFIG", "SET", "maxmemory", int(server.ask("INFO", "memory")["used_memory"]) + 300_000)
    for number in range(400):
        server.ask("SET", f"session-{number}", b"x" * 3000, "EX", HALF_AN_HOUR)
    assert int(server.ask("INFO", "stats")["evicted_keys"]) > 0
    assert await counts.count("key", {"requests": 0}, ttl=MINUTE) == {"requests": (3, ANY)}


async def test_a_clock_that_is_set_back_makes_no_window_longer(
    counts: RedisCounts, server: RedisServer
) -> None:
    await counts.count("key", {"requests": 3}, ttl=MINUTE)
    (name,) = server.ask("KEYS", "*key*")
    server.ask("HSET", name, "requests:until", int(server.ask("TIME")[0]) * 1000 + 2 * HALF_AN_HOUR * 1000)
    assert await counts.count("key", {"requests": 1}, ttl=MINUTE) == {"requests": (1, MINUTE)}


def scripts_run(server: RedisServer) -> int:
    return int(server.ask("INFO", "commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"])


async def test_what_nobody_waits_for_is_taken_along_by_the_next_in_its_order(
    counts: RedisCounts, server: RedisServer
) -> None:
    one, two = Permit("one", MINUTE, 1), Permit("two", MINUTE, 1)
    assert await counts.count("key", {"requests": 1}, one, ttl=MINUTE)
    before = scripts_run(server)
    ended = asyncio.create_task(counts.count("key", {"tokens": 5}, one.ended, ttl=MINUTE, deferrable=True))
    other = asyncio.create_task(counts.count("other", {"tokens": 7}, ttl=MINUTE, deferrable=True))
    await asyncio.sleep(0)
    assert await counts.count("key", {"requests": 1, "tokens": 0}, two, ttl=MINUTE) == {
        "requests": (2, ANY),
        "tokens": (5, ANY),
    }
    assert await ended == {"tokens": (5, ANY)}
    assert await other == {"tokens": (7, ANY)}
    assert scripts_run(server) == before + 2


async def test_what_is_put_off_is_counted_whoever_goes_away(counts: RedisCounts) -> None:
    put_off = asyncio.create_task(counts.count("key", {"tokens": 5}, ttl=MINUTE, deferrable=True))
    await asyncio.sleep(0)
    waiting = asyncio.create_task(counts.count("key", {"requests": 1}, ttl=MINUTE))
    await asyncio.sleep(0)
    waiting.cancel()
    assert await put_off == {"tokens": (5, ANY)}


async def test_what_is_put_off_is_counted_before_it_closes(server: RedisServer) -> None:
    counts = RedisCounts(server.url, deadline=5.0)
    put_off = asyncio.create_task(counts.count("key", {"tokens": 5}, ttl=MINUTE, deferrable=True))
    await asyncio.sleep(0)
    await counts.aclose()
    assert await put_off == {"tokens": (5, ANY)}


async def test_all_that_is_asked_together_fails_together(counts: RedisCounts, server: RedisServer) -> None:
    await asyncio.to_thread(server.kill)
    put_off = asyncio.create_task(counts.count("key", {"tokens": 5}, ttl=MINUTE, deferrable=True))
    await asyncio.sleep(0)
    for waited_for in (counts.count("key", {"requests": 1}, ttl=MINUTE), put_off):
        with pytest.raises(StoreError):
            await waited_for


@pytest.fixture
async def store(server: RedisServer, counts: RedisCounts) -> AsyncIterator[Store]:
    found = open_store(server.url, deadline=5.0, take_along=counts.take_along)
    yield found
    await found.aclose()


SESSION = Key("key", "session")


async def test_what_is_put_off_goes_with_the_write_of_a_turn(
    counts: RedisCounts, store: Store, server: RedisServer
) -> None:
    assert await store.write(SESSION, BlobWrite(b"1", version=0, ttl=60, new_version=1))
    for number in range(1, 4):  # the first one has the server know the script
        before = scripts_run(server)
        put_off = asyncio.create_task(counts.count("key", {"tokens": 5}, ttl=MINUTE, deferrable=True))
        await asyncio.sleep(0)
        put = BlobWrite(b"2", version=number, ttl=60, new_version=number + 1)
        assert await store.write(SESSION, put)
        assert await put_off == {"tokens": (5 * number, ANY)}
        assert number == 1 or scripts_run(server) == before + 1


@pytest.mark.parametrize("end", ["lost", "left", "refused"])
async def test_what_is_put_off_is_counted_whatever_becomes_of_the_write(
    counts: RedisCounts, store: Store, server: RedisServer, end: str
) -> None:
    one, two = Permit("one", MINUTE, 1), Permit("two", MINUTE, 1)
    assert await counts.count("key", {"requests": 1}, one, ttl=MINUTE)
    if end == "refused":
        server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
        server.ask("CONFIG", "SET", "maxmemory", 1)
    put_off = asyncio.create_task(counts.count("key", {}, one.ended, ttl=MINUTE, deferrable=True))
    await asyncio.sleep(0)
    writing = asyncio.create_task(store.write(SESSION, BlobWrite(b"2", version=int(end == "lost"), ttl=60)))
    await asyncio.sleep(0)
    if end == "left":
        writing.cancel()
    (written,) = await asyncio.gather(writing, return_exceptions=True)
    assert await put_off == {}
    server.ask("CONFIG", "SET", "maxmemory", 0)
    assert await counts.count("key", {}, two, ttl=MINUTE) == {}, "the place is free"
    assert written is False if end == "lost" else isinstance(written, (StoreError, asyncio.CancelledError))


async def test_what_is_put_off_fails_with_the_write(
    counts: RedisCounts, store: Store, server: RedisServer
) -> None:
    await asyncio.to_thread(server.kill)
    put_off = asyncio.create_task(counts.count("key", {"tokens": 5}, ttl=MINUTE, deferrable=True))
    await asyncio.sleep(0)
    for waited_for in (store.write(SESSION, BlobWrite(b"1", version=0, ttl=60)), put_off):
        with pytest.raises(StoreError):
            await waited_for


async def test_what_is_put_off_is_counted_soon_however_much_it_is(counts: RedisCounts) -> None:
    found = await asyncio.gather(
        *(counts.count("key", {"tokens": 1}, ttl=MINUTE, deferrable=True) for _ in range(120))
    )
    assert [one and one["tokens"].value for one in found] == list(range(1, 121))
