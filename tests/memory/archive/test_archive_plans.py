"""What a statement reads on PostgreSQL is its user's and its session's own, whatever others have there."""

import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

import asyncpg
import pytest

from proxy.memory.archive.archive import Archive, open_archive
from proxy.memory.archive.records import DocumentChunk, Fact, Query
from proxy.memory.session import Entry, Session
from proxy.memory.stores.codec import Plain
from proxy.memory.stores.postgres import PostgresStore
from proxy.memory.stores.store import BlobWrite, Key, Owner
from tests.peers.postgres_server import PostgresServer

pytestmark = pytest.mark.anyio
NOW = time.time()
ANN = Owner("acme", "ann")
CALL, EARLIER = Key("acme", "call"), Key("acme", "earlier")
OTHERS = 600
"""Other users, with 20 calls of four messages each."""
MOST = 500
"""Rows that one statement may read: the user's own, some times over."""
LARGE = 3000
"""Rows of a table that nothing may read as a whole."""
FILLED = [
    f"""INSERT INTO turnkeeper_people (tenant, person)
     SELECT 'acme', ('user-' || n)::bytea FROM generate_series(1, {OTHERS}) n""",
    f"""INSERT INTO turnkeeper_talks (tenant, session, created, mark, updated)
     SELECT 'acme', ('call-' || n)::bytea, 5, 5, 5 FROM generate_series(1, {OTHERS * 20}) n""",
    f"""INSERT INTO turnkeeper_turns
     (talk, life, turn, role, position, place, owner, at, recorded, digest, blob)
     SELECT k.id, 0, n / 2, CASE n % 2 WHEN 0 THEN 'user' ELSE 'assistant' END, 0, n,
        k.id % {OTHERS} + 1, {NOW} - k.id, {NOW} - k.id, 'digest', 'blob'
     FROM turnkeeper_talks k, generate_series(0, 3) n""",
    """INSERT INTO turnkeeper_passages (owner, kind, item, talk, place, at, terms, lexicon, meant)
     SELECT owner, 1, id, talk, place, at, md5(owner || ' ' || place) || ' ' || md5(id::text), 2, 'model'
     FROM turnkeeper_turns""",
    """INSERT INTO turnkeeper_vectors (passage, owner, model, sign, blob)
     SELECT id, owner, 'model', 'sign', 'blob' FROM turnkeeper_passages""",
    f"""INSERT INTO turnkeeper_facts (owner, name, category, created, expires, importance, blob)
     SELECT n % {OTHERS} + 1, ('fact-' || n)::bytea, 'note', 5, 1e12 + n, 1, 'blob'
     FROM generate_series(1, {OTHERS * 10}) n""",
    f"""INSERT INTO turnkeeper_tombstones (tenant, kind, name, at)
     SELECT 'acme', 0, ('\\xff' || md5(n::text))::bytea, 5 FROM generate_series(1, {OTHERS * 10}) n""",
    f"""INSERT INTO turnkeeper_sessions (tenant, session, version, updated, expires, cold, blob, due)
     SELECT 'acme', ('call-' || n)::bytea, 1, 5, 1e12 + n, 0, 'blob', 1e300
     FROM generate_series(1, {OTHERS * 10}) n""",
    """INSERT INTO turnkeeper_cold (session_id, position, blob)
     SELECT id, 0, 'blob' FROM turnkeeper_sessions""",
]


class Scan(NamedTuple):
    """One node of a plan that reads a table."""

    table: str
    kind: str
    rows: float


