"""Tables on PostgreSQL are brought up to date beside servers that use them, in steps that may break off."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import asyncpg
import pytest

from proxy.memory.errors import StoreError
from proxy.memory.stores import postgres_pool, sql
from proxy.memory.stores.postgres import PostgresStore
from proxy.memory.stores.postgres_pool import TYPES
from proxy.memory.stores.store import BlobWrite, Key
from tests.peers.postgres_server import PostgresServer
from tests.peers.transaction_pooler import TransactionPooler

pytestmark = pytest.mark.anyio
T = TypeVar("T")
KEY = Key("acme", "call-1")
PATIENCE = 10.0
RELEASED = 8
"""How many migrations 0.1.0 had."""
TABLES = """SELECT table_name, column_name, data_type, column_default, is_nullable
 FROM information_schema.columns WHERE table_schema = current_schema() ORDER BY table_name, column_name"""
INDEXES = """SELECT indexname, replace(indexdef, current_schema() || '.', '') FROM pg_indexes
 WHERE schemaname = current_schema() ORDER BY indexname"""
UNFINISHED = """SELECT indexrelid::oid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
 WHERE NOT i.indisvalid AND c.relnamespace = current_schema()::regnamespace"""
AT_WORK = """SELECT p.pid FROM pg_stat_progress_create_index p JOIN pg_class c ON c.oid = p.relid
 WHERE c.relnamespace = current_schema()::regnamespace AND phase = 'waiting for old snapshots'"""
WORDS = [
    "INSERT INTO turnkeeper_people (tenant, person) VALUES ('acme', 'ann')",
    "INSERT INTO turnkeeper_talks (tenant, session, created, mark) VALUES ('acme', 'call-1', 5, 5)",
    """INSERT INTO turnkeeper_turns
     (talk, life, turn, role, position, place, owner, at, recorded, digest, blob)
     SELECT 1, 0, n, 'user', 0, n, 1, n, n, 'digest', 'blob' FROM generate_series(1, 500) n""",
    """INSERT INTO turnkeeper_passages (owner, kind, item, talk, place, at, terms, lexicon)
     SELECT 1, 1, id, 1, place, at, 'words', 1 FROM turnkeeper_turns""",
    """INSERT INTO turnkeeper_sessions (tenant, session, version, updated, expires, cold, blob)
     SELECT 'acme', ('old-' || n)::bytea, 1, 1, 1e12, 0, 'blob' FROM generate_series(1, 500) n""",
]
OLD_STATEMENTS = [
    "SELECT blob FROM turnkeeper_sessions WHERE tenant = 'acme' AND session = 'old-7' AND expires > 5",
    "UPDATE turnkeeper_sessions SET version = version + 1 WHERE tenant = 'acme' AND session = 'old-8'",
    "UPDATE turnkeeper_turns SET recorded = recorded + 1 WHERE talk = 1 AND turn = 7",
    "UPDATE turnkeeper_passages SET at = at + 1 WHERE kind = 1 AND item = 9",
]
"""What servers of 0.1.0 go on to do."""
OPEN_AND_WAIT = """
import asyncio, sys
from proxy.memory.stores.postgres import PostgresStore
async def main():
    store = PostgresStore(sys.argv[1], deadline=10)
    await store.ping()
    await asyncio.sleep(600)
asyncio.run(main())
"""

Connection = Any
Open = Callable[[str], PostgresStore]


@pytest.fixture
async def url(postgres: PostgresServer) -> str:
    """The address of what 0.1.0 has left."""
    address = postgres.url(await postgres.new_schema())
    async with connected(address) as connection:
        await connection.execute(sql.LEDGER_TABLE)
        for migration in sql.MIGRATIONS[:RELEASED]:
            for statement in sql.migration_statements(migration, TYPES):
                await connection.execute(statement)
        for statement in WORDS:
            await connection.execute(statement)
    return address


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who finds another at work looks again soon."""
    monkeypatch.setattr(postgres_pool, "_INDEXED_ELSEWHERE", 0.05)


@pytest.fixture
async def opened() -> AsyncIterator[Open]:
    stores: list[PostgresStore] = []

    def open_store(url: str) -> PostgresStore:
        stores.append(PostgresStore(url, deadline=PATIENCE))
        return stores[-1]

    yield open_store
    for one in stores:
        await one.aclose()


