"""Every form of a Redis address: the same store, which follows a failover."""

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from redis.crc import key_slot

from proxy.memory.errors import StoreError
from proxy.memory.stores.addresses import RedisAddress
from proxy.memory.stores.redis import KeyNames
from proxy.memory.stores.redis import open as open_store
from proxy.memory.stores.redis_client import client_factory
from proxy.memory.stores.store import BlobWrite, Key, Store
from tests.peers.redis_server import LOOPBACK, RedisServer, cluster, replicated, single, stopped, wait_until

pytestmark = pytest.mark.anyio

DEADLINE = 0.3
SLACK = 5.0  # a busy machine's; without a deadline a silent server would be waited for much longer
KEYS = [Key("tenant {a}", f"session {number}") for number in range(24)]


@contextlib.asynccontextmanager
async def opened(url: str, deadline: float = DEADLINE) -> AsyncIterator[Store]:
    store = open_store(url, deadline=deadline)
    try:
        yield store
    finally:
        await store.aclose()


async def put(store: Store, key: Key) -> None:
    held = await store.read(key)
    assert await store.write(key, BlobWrite(b"1", version=held.version if held else 0, ttl=60, cold=[b"c"]))


async def works(store: Store, keys: list[Key] = KEYS[:3]) -> None:
    await store.ping()
    await asyncio.gather(*[put(store, key) for key in keys])
    assert {one.session for one in await store.list(keys[0].tenant)} >= {key.session for key in keys}
    for key in keys:
        assert (await store.read(key)).blob == b"1"
        assert (await store.cold(key))[0] == b"c"
    assert await store.delete(keys[0])
    assert await store.read(keys[0]) is None


async def seconds_until_it_works(store: Store, key: Key, within: float) -> float:
    """How long writes fail, each of them in time."""
    began = time.perf_counter()
    while time.perf_counter() - began < within:
        asked = time.perf_counter()
        try:
            await put(store, key)
        except StoreError:
            assert time.perf_counter() - asked < 2 * DEADLINE + SLACK, "it reads, then it writes"
            await asyncio.sleep(0.02)
        else:
            return time.perf_counter() - began
    pytest.fail(f"no write within {within} s")


async def in_the_end(work: Callable[[], Awaitable[Any]]) -> Any:
    """What comes of it, once the store can do it."""
    while True:
        with contextlib.suppress(StoreError):
            return await work()
        await asyncio.sleep(0.02)


# --- one server


async def test_a_unix_socket(tmp_path: Path):
    with single(tmp_path, f"unixsocket {tmp_path}/s") as server:
        async with opened(f"redis+unix://{tmp_path}/s?db=2") as store:
            await works(store)
        assert "db2" in server.ask("INFO", "keyspace")


async def test_a_database_and_a_prefix(tmp_path: Path):
    with single(tmp_path) as server:
        async with opened(f"{server.url}/5?prefix=mine:") as mine, opened(f"{server.url}/5") as other:
            await works(mine)
            assert await other.list(KEYS[0].tenant) == []
        assert list(server.ask("INFO", "keyspace")) == ["db5"]


ALLOWED = "+eval +evalsha +hget +hmget +hset +del +rpush +lrange +pexpire +pexpireat +time +select"
INDEX = "+zadd +zrem +zrangebyscore +zrangebylex +zrevrange"


async def test_a_user_who_may_do_what_is_needed_and_no_more(tmp_path: Path):
    user = f"user calls on >p%/: ~turnkeeper:* -@all {ALLOWED} {INDEX}"
    with single(tmp_path, user, "user default off") as server:
        url = server.url.replace("//", "//calls:p%25%2F%3A@")
        async with opened(url) as store:
            await works(store)
        async with opened(f"{url}?prefix=other:") as store:
            with pytest.raises(StoreError, match="does not permit"):
                await store.read(KEYS[0])
            with pytest.raises(StoreError, match="does not permit"):
                await put_blindly(store)


async def put_blindly(store: Store) -> None:
    await store.write(KEYS[0], BlobWrite(b"", version=0, ttl=1))


async def test_a_user_who_may_not_write(tmp_path: Path):
    user = f"user calls on >p ~turnkeeper:* -@all {ALLOWED.replace('+hset', '')} {INDEX}"
    with single(tmp_path, user) as server:
        async with opened(server.url.replace("//", "//calls:p@")) as store:
            with pytest.raises(StoreError, match="does not permit"):
                await store.ping()


# --- TLS: ended in front of the server, so that no server need know it


@contextlib.asynccontextmanager
async def secured(server: RedisServer, authority: trustme.CA, name: str) -> AsyncIterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    relays: set[asyncio.Task[None]] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
            writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner = await asyncio.open_connection(LOOPBACK, server.port)
        task = asyncio.current_task()
        relays.add(task)
        await asyncio.gather(copy(reader, inner[1]), copy(inner[0], writer))

    async with await asyncio.start_server(relay, LOOPBACK, 0, ssl=context) as front:
        yield f"rediss://{LOOPBACK}:{front.sockets[0].getsockname()[1]}"
    await asyncio.wait(relays, timeout=5) if relays else None


async def test_tls_where_the_certificate_is_good(tmp_path: Path):
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    with single(tmp_path) as server:
        async with (
            secured(server, authority, LOOPBACK) as url,
            opened(f"{url}?ssl_ca_certs={tmp_path}/ca.pem", deadline=2) as store,
        ):
            await works(store)


