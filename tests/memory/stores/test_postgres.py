"""What goes wrong with servers."""

import asyncio
import contextlib
import gc
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import asyncpg
import pytest

from proxy.memory.errors import StoreError, Unreadable, UnreadableSessions
from proxy.memory.stores import postgres_pool, sql
from proxy.memory.stores.postgres import PostgresStore
from proxy.memory.stores.sql import READ, BoundStatement, key_arguments
from proxy.memory.stores.store import BlobWrite, Key, StoredBlob
from tests.peers.postgres_server import PostgresServer

pytestmark = pytest.mark.anyio
KEY = Key("acme", "call-1")
TIMEOUT = 0.3
"""Of whoever asks a server that does not answer."""
PATIENCE = 10.0
"""Of whoever asks one that does: it may be late on a busy machine."""
SLACK = 2.0
"""What such a machine adds to what takes no time."""

T = TypeVar("T")
Open = Callable[..., PostgresStore]


@pytest.fixture
async def url(postgres: PostgresServer) -> str:
    return postgres.url(await postgres.new_schema())


@pytest.fixture
async def opened() -> AsyncIterator[Open]:
    """Opens stores, and closes them whatever happens: uvloop's close waits for connections left open."""
    stores: list[PostgresStore] = []

    def open_store(url: str, timeout: float = PATIENCE) -> PostgresStore:
        stores.append(PostgresStore(url, deadline=timeout))
        return stores[-1]

    yield open_store
    for one in stores:
        await one.aclose()


@pytest.fixture
async def store(opened: Open, url: str) -> PostgresStore:
    first = opened(url)
    await at_last(first.ping)
    return first


@pytest.fixture
async def hasty(opened: Open, url: str, store: PostgresStore) -> PostgresStore:
    """A store that gives up soon, on the same tables and connected by now."""
    second = opened(url, TIMEOUT)
    await at_last(second.ping)
    return second


async def at_last(ask: Callable[[], Awaitable[T]]) -> T:
    """What comes of it once the server takes turns, for which a proxy waits as well."""
    for _ in range(50):
        try:
            return await ask()
        except StoreError:
            await asyncio.sleep(0.1)
    return await ask()


async def query(url: str, *statements: str) -> list[Any]:
    connection = await asyncpg.connect(url)
    try:
        return [await connection.fetch(statement) for statement in statements]
    finally:
        await connection.close()


async def test_a_restart_is_survived(store: PostgresStore, postgres: PostgresServer):
    assert await store.write(KEY, BlobWrite(b"1", version=0, ttl=60))
    held = await store.read(KEY)
    postgres.stop()
    try:
        began = time.monotonic()
        with pytest.raises(StoreError, match=r"memory database (cannot be reached|says)"):
            await store.read(KEY)
        assert time.monotonic() - began < SLACK
    finally:
        postgres.start()
    await at_last(store.ping)
    assert await store.read(KEY) == held


async def test_a_server_that_does_not_answer_costs_the_timeout(
    store: PostgresStore, hasty: PostgresStore, postgres: PostgresServer
):
    assert await store.write(KEY, BlobWrite(b"1", version=0, ttl=60))
    with postgres.frozen():
        for _ in range(3):
            began = time.monotonic()
            with pytest.raises(StoreError, match="too slow"):
                await hasty.read(KEY)
            assert time.monotonic() - began < TIMEOUT + SLACK
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(store.read(KEY), 0.05)  # a call's own deadline is kept to
        assert time.monotonic() - began < SLACK
    for one in (hasty, store):
        held = await at_last(lambda one=one: one.read(KEY))
        assert (held or StoredBlob(b"", 0)).blob == b"1"


async def test_a_server_that_never_speaks_costs_the_timeout(opened: Open):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = opened(f"postgresql://me:s3cret@127.0.0.1:{silent.getsockname()[1]}/x", TIMEOUT)
        began = time.monotonic()
        with pytest.raises(StoreError, match="too slow"):
            await store.read(KEY)
        assert time.monotonic() - began < TIMEOUT + SLACK


async def test_errors_and_what_was_sent_are_freed_without_the_garbage_collector(opened: Open):
    def errors() -> int:
        return sum(isinstance(each, StoreError | OSError) for each in gc.get_objects())

    store = opened("postgresql://me:s3cret@127.0.0.1:1/x")
    gc.collect()
    gc.disable()
    try:
        before = errors()
        for _ in range(8):
            with contextlib.suppress(StoreError):
                await store.write(KEY, BlobWrite(b"1", version=0, ttl=60))
        more = errors() - before
    finally:
        gc.enable()
    assert more < 4, "only the last one is kept, to be looked at"


