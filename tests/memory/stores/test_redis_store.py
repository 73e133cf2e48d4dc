"""Behaviour of the Redis driver alone; the contract tests what all drivers have in common."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from proxy.memory.errors import StoreError
from proxy.memory.stores import redis
from proxy.memory.stores.redis import KeyNames, KeyPair, place_of
from proxy.memory.stores.redis import open as open_store
from proxy.memory.stores.store import BlobWrite, Key, Store
from tests.peers.redis_server import RedisServer, single

pytestmark = pytest.mark.anyio

KEY = Key("tenant", "session")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with single(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def prefix() -> str:
    return secrets.token_hex(4) + ":"


@pytest.fixture
async def store(server: RedisServer, prefix: str) -> AsyncIterator[Store]:
    store = open_store(f"{server.url}?prefix={prefix}", deadline=2)
    yield store
    await store.aclose()


async def written(store: Store, key: Key, blob: bytes = b"blob", *, ttl: float = 60, cold=()) -> None:
    held = await store.read(key)
    assert await store.write(key, BlobWrite(blob, version=held.version if held else 0, ttl=ttl, cold=cold))


def index_of(prefix: str, key: Key) -> KeyPair:
    """The bucket with a session's place."""
    return KeyNames(prefix).index(place_of(key))


def calls(server: RedisServer) -> dict[str, int]:
    """How often each command was run, but for those of ``CONFIG``: some versions count their own reset."""
    stats = server.ask("INFO", "commandstats")
    counts = {name.removeprefix("cmdstat_"): told["calls"] for name, told in stats.items()}
    return {name: count for name, count in counts.items() if not name.startswith("config")}


async def test_a_read_is_one_command_and_so_is_a_write(store: Store, server: RedisServer):
    due = time.time() + 60
    for late in range(2):  # the second is written by a script that the server gets to know
        held = await store.read(KEY)
        put = BlobWrite(b"first", held.version if held else 0, ttl=60, due=due + late)
        assert await store.write(KEY, put)
    held = await store.read(KEY)
    server.ask("CONFIG", "RESETSTAT")
    await store.write(KEY, BlobWrite(b"next", version=held.version, ttl=60, cold=[b"x"], due=due + 5))
    assert {"hmget", "lrange", "zadd"}.isdisjoint(calls(server)) and calls(server)["evalsha"] == 1
    server.ask("CONFIG", "RESETSTAT")
    await store.read(KEY)
    assert {name for name in calls(server) if name not in {"info", "client"}} == {"hmget"}


async def test_a_write_is_one_round_trip(store: Store, server: RedisServer):
    await written(store, KEY)
    held = await store.read(KEY)
    before = server.ask("INFO", "stats")["total_reads_processed"]
    await store.write(KEY, BlobWrite(b"next", version=held.version, ttl=60, cold=[b"x"]))
    after = server.ask("INFO", "stats")["total_reads_processed"]
    asked = server.ask("INFO", "stats")["total_reads_processed"] - after
    assert after - before - asked == 1


async def test_a_server_that_forgot_the_scripts_is_told_them_again(store: Store, server: RedisServer):
    await written(store, KEY)
    server.ask("SCRIPT", "FLUSH")
    await written(store, KEY, b"next")
    assert (await store.read(KEY)).blob == b"next"


async def test_a_session_that_came_back_is_not_taken_for_the_expired_one(store: Store):
    await written(store, KEY, b"old", ttl=0.05)
    old = await store.read(KEY)
    await asyncio.sleep(0.1)
    assert await store.read(KEY) is None
    await written(store, KEY, b"new")
    assert not await store.write(KEY, BlobWrite(b"stale", version=old.version, ttl=60))
    assert (await store.read(KEY)).blob == b"new"


async def test_both_parts_expire_together(store: Store, server: RedisServer, prefix: str):
    await written(store, KEY, ttl=3600, cold=[b"x"])
    await written(store, KEY, ttl=60)
    for name in KeyNames(prefix).session(KEY):
        assert 58_000 < server.ask("PTTL", name) <= 60_000


