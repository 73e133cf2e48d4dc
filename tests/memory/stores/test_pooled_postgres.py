"""A PostgreSQL behind a pooler that gives each transaction another connection, as PgBouncer does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from proxy.memory.archive.archive import open_archive
from proxy.memory.archive.records import Fact
from proxy.memory.stores.codec import Plain
from proxy.memory.stores.postgres import PostgresStore
from proxy.memory.stores.store import BlobWrite, Key, Owner
from tests.peers.postgres_server import PostgresServer
from tests.peers.transaction_pooler import TransactionPooler

pytestmark = pytest.mark.anyio
PATIENCE = 10.0


@pytest.fixture
async def url(postgres: PostgresServer) -> AsyncIterator[str]:
    schema = await postgres.new_schema()
    with TransactionPooler(postgres.socket) as pooler:
        yield f"postgresql://postgres@127.0.0.1:{pooler.port}/postgres?search_path={schema}"


@pytest.fixture
async def pooled(url: str) -> AsyncIterator[list[PostgresStore]]:
    """Stores of two servers, as they would be in processes of their own."""
    stores = [PostgresStore(url, deadline=PATIENCE) for _ in range(2)]
    try:
        yield stores
    finally:
        for store in stores:
            await store.aclose()


async def test_what_one_writes_all_read(pooled: list[PostgresStore]) -> None:
    writer, reader = pooled
    keys = [Key("acme", f"call-{n}") for n in range(20)]
    puts = [
        writer.write(key, BlobWrite(key.session.encode(), version=0, ttl=60, cold=[b"old"])) for key in keys
    ]
    assert await asyncio.gather(*puts) == [True] * len(keys)
    for store in (reader, writer, reader):
        found = await asyncio.gather(*(store.read(key) for key in keys))
        assert [held and held.blob for held in found] == [key.session.encode() for key in keys]
        await store.ping()
    assert await reader.cold(keys[3]) == [b"old"]
    assert len(await reader.list("acme")) == len(keys)
    assert await reader.delete(keys[0])
    assert await writer.read(keys[0]) is None


async def test_a_call_reads_its_session_and_facts_at_once(url: str, pooled: list[PostgresStore]) -> None:
    writer, reader = pooled
    ann, key = Owner("acme", "ann"), Key("acme", "call")
    async with aclosing(open_archive(url, codec=Plain(), sessions=reader)) as archive:
        assert await writer.write(key, BlobWrite(b"0", version=0, ttl=60))
        await archive.add_fact(ann, Fact(id="f1", text="Bello barks.", created=1.0))
        for _ in range(3):
            stored, facts = await asyncio.gather(reader.read(key), archive.facts(ann, now=2.0))
            assert (stored and stored.blob, [fact.id for fact in facts]) == (b"0", ["f1"])


async def test_without_a_pooler_statements_stay_prepared(postgres: PostgresServer) -> None:
    store = PostgresStore(postgres.url(await postgres.new_schema()), deadline=PATIENCE)
    await store.ping()
    pool = await store._pool._opening
    async with pool.acquire() as connection:
        await connection.fetch("SELECT 1")
        assert await connection.fetchval("SELECT count(*) FROM pg_prepared_statements") > 0
    await store.aclose()