async def test_an_error_of_a_transaction_keeps_its_type(store: PostgresStore):
    async def unreadable(_connection: object) -> None:
        raise Unreadable("This turn cannot be decoded.")

    async def of_several(_connection: object) -> None:
        raise UnreadableSessions(["call-1"])

    with pytest.raises(Unreadable, match="cannot be decoded"):
        await store._pool.run(unreadable)
    with pytest.raises(UnreadableSessions) as raised:
        await store._pool.run(of_several)
    assert str(raised.value) == str(UnreadableSessions(["call-1"]))


async def test_no_error_shows_the_password(opened: Open):
    refusing = opened("postgresql://me:s3cret@127.0.0.1:1/x")
    with pytest.raises(StoreError) as raised:
        await refusing.ping()
    assert "s3cret" not in str(raised.value)


async def test_a_row_that_is_locked_costs_the_timeout(store: PostgresStore, hasty: PostgresStore, url: str):
    assert await store.write(KEY, BlobWrite(b"1", version=0, ttl=60))
    held = await store.read(KEY)
    assert held is not None
    other = await asyncpg.connect(url)
    async with other.transaction():
        await other.fetch("SELECT * FROM turnkeeper_sessions FOR UPDATE")
        with pytest.raises(StoreError, match="too slow"):
            await hasty.write(KEY, BlobWrite(b"2", version=held.version, ttl=60))
        assert await store.read(KEY) == held
    await other.close()
    for _ in range(50):  # the server may still carry out the write that was given up
        held = await store.read(KEY)
        assert held is not None
        if await store.write(KEY, BlobWrite(b"3", version=held.version, ttl=60)):
            break
    assert (await store.read(KEY) or held).blob == b"3"


async def test_a_newer_database_is_refused_and_not_touched(opened: Open, url: str, store: PostgresStore):
    await store.write(KEY, BlobWrite(b"1", version=0, ttl=60))
    await query(url, "INSERT INTO turnkeeper_migrations VALUES ('m900_the_future')")
    older = opened(url)
    for use in (older.read(KEY), older.write(KEY, BlobWrite(b"2", version=0, ttl=60)), older.ping()):
        with pytest.raises(StoreError, match=r"newer Turnkeeper \(m900_the_future"):
            await use
    ((row,),) = await query(url, "SELECT blob FROM turnkeeper_sessions")
    assert row["blob"] == b"1"


async def test_processes_that_start_together_migrate_once(opened: Open, url: str):
    await asyncio.gather(*[opened(url).ping() for _ in range(6)])
    (rows,) = await query(url, sql.APPLIED)
    assert [row["name"] for row in rows] == [step.__name__ for step in sql.MIGRATIONS]


async def test_tables_that_take_long_to_bring_up_to_date_get_the_time(
    opened: Open, url: str, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
):
    def m999_large(types: sql.Types) -> tuple[str, ...]:
        return ("DO $$ BEGIN PERFORM pg_sleep(1); END $$",)

    await store.write(KEY, BlobWrite(b"1", version=0, ttl=60))
    monkeypatch.setattr(sql, "MIGRATIONS", (*sql.MIGRATIONS, m999_large))
    monkeypatch.setattr(postgres_pool, "_MIGRATION_WAIT", 0.2)
    newer = [opened(url, TIMEOUT) for _ in range(2)]
    with pytest.raises(StoreError, match="too slow"):
        await newer[0].ping()
    for one in newer:
        assert await at_last(one.ping) is None
        assert await one.read(KEY) is not None


async def test_a_server_that_takes_no_writes_is_not_ready(opened: Open, url: str, store: PostgresStore):
    with pytest.raises(StoreError, match="memory database"):
        await opened(f"{url}&default_transaction_read_only=on").ping()


async def test_what_has_expired_leaves_the_tables(store: PostgresStore, url: str):
    for n in range(60):
        await store.write(Key("acme", str(n)), BlobWrite(b"1", version=0, ttl=0.01, cold=[b"c"]))
    await asyncio.sleep(0.05)
    store._sweep_due = 0.0
    await store.write(KEY, BlobWrite(b"1", version=0, ttl=60))
    await store.aclose()
    rows, cold = await query(url, "SELECT session FROM turnkeeper_sessions", "SELECT * FROM turnkeeper_cold")
    assert [row["session"] for row in rows] == [b"call-1"]
    assert cold == []


