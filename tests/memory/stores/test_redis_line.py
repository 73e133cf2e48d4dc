"""Commands to Redis share one connection, and each caller gets its own reply."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
from redis.exceptions import RedisError

from proxy.memory.errors import StoreError
from proxy.memory.stores import codec
from proxy.memory.stores.redis import open as open_store
from proxy.memory.stores.session_store import SessionStore
from proxy.memory.stores.store import BlobWrite, Key, Store
from tests.peers.redis_server import LOOPBACK, RedisServer, single

pytestmark = pytest.mark.anyio

KEY = Key("t", "s")
HELD = b"*2\r\n$1\r\n7\r\n$2\r\nhi\r\n"
Talk = Callable[[asyncio.StreamWriter, int], None]


@pytest.fixture
def server(tmp_path) -> Iterator[RedisServer]:
    with single(tmp_path) as server:
        yield server


@contextlib.asynccontextmanager
async def opened(url: str, deadline: float = 5.0) -> AsyncIterator[Store]:
    store = open_store(url, deadline=deadline)
    try:
        yield store
    finally:
        await store.aclose()


@contextlib.asynccontextmanager
async def answering(talk: Talk) -> AsyncIterator[tuple[Store, list[int]]]:
    """A store on a server that answers what it reads by ``talk``, and the connections that it had."""
    connections: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(1)
        pieces = 0
        while await reader.read(4096):
            pieces += 1
            talk(writer, pieces)
        writer.close()

    async with (
        await asyncio.start_server(serve, LOOPBACK, 0) as peer,
        opened(f"redis://{LOOPBACK}:{peer.sockets[0].getsockname()[1]}") as store,
    ):
        yield store, connections


async def test_turns_that_ask_together_share_a_connection(server: RedisServer):
    before = server.ask("INFO", "stats")["total_connections_received"]
    async with opened(server.url) as store:
        assert await store.write(KEY, BlobWrite(b"x" * 9000, version=0, ttl=60))
        read = await asyncio.gather(*[store.read(KEY) for _ in range(50)])
    assert {held.blob for held in read} == {b"x" * 9000}
    assert (
        server.ask("INFO", "stats")["total_connections_received"] - before == 3
    )  # one for writes, and the one that counts


async def test_a_question_is_on_its_way_once_its_task_has_begun(server: RedisServer):
    async with opened(server.url) as store:
        assert await store.read(KEY) is None
        whole = SessionStore(store, codec.Plain(), deadline=4)
        asked = asyncio.create_task(whole.read(KEY))
        await asyncio.sleep(0)
        assert len(store._link._client.shared(("HMGET",))._replies) == 1
        assert await asked is None


async def test_whoever_has_made_sure_of_a_store_connects_no_more(server: RedisServer):
    async with opened(server.url) as store:
        await store.ping()
        before = server.ask("INFO", "stats")["total_connections_received"]
        assert await store.write(KEY, BlobWrite(b"1", version=0, ttl=60))
        assert (await store.read(KEY)).blob == b"1"
        assert server.ask("INFO", "stats")["total_connections_received"] == before + 1  # the one that counts


async def test_what_a_server_refuses_is_told_to_its_asker_alone(server: RedisServer):
    async with opened(server.url) as store:
        assert await store.write(KEY, BlobWrite(b"1", version=0, ttl=60))
        server.ask("SET", store._names.session(Key("t", "other")).first, "no hash")
        asked = [store.read(Key("t", "other")), store.read(KEY), store.read(Key("t", "none"))]
        refused, held, none = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(refused, StoreError) and "WRONGTYPE" in str(refused)
    assert (held.blob, none) == (b"1", None)


async def forget_scripts(server: RedisServer, store: Store) -> None:
    server.ask("SCRIPT", "FLUSH")
    assert await store.write(Key("t", "other"), BlobWrite(b"blob", version=0, ttl=60))


async def take_nothing(server: RedisServer, store: Store) -> None:
    server.ask("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(StoreError):
        await store.write(Key("t", "other"), BlobWrite(b"blob", version=0, ttl=60))


async def be_late(server: RedisServer, store: Store) -> None:
    server.ask("CLIENT", "PAUSE", "1000", "ALL")
    with pytest.raises(StoreError):
        await store.read(KEY)


@pytest.mark.parametrize("fail", [forget_scripts, take_nothing, be_late])
async def test_an_error_and_what_was_sent_are_freed_without_the_garbage_collector(
    server: RedisServer, fail: Callable[[RedisServer, Store], Awaitable[None]]
):
    def errors() -> int:
        return sum(isinstance(each, RedisError | TimeoutError) for each in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = errors()
        async with opened(server.url, deadline=0.3) as store:
            assert await store.write(KEY, BlobWrite(b"blob", version=0, ttl=60))
            await store.read(KEY)
            await fail(server, store)
        more = errors() - before
    finally:
        gc.enable()
    assert more <= 0


async def test_who_reads_waits_for_nobody_who_writes(server: RedisServer):
    async with opened(server.url) as store:
        assert await store.write(KEY, BlobWrite(b"1", version=0, ttl=60))
        held = await store.read(KEY)
        server.ask("CLIENT", "PAUSE", "1000", "WRITE")  # as before a failover
        writing = asyncio.ensure_future(store.write(KEY, BlobWrite(b"2", version=held.version, ttl=60)))
        await asyncio.sleep(0.05)
        async with asyncio.timeout(0.5):
            assert (await store.read(KEY)).blob == b"1"
        assert not writing.done()
        assert await writing


async def test_a_reply_in_pieces_is_one():
    pieces: list[asyncio.Task[None]] = []

    async def slowly(writer: asyncio.StreamWriter) -> None:
        for place in range(len(HELD)):
            writer.write(HELD[place : place + 1])
            await asyncio.sleep(0.001)

    def talk(writer: asyncio.StreamWriter, _: int) -> None:
        pieces.append(asyncio.create_task(slowly(writer)))

    async with answering(talk) as (store, connections):
        for _ in range(3):
            assert (await store.read(KEY)).blob == b"hi"
    assert len(connections) == 1


async def test_a_reply_that_nobody_asked_for_is_nobodys():
    async with answering(lambda writer, _: writer.write(HELD + b"$-1\r\n")) as (store, connections):
        for _ in range(3):
            assert (await store.read(KEY)).blob == b"hi"
            await asyncio.sleep(0.05)
    assert len(connections) == 3


async def test_a_connection_that_ends_within_a_reply_is_made_anew():
    def talk(writer: asyncio.StreamWriter, _: int) -> None:
        writer.write(HELD[: None if len(connections) > 1 else 9])
        writer.close()

    async with answering(talk) as (store, connections):
        with pytest.raises(StoreError, match="cannot be reached"):
            await store.read(KEY)
        assert (await store.read(KEY)).blob == b"hi"


@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": False})])
async def test_a_server_that_hangs_up_at_once_is_asked_nothing(caplog):
    """As one does that has as many clients as it may have."""

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"-ERR max number of clients reached\r\n")
        writer.close()

    async with (
        await asyncio.start_server(serve, LOOPBACK, 0) as peer,
        opened(f"redis://{LOOPBACK}:{peer.sockets[0].getsockname()[1]}") as store,
    ):
        for _ in range(3):
            asked = [store.read(Key("t", f"s{number}")) for number in range(20)]
            async with asyncio.timeout(2):
                told = await asyncio.gather(*asked, return_exceptions=True)
            assert {str(error) for error in told} == {"Redis cannot be reached"}
    assert caplog.messages == []


async def test_who_leaves_takes_nobodys_reply():
    def talk(writer: asyncio.StreamWriter, _: int) -> None:
        asyncio.get_running_loop().call_later(0.05, writer.write, HELD)

    async with answering(talk) as (store, connections):
        await store.read(KEY)
        left = asyncio.ensure_future(store.read(Key("t", "left")))
        await asyncio.sleep(0.01)
        left.cancel()
        assert (await store.read(KEY)).blob == b"hi"
        assert left.cancelled()
    assert len(connections) == 1


async def test_closing_ends_whoever_waits():
    async with answering(lambda writer, pieces: writer.write(HELD) if pieces == 1 else None) as (store, _):
        await store.read(KEY)
        waiting = asyncio.ensure_future(store.read(KEY))
        await asyncio.sleep(0.01)
        store._link._deadline = 0.05
        async with asyncio.timeout(2):
            await store.aclose()
        with pytest.raises(StoreError, match="closed"):
            await waiting
        with pytest.raises(StoreError, match="closed"):
            await store.read(KEY)