@contextlib.asynccontextmanager
async def connected(url: str, *settings: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(url)
    try:
        for setting in settings:
            await connection.execute(setting)
        yield connection
    finally:
        await connection.close()


@contextlib.asynccontextmanager
async def old_snapshot(url: str) -> AsyncIterator[None]:
    """Something that reads for long, as a back-up does: no index is finished meanwhile."""
    async with connected(url) as connection, connection.transaction(isolation="repeatable_read"):
        await connection.execute("SELECT 1 FROM pg_class LIMIT 1")
        yield


async def come(ask: Callable[[], Awaitable[T]]) -> T:
    """What is awaited, once it is true."""
    async with asyncio.timeout(60):
        while True:
            if found := await ask():
                return found
            await asyncio.sleep(0.02)


async def is_up_to_date(connection: Connection) -> bool:
    applied = {name for (name,) in await connection.fetch(sql.APPLIED)}
    return applied == {migration.__name__ for migration in sql.MIGRATIONS}


async def old_servers_go_on(url: str) -> None:
    async with connected(url, "SET lock_timeout = '2s'") as connection:
        for statement in OLD_STATEMENTS:
            await connection.execute(statement)


async def test_tables_of_the_last_release_become_those_of_a_new_database(
    opened: Open, url: str, postgres: PostgresServer
):
    new = postgres.url(await postgres.new_schema())
    await asyncio.gather(*(opened(url).ping() for _ in range(4)), opened(new).ping())
    async with connected(url) as upgraded, connected(new) as fresh:
        await come(lambda: is_up_to_date(upgraded))
        assert await is_up_to_date(fresh)
        for query in (TABLES, INDEXES):
            assert await upgraded.fetch(query) == await fresh.fetch(query)
        assert await upgraded.fetch(UNFINISHED) == []
    await old_servers_go_on(url)


async def test_both_versions_read_and_write_while_indexes_are_made(opened: Open, url: str):
    store = opened(url)
    async with connected(url) as connection:
        async with old_snapshot(url):
            await store.ping()
            await come(lambda: connection.fetch(AT_WORK))
            await old_servers_go_on(url)
            assert await store.write(KEY, BlobWrite(b"1", version=0, ttl=60))
            assert (await store.read(KEY)).blob == b"1"
            assert len(await store.take_due(["acme"], limit=20, lease=5)) == 20
            another = opened(url)
            assert (await another.read(KEY)).blob == b"1"
            assert not await is_up_to_date(connection)
        await come(lambda: is_up_to_date(connection))


async def test_an_index_that_was_broken_off_is_made_again(opened: Open, url: str):
    store = opened(url)
    async with connected(url) as connection:
        async with old_snapshot(url):
            await store.ping()
            ((pid,),) = await come(lambda: connection.fetch(AT_WORK))
            await store.aclose()
            await connection.execute("SELECT pg_terminate_backend($1)", pid)
            await come(lambda: no_more(connection))
        assert await connection.fetch(UNFINISHED)
        await opened(url).ping()
        await come(lambda: is_up_to_date(connection))
        assert await connection.fetch(UNFINISHED) == []


async def no_more(connection: Connection) -> bool:
    return not await connection.fetch(AT_WORK)


async def test_what_a_killed_process_has_the_server_at_is_left_to_the_server(opened: Open, url: str):
    """The server does not notice that its client has gone, and finishes the index."""
    process = subprocess.Popen([sys.executable, "-c", OPEN_AND_WAIT, url])
    try:
        async with connected(url) as connection:
            async with old_snapshot(url):
                at_work = await come(lambda: connection.fetch(AT_WORK))
                ((index,),) = await connection.fetch(UNFINISHED)
                os.kill(process.pid, signal.SIGKILL)
                process.wait(10)
                store = opened(url)
                assert await store.write(KEY, BlobWrite(b"1", version=0, ttl=60))
                await asyncio.sleep(0.3)  # in which it looks some times
                assert await connection.fetch(AT_WORK) == at_work
            await come(lambda: is_up_to_date(connection))
            assert await connection.fetch(
                "SELECT 1 FROM pg_index WHERE indexrelid = $1 AND indisvalid", index
            )
            assert await connection.fetch(UNFINISHED) == []
    finally:
        process.kill()
        process.wait(10)


async def test_nobody_waits_behind_a_column_that_has_to_wait(opened: Open, url: str):
    """A back-up of an hour keeps a new server without memory, and the old ones go on."""
    store = opened(url)
    async with connected(url) as backup:
        async with backup.transaction():
            await backup.execute("LOCK TABLE turnkeeper_sessions IN ACCESS SHARE MODE")
            with pytest.raises(StoreError, match="55P03"):
                await store.ping()
            tried = asyncio.create_task(refused(store))
            for _ in range(10):
                await old_servers_go_on(url)
            await tried
        await come(lambda: serves(store))
        await come(lambda: is_up_to_date(backup))


async def refused(store: PostgresStore) -> None:
    with pytest.raises(StoreError):
        await store.ping()


async def serves(store: PostgresStore) -> bool:
    try:
        await store.ping()
    except StoreError:
        return False
    return True


async def test_indexes_are_made_through_a_pooler(url: str, postgres: PostgresServer, opened: Open):
    with TransactionPooler(postgres.socket) as pooler:
        schema = url.partition("search_path=")[2]
        pooled = f"postgresql://postgres@127.0.0.1:{pooler.port}/postgres?search_path={schema}"
        store = opened(pooled)
        await store.ping()
        async with connected(url) as connection:
            await come(lambda: is_up_to_date(connection))
            assert await connection.fetch(UNFINISHED) == []
        await store.aclose()