async def test_a_long_cold_part_makes_no_read_dearer(store: PostgresStore, url: str):
    await store.write(Key("acme", "s"), BlobWrite(b"x", version=0, ttl=60, cold=[b"y"] * 2000))
    connection = await asyncpg.connect(url)
    given = READ.in_order({**key_arguments(Key("acme", "s")), "now": time.time()})
    plan = await connection.fetch(f"EXPLAIN ANALYZE {READ.numbered}", *given)
    await connection.close()
    lines = [row[0] for row in plan]
    assert "rows=1" in lines[0]
    assert not [line for line in lines if "turnkeeper_cold" in line]


async def test_a_read_and_a_write_are_one_round_trip_each(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
):
    await store.write(KEY, BlobWrite(b"0", version=0, ttl=60))
    held = await store.read(KEY)
    assert held is not None
    asked: list[str] = []
    pool = await store._pool._opening
    async with pool.acquire() as connection:
        connection.add_query_logger(lambda query: asked.append(query.query))
    for _ in range(8):
        await store.read(KEY)
    assert len(asked) <= 8
    assert await store.write(KEY, BlobWrite(b"1", version=held.version, ttl=60, cold=[b"a", b"b"]))
    assert len(asked) <= 9
    assert not [query for query in asked if "RESET" in query or "BEGIN" in query]


def test_a_read_and_a_write_take_six_rounds_of_the_loop(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
):
    """Where a core is full each is milliseconds; a connection is given back while its reply is used."""
    rounds, taken = 0, list[tuple[int, int]]()
    run_once = asyncio.BaseEventLoop._run_once  # type: ignore[attr-defined]

    def counted(loop: asyncio.BaseEventLoop) -> None:
        nonlocal rounds
        rounds += 1
        run_once(loop)

    monkeypatch.setattr(asyncio.BaseEventLoop, "_run_once", counted)

    async def run() -> None:
        store = PostgresStore(postgres.url(await postgres.new_schema()), deadline=PATIENCE)
        await at_last(store.ping)
        version = 0
        for _ in range(15):
            before = rounds
            await store.write(KEY, BlobWrite(b"1", version=version, ttl=60))
            writing = rounds - before
            await asyncio.sleep(0.01)
            before = rounds
            version = (await store.read(KEY) or StoredBlob(b"", 0)).version
            taken.append((writing, rounds - before))
            await asyncio.sleep(0.01)
        await store.aclose()

    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(run())
    assert max(map(min, zip(*taken, strict=True))) <= 6, taken


async def test_a_reply_that_came_while_the_loop_was_busy_is_not_late(opened: Open, url: str):
    store = opened(url)
    await at_last(lambda: store.read(KEY))  # which is prepared from now on
    step = BoundStatement(READ, key_arguments(KEY) | {"now": 0.0})
    reading = asyncio.create_task(store.calls.fetch(step, within=0.05))
    for _ in range(5):
        await asyncio.sleep(0)
    time.sleep(0.1)
    assert await reading == [[]]


async def connected(url: str) -> set[int]:
    """Whom the server serves, but for who asks."""
    served = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'"
    [rows] = await query(url, f"{served} AND pid <> pg_backend_pid()")
    return {row["pid"] for row in rows}


async def test_callers_who_come_at_once_find_connections(opened: Open, url: str):
    """After a start, or a reload, each of them would wait for one of his own, for longer than he can."""
    store = opened(url, 4.0)
    others = await connected(url)
    await at_last(store.ping)
    assert len(await connected(url) - others) >= 4


async def test_a_server_that_has_one_connection_left_is_memory_all_the_same(opened: Open, url: str):
    schema = url.rpartition("=")[2]
    role = f"alone_{schema}"
    create = f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 1"
    await query(url, create, f"GRANT ALL ON SCHEMA {schema} TO {role}")
    store = opened(url.replace("postgres@", f"{role}@"))
    await at_last(store.ping)
    assert await store.write(KEY, BlobWrite(b"1", version=0, ttl=60))


async def test_what_a_failing_test_has_left_open_keeps_no_loop_from_being_closed(postgres: PostgresServer):
    left = await asyncpg.connect(postgres.url())
    asking = asyncio.create_task(left.execute("SELECT pg_sleep(100)"))
    await asyncio.sleep(0)
    await postgres.hang_up()
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await asking
    assert left.is_closed()