class Explained:
    """Has each statement with a part explained before it is carried out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, part: str = "turnkeeper_") -> None:
        self._part = part
        self.plans: list[tuple[str, Any]] = []
        self._fetch = asyncpg.Connection.fetch
        for name in ("fetch", "fetchrow", "fetchval"):
            monkeypatch.setattr(asyncpg.Connection, name, self._explaining(getattr(asyncpg.Connection, name)))

    def _explaining(self, way: Any) -> Any:
        async def carried_out(connection: Any, sql: str, *values: Any, **more: Any) -> Any:
            if self._part in sql:
                tried = connection.transaction()
                await tried.start()
                plan = await self._fetch(
                    connection, f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", *values
                )
                await tried.rollback()
                self.plans.append((sql, json.loads(plan[0][0])[0]["Plan"]))
            return await way(connection, sql, *values, **more)

        return carried_out


def scans(plan: Any) -> Iterator[Scan]:
    if table := plan.get("Relation Name", ""):
        removed = plan.get("Rows Removed by Filter", 0) + plan.get("Rows Removed by Index Recheck", 0)
        rows = plan.get("Actual Loops", 0) * (plan.get("Actual Rows", 0) + removed)
        if "Scan" in plan["Node Type"]:
            yield Scan(table, plan["Node Type"], rows)
    for part in plan.get("Plans", ()):
        yield from scans(part)


@pytest.fixture
async def url(postgres: PostgresServer) -> str:
    # Tables this small are read as a whole where a page costs four times as much out of its order.
    return f"{postgres.url(await postgres.new_schema())}&random_page_cost=1"


@pytest.fixture
async def archive(url: str) -> AsyncIterator[Archive]:
    opened = open_archive(url, codec=Plain())
    await opened.ping()
    connection = await asyncpg.connect(url)
    for statement in FILLED:
        await connection.execute(statement)
    await connection.execute("ANALYZE")
    await connection.close()
    yield opened
    await opened.aclose()


@pytest.fixture
async def store(url: str, archive: Archive) -> AsyncIterator[PostgresStore]:
    opened = PostgresStore(url, deadline=10)
    yield opened
    await opened.aclose()


def session(turns: int, at: float, text: str = "I would like a window seat on flight") -> Session:
    entries = [
        Entry(role=role, turn=n, content=f"{text} {n}.", recorded_at=at + n)
        for n in range(turns)
        for role in ("user", "assistant")
    ]
    return Session(entries=tuple(entries), user="ann", created=at, updated=at + turns)


async def a_users_life(archive: Archive, store: PostgresStore) -> None:
    """All that a server asks for one user, from a first call to the erasure."""
    await archive.save_session(EARLIER, session(20, NOW - 90_000), as_of=NOW)
    for turns in range(1, 30):
        await archive.save_session(CALL, session(turns, NOW - 100), as_of=NOW)
    await archive.save_session(CALL, session(28, NOW - 70, "No, an aisle seat, on flight"), as_of=NOW)
    for n in range(3):
        await archive.add_fact(ANN, Fact(id=f"f{n}", text=f"Likes window seat {n}.", created=NOW - n))
    await archive.add_document(
        "acme", "faq.md", [DocumentChunk(title="", text="Window seats are free.")], at=NOW
    )
    assert len(await archive.facts(ANN, now=NOW)) == 3
    assert await archive.search(ANN, Query(text="Which seat did I ask for yesterday?", now=NOW))
    assert await archive.latest_turns(ANN, limit=5)
    assert await archive.user_sessions(ANN)
    assert await archive.turns(ANN, limit=50)
    assert await archive.session_turns(CALL, limit=50)
    assert await archive.saved_times("acme", ["call", "earlier"])
    assert await archive.remove_fact(ANN, "f1")
    version = 0
    for n in range(3):
        put = BlobWrite(b"%d" % n, version=version, ttl=60, cold=[b"cold"], due=NOW, new_version=7 + n)
        assert await store.write(CALL, put)
        version = 7 + n
    assert await store.read(CALL)
    assert await store.cold(CALL)
    (due,) = await store.take_due(["acme"], limit=20, lease=5)
    assert await store.settle(due, NOW + 60)
    assert await store.delete(CALL)
    assert await archive.sweep(before=NOW - 80_000, limit=10) == 10
    assert await archive.expire(now=NOW) == 0
    assert await archive.forget_session(CALL, at=NOW)
    assert (await archive.forget(ANN, at=NOW)).turns


async def test_no_statement_reads_what_is_others(
    archive: Archive, store: PostgresStore, url: str, monkeypatch: pytest.MonkeyPatch
):
    explained = Explained(monkeypatch)
    await a_users_life(archive, store)
    monkeypatch.undo()
    for sql, plan in explained.plans:
        read = [*scans(plan)]
        assert sum(scan.rows for scan in read) <= MOST, (sql, read)
    statements = {sql for sql, _ in explained.plans}
    assert len(statements) > 40, "these are not all that a server asks"
    connection = await asyncpg.connect(url)
    rows = dict(
        await connection.fetch(
            "SELECT relname, reltuples FROM pg_class WHERE relnamespace = current_schema()::regnamespace"
        )
    )
    # And so it is where the plan is made once for whatever arguments come.
    await connection.execute("SET plan_cache_mode = force_generic_plan")
    for number, sql in enumerate(sorted(statements)):
        await connection.execute(f"PREPARE s{number} AS {sql}")
        count = await connection.fetchval(
            f"SELECT cardinality(parameter_types) FROM pg_prepared_statements WHERE name = 's{number}'"
        )
        arguments = f"({', '.join(['NULL'] * count)})" if count else ""
        plan = await connection.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE s{number}{arguments}")
        whole = [scan for scan in scans(json.loads(plan)[0]["Plan"]) if scan.kind == "Seq Scan"]
        assert not [scan for scan in whole if rows[scan.table] > LARGE], (sql, whole)
    await connection.close()


async def test_what_is_past_its_time_is_found_while_a_back_up_reads(
    archive: Archive, url: str, monkeypatch: pytest.MonkeyPatch
):
    """The server keeps what the back-up may still read, in the index as well."""
    backup = await asyncpg.connect(url)
    async with backup.transaction(isolation="repeatable_read"):
        await backup.fetch("SELECT count(*) FROM turnkeeper_people")
        explained = Explained(monkeypatch, "t.recorded >=")
        swept = [await archive.sweep(before=NOW, limit=500) for _ in range(40)]
        assert swept == [500] * 40
        monkeypatch.undo()
    await backup.close()
    pages = [plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] for _, plan in explained.plans]
    assert max(pages[-5:]) < 2 * max(pages[:5]), pages