@pytest.mark.parametrize("fault", ["nobody vouches for it", "it is another's"])
async def test_tls_where_the_certificate_is_not(tmp_path: Path, fault: str):
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    trusted = "" if fault == "nobody vouches for it" else f"?ssl_ca_certs={tmp_path}/ca.pem"
    name = LOOPBACK if fault == "nobody vouches for it" else "redis.example"
    with single(tmp_path) as server:
        async with secured(server, authority, name) as url, opened(url + trusted, deadline=2) as store:
            with pytest.raises(StoreError, match="cannot be reached"):
                await store.read(KEYS[0])


# --- Sentinel


async def test_sentinel(tmp_path: Path):
    with replicated(tmp_path) as (master, _, sentinel):
        dead = f"{LOOPBACK}:1"
        async with opened(f"redis+sentinel://{dead},{LOOPBACK}:{sentinel.port}/calls/1") as store:
            await works(store)
        assert "db1" in master.ask("INFO", "keyspace")
        async with opened(f"redis+sentinel://{LOOPBACK}:{sentinel.port}/another") as store:
            with pytest.raises(StoreError):
                await store.read(KEYS[0])


@pytest.mark.parametrize("loss", ["killed", "silent"])
async def test_sentinel_moves_the_sessions(tmp_path: Path, loss: str):
    with replicated(tmp_path) as (master, replica, sentinel):
        async with opened(f"redis+sentinel://{LOOPBACK}:{sentinel.port}/calls") as store:
            await put(store, KEYS[0])
            wait_until(lambda: replica.ask("DBSIZE") == master.ask("DBSIZE"))
            with contextlib.ExitStack() as exits:
                master.kill() if loss == "killed" else exits.enter_context(stopped(master))
                # A failover of Sentinel's own takes a second, and each connection has to find out by itself.
                await seconds_until_it_works(store, KEYS[1], within=60)
                held = await in_the_end(lambda: store.read(KEYS[0]))
                assert held.blob == b"1"
                await in_the_end(lambda: works(store))
        assert replica.ask("INFO", "replication")["role"] == "master"


# --- Cluster


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RedisServer]]:
    with cluster(tmp_path_factory.mktemp("cluster")) as servers:
        yield servers


def addressed(*nodes: RedisServer) -> str:
    return "redis+cluster://" + ",".join(f"{LOOPBACK}:{node.port}" for node in nodes)


def slot_of(key: Key) -> int:
    return key_slot(KeyNames("turnkeeper:").session(key).first.encode())


def owner_of(nodes: list[RedisServer], key: Key) -> RedisServer:
    share = 16384 // len(nodes) + 1
    return nodes[slot_of(key) // share]


async def test_a_cluster_is_reached_with_the_certificates_of_its_address():
    address = RedisAddress.parse("rediss+cluster://h?ssl_ca_certs=/etc/ca.pem&ssl_certfile=/etc/own.pem")
    client = client_factory(address, 1.0)()
    options = client.get_connection_kwargs()
    assert (options["ssl_ca_certs"], options["ssl_certfile"]) == ("/etc/ca.pem", "/etc/own.pem")
    await client.aclose()


async def test_cluster(nodes: list[RedisServer]):
    assert {owner_of(nodes, key) for key in KEYS} == set(nodes)
    async with opened(addressed(nodes[2]), deadline=2) as store:
        await works(store, KEYS)


async def test_cluster_moves_a_session(nodes: list[RedisServer]):
    key = KEYS[1]
    source = owner_of(nodes, key)
    target = nodes[nodes.index(source) - 1]
    ids = {node: node.ask("CLUSTER", "MYID").decode() for node in nodes}
    slot = slot_of(key)
    async with opened(addressed(*nodes), deadline=2) as store:
        await put(store, key)
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target])
        names = source.ask("CLUSTER", "GETKEYSINSLOT", slot, 10)
        source.ask("MIGRATE", LOOPBACK, target.port, "", 0, 1000, "KEYS", *names)
        assert (await store.read(key)).blob == b"1", "asked of the new node, once"
        for node in [target, source]:
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", ids[target])
        read = await asyncio.gather(*(store.read(key) for _ in range(100)))
        assert {stored.blob for stored in read} == {b"1"}, "moved, and asked for by many at once"
        await put(store, key)


@pytest.mark.long
async def test_cluster_without_one_of_its_nodes(tmp_path: Path):
    with cluster(tmp_path) as nodes:
        async with opened(addressed(*nodes)) as store:
            await asyncio.gather(*[put(store, key) for key in KEYS])
            lost = owner_of(nodes, KEYS[0])
            others = [key for key in KEYS if owner_of(nodes, key) is not lost]
            lost.kill()
            with pytest.raises(StoreError):
                await store.read(KEYS[0])
            for key in others:
                await seconds_until_it_works(store, key, within=20)
            lost.start()
            await seconds_until_it_works(store, KEYS[0], within=20)  # a node waits 2 s before it takes writes
            await seconds_until_it_works(store, KEYS[1], within=20)
            with stopped(lost):
                for _ in range(3):
                    began = time.perf_counter()
                    with pytest.raises(StoreError):
                        await store.read(KEYS[0])
                    assert time.perf_counter() - began < DEADLINE + SLACK
                await seconds_until_it_works(store, others[0], within=20)
            await seconds_until_it_works(store, KEYS[0], within=20)