async def test_the_list_lasts_as_long_as_its_last_session(store: Store, server: RedisServer, prefix: str):
    await written(store, KEY, ttl=3600)
    await written(store, Key(KEY.tenant, "short"), ttl=1)
    assert server.ask("PTTL", index_of(prefix, KEY).first) > 3_500_000


async def test_a_cold_part_without_its_hot_part_is_not_taken_over(store: Store, server, prefix: str):
    await written(store, KEY, cold=[b"of another life"])
    server.ask("DEL", KeyNames(prefix).session(KEY).first)
    await written(store, KEY, cold=[b"own"])
    assert await store.cold(KEY) == [b"own"]


async def test_ten_thousand_cold_entries_are_appended_at_once(store: Store):
    entries = [b"%d" % number for number in range(10_000)]
    await written(store, KEY, cold=entries)
    assert await store.cold(KEY, limit=20_000) == entries


async def test_a_lost_place_in_the_list_is_put_right_by_a_write_within_a_minute(
    store: Store, server, prefix: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(redis, "_RENEW_EVERY", 0.1)
    await written(store, KEY)
    server.ask("DEL", *index_of(prefix, KEY))
    assert await store.list(KEY.tenant) == []
    await asyncio.sleep(0.1)
    await written(store, KEY)
    assert [one.session for one in await store.list(KEY.tenant)] == [KEY.session]


async def test_a_place_in_the_list_that_outlived_its_session_is_not_shown(store: Store, server, prefix: str):
    names = KeyNames(prefix)
    for number in range(250):
        await written(store, Key("t", f"{number:03}"))
    for number in range(5, 245):
        server.ask("DEL", *names.session(Key("t", f"{number:03}")))
    assert [one.session for one in await store.list("t", limit=6)] == [
        *["000", "001", "002", "003", "004"],
        "245",
    ]


async def test_places_of_expired_sessions_are_cleared(
    store: Store, server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(redis, "_RENEW_EVERY", 0.0)
    index = index_of(prefix, KEY)
    keys = [key for number in range(500) if index_of(prefix, key := Key("t", f"{number}")) == index]
    assert len(keys) > 2
    for key in keys:
        await written(store, key, ttl=0.02)
    await asyncio.sleep(0.05)
    await written(store, KEY)
    assert {server.ask("ZCARD", name) for name in index} == {1}


async def test_a_listed_session_tells_its_size_and_when_it_was_written(store: Store):
    await written(store, KEY, b"12345", cold=[b"many", b"more"])
    (listed,) = await store.list(KEY.tenant)
    assert listed.size == 5
    assert abs(listed.updated - time.time()) < 5


async def test_a_session_without_end_lasts_a_century(store: Store, server: RedisServer, prefix: str):
    await written(store, KEY, ttl=float("inf"))
    assert server.ask("TTL", KeyNames(prefix).session(KEY).first) > 99 * 365 * 86400
    assert [one.session for one in await store.list(KEY.tenant)] == [KEY.session]


@pytest.mark.parametrize(
    "command", [("SET", "x"), ("HSET", "version", "1"), ("HSET", "version", "x", "blob", "")]
)
async def test_what_is_not_ours_is_a_store_error(store: Store, server, prefix: str, command):
    server.ask(command[0], KeyNames(prefix).session(KEY).first, *command[1:])
    with pytest.raises(StoreError):
        await store.read(KEY)


async def test_a_trial_leaves_nothing_behind(store: Store, server: RedisServer):
    server.ask("FLUSHALL")
    await store.ping()
    assert all(0 < server.ask("PTTL", name) <= 1000 for name in server.ask("KEYS", "*"))


async def test_closing_leaves_no_connection(server: RedisServer):
    store = open_store(server.url, deadline=2)
    before = server.ask("INFO", "clients")["connected_clients"]
    await asyncio.gather(*[store.read(KEY) for _ in range(100)])
    assert before < server.ask("INFO", "clients")["connected_clients"] <= before + 32
    await store.aclose()
    await asyncio.sleep(0.05)
    assert server.ask("INFO", "clients")["connected_clients"] == before
