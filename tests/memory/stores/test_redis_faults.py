"""Whatever happens to a Redis costs at most the deadline, and when it is back it is used at once."""

import asyncio
import contextlib
import secrets
import socket
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from proxy.memory.errors import StoreError
from proxy.memory.stores.redis import open as open_store
from proxy.memory.stores.store import BlobWrite, Key, Store
from tests.peers.redis_server import LOOPBACK, RedisServer, free_port, single, stopped, wait_until
from tests.peers.relay import Relay

pytestmark = [pytest.mark.anyio, pytest.mark.faults]

DEADLINE = 0.2
"""Of whoever asks a server that does not answer."""
PATIENCE = 5.0
"""Of whoever asks one that does: it may be late on a machine that does other things as well."""
SLACK = 2.0
"""What such a machine adds to what takes no time."""
KEY = Key("t", "s")


@pytest.fixture
def server(tmp_path) -> Iterator[RedisServer]:
    with single(tmp_path) as server:
        yield server


@contextlib.asynccontextmanager
async def opened(url: str, deadline: float = PATIENCE) -> AsyncIterator[Store]:
    store = open_store(url, deadline=deadline)
    allow(store, deadline)
    yield store
    await store.aclose()


@pytest.fixture
async def store(server: RedisServer) -> AsyncIterator[Store]:
    async with opened(server.url) as store:
        await put(store)
        yield store


def allow(store: Store, seconds: float) -> None:
    """What is asked from now on has so long."""
    for link in (store._link, store._writing, store._background):
        link._deadline = seconds


async def put(store: Store, key: Key = KEY, blob: bytes = b"1") -> None:
    held = await store.read(key)
    assert await store.write(key, BlobWrite(blob, version=held.version if held else 0, ttl=60))


OPERATIONS = {
    "read": lambda store: store.read(KEY),
    "write": lambda store: store.write(KEY, BlobWrite(b"2", version=0, ttl=60)),
    "cold": lambda store: store.cold(KEY),
    "delete": lambda store: store.delete(KEY),
    "list": lambda store: store.list("t"),
    "ping": lambda store: store.ping(),
}


async def failure(awaitable, within: float = DEADLINE + SLACK) -> str:
    """What the StoreError says, which comes in time."""
    began = time.perf_counter()
    with pytest.raises(StoreError) as error:
        await awaitable
    assert time.perf_counter() - began < within
    return str(error.value)


# --- nobody there


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
async def test_a_port_where_nobody_listens(operation):
    async with opened(f"redis://{LOOPBACK}:{free_port()}") as store:
        assert "cannot be reached" in await failure(operation(store), within=SLACK)


@contextlib.contextmanager
def silent(*, backlog: int) -> Iterator[int]:
    """The kernel takes ``backlog`` connections, nobody answers them, and further ones hang."""
    with socket.socket() as listener, contextlib.ExitStack() as waiting:
        listener.bind((LOOPBACK, 0))
        listener.listen(backlog)
        if not backlog:
            for _ in range(4):
                other = waiting.enter_context(socket.socket())
                other.setblocking(False)  # noqa: FBT003
                other.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


@pytest.mark.parametrize("backlog", [0, 100], ids=["connecting hangs", "nobody answers"])
@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
async def test_a_black_hole(operation, backlog: int):
    with silent(backlog=backlog) as port:
        async with opened(f"redis://u:p@{LOOPBACK}:{port}/3", DEADLINE) as store:
            assert "longer than 200 ms" in await failure(operation(store))


async def test_a_black_hole_keeps_a_hundred_callers_no_longer_than_one():
    with silent(backlog=0) as port:
        async with opened(f"redis://{LOOPBACK}:{port}", DEADLINE) as store:
            # One after the other they would take twenty seconds.
            await asyncio.gather(*[failure(store.read(KEY), within=5) for _ in range(100)])
            began = time.perf_counter()
        assert time.perf_counter() - began < 5, "closing waits no longer either"


async def test_another_protocol():
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()
        writer.close()

    async with (
        await asyncio.start_server(talk, LOOPBACK, 0) as peer,
        opened(f"redis://{LOOPBACK}:{peer.sockets[0].getsockname()[1]}") as store,
    ):
        await failure(store.read(KEY))


# --- gone, and back


async def connected(store: Store, count: int) -> None:
    """So many connections are open; a busy machine does not open them all within one deadline."""
    for _ in range(20):
        read = await asyncio.gather(*[store.read(KEY) for _ in range(count)], return_exceptions=True)
        if not any(isinstance(one, StoreError) for one in read):
            return
    raise AssertionError("connections cannot be opened")


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
async def test_a_server_that_stops_answering_is_used_again_at_once(store: Store, server, operation):
    await connected(store, 20)
    with stopped(server):
        allow(store, DEADLINE)
        for _ in range(2):
            await failure(operation(store))
    allow(store, PATIENCE)
    async with asyncio.timeout(SLACK):
        for _ in range(20):
            assert await store.read(KEY) or operation is OPERATIONS["delete"]


async def test_a_server_killed_amid_operations_is_used_again_at_once(store: Store, server: RedisServer):
    asked = [asyncio.ensure_future(put(store, Key("t", str(number)))) for number in range(60)]
    await asyncio.sleep(0.005)
    server.kill()
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} <= {type(None), StoreError}
    await failure(store.read(KEY), within=SLACK)
    server.start()
    await put(store)
    assert [one.session for one in await store.list("t")] == ["s"]


async def test_a_server_that_restarted_unseen_is_used_at_once(store: Store, server: RedisServer):
    await connected(store, 20)
    server.kill()
    server.start()
    await asyncio.sleep(0.02)
    await put(store)


async def test_connections_that_the_server_closed_are_not_used(store: Store, server: RedisServer):
    await connected(store, 20)
    server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    await asyncio.sleep(0.02)
    assert all(await asyncio.gather(*[store.read(KEY) for _ in range(20)]))


async def test_a_stall_ends_where_it_ends(store: Store, server: RedisServer):
    with stopped(server):
        allow(store, DEADLINE)
        await asyncio.gather(*[failure(store.read(KEY)) for _ in range(50)])
    allow(store, PATIENCE)
    async with asyncio.timeout(SLACK):
        for _ in range(10):
            assert all(await asyncio.gather(*[store.read(KEY) for _ in range(5)]))


async def test_a_loop_that_was_late_blames_nobody(store: Store):
    allow(store, DEADLINE)
    reading = asyncio.ensure_future(store.read(KEY))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    time.sleep(5 * DEADLINE)  # this is what a late loop is, and time enough for the server
    assert (await reading).blob == b"1"


# --- there, and unwilling


@contextlib.contextmanager
def configured(server: RedisServer, **settings: object) -> Iterator[None]:
    before = {name: server.ask("CONFIG", "GET", name.replace("_", "-"))[1] for name in settings}
    for name, value in settings.items():
        server.ask("CONFIG", "SET", name.replace("_", "-"), value)
    yield
    for name, value in before.items():
        server.ask("CONFIG", "SET", name.replace("_", "-"), value)


async def refused(store: Store, words: str) -> None:
    """Nothing can be written, and nothing was; what is there can be read."""
    held = await store.read(KEY)
    fresh = Key("t", "fresh")
    for key, version in [(KEY, held.version), (fresh, 0)]:
        assert words in await failure(store.write(key, BlobWrite(b"2", version=version, ttl=60, cold=[b"x"])))
    assert words in await failure(store.ping())
    assert await store.read(KEY) == held
    assert await store.read(fresh) is None
    assert await store.cold(KEY) == await store.cold(fresh) == []
    assert [one.session for one in await store.list("t")] == ["s"]


async def test_a_full_server(store: Store, server: RedisServer):
    with configured(server, maxmemory=1):
        await refused(store, "is full")
    await put(store)
    await store.ping()


async def test_a_read_only_server(store: Store, server: RedisServer, tmp_path):
    with single(tmp_path) as master:
        server.ask("CONFIG", "SET", "replica-serve-stale-data", "yes")
        server.ask("REPLICAOF", LOOPBACK, master.port)
        await put_through(master)
        wait_until(lambda: server.ask("INFO", "replication")["master_link_status"] == "up")
        wait_until(lambda: server.ask("DBSIZE") == master.ask("DBSIZE"))
        await refused(store, "is read-only")
        server.ask("REPLICAOF", "NO", "ONE")
        await put(store)
        await store.ping()


async def put_through(master: RedisServer) -> None:
    async with opened(master.url) as store:
        await put(store)


async def test_a_server_without_its_replicas(store: Store, server: RedisServer):
    with configured(server, min_replicas_to_write=1):
        await refused(store, "NOREPLICAS")
    await put(store)


async def test_a_server_that_cannot_save(store: Store, server: RedisServer):
    (server.folder / "taken").mkdir()
    with configured(server, dbfilename="taken", save="3600 1"):
        server.ask("BGSAVE")
        wait_until(lambda: server.ask("INFO", "persistence")["rdb_last_bgsave_status"] == "err")
        await refused(store, "MISCONF")


async def test_a_server_that_is_loading(store: Store, server: RedisServer):
    for number in range(60):
        server.ask("SET", number, secrets.token_bytes(400_000))
    server.ask("SAVE")
    server.kill()
    config = server.folder / "redis.conf"
    config.write_text(config.read_text() + "key-load-delay 30000\n")
    server.start(wait=False)
    said = []
    while await store_fails(store, said):  # noqa: ASYNC110  (nobody tells when it has loaded)
        await asyncio.sleep(0.02)
    assert "Redis is still loading its data" in said
    assert (await store.read(KEY)).blob == b"1"


async def store_fails(store: Store, said: list[str]) -> bool:
    try:
        await store.ping()
    except StoreError as error:
        said.append(str(error))
        assert len(said) < 1000, said[-1]
        return True
    return False


@pytest.mark.parametrize("login", ["", "u:wrong@", ":wrong@"])
async def test_a_wrong_password(tmp_path, login: str):
    with single(tmp_path, "requirepass right") as server:
        async with opened(server.url.replace("//", f"//{login}")) as store:
            said = await failure(store.read(KEY))
        assert "refuses the user or the password" in said
        assert "wrong" not in said
        async with opened(server.url.replace("//", "//:right@")) as store:
            await put(store)


async def test_a_node_of_a_cluster_taken_for_a_server(tmp_path):
    with single(tmp_path, "cluster-enabled yes", "cluster-require-full-coverage no") as server:
        server.ask("CLUSTER", "ADDSLOTS", 0)
        async with opened(server.url) as store:
            await failure(store.read(KEY))


async def test_what_is_stored_is_never_part_of_an_error(store: Store, server: RedisServer):
    server.ask("CONFIG", "SET", "maxmemory", 1)
    with pytest.raises(StoreError) as error:
        await store.write(Key("tenant-secret", "id-secret"), BlobWrite(b"said in secret", version=0, ttl=60))
    chain = [error.value, error.value.__cause__]
    assert not any("secret" in str(one) for one in chain)
    assert error.value.__suppress_context__


async def test_who_has_leisure_waits_longer_than_a_call(server: RedisServer):
    with Relay(server.port) as relay:
        store = open_store(f"redis://{LOOPBACK}:{relay.port}", deadline=0.1)
        relay.delay = 0.2
        assert await store.write(KEY, BlobWrite(b"1", version=0, ttl=60, background=True))
        held = await store.read(KEY, background=True)
        assert held is not None and held.blob == b"1"
        with pytest.raises(StoreError):
            await store.write(KEY, BlobWrite(b"2", version=held.version, ttl=60))
        with pytest.raises(StoreError):
            await store.read(KEY)
        await store.aclose()
