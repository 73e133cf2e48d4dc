"""Idle sessions cost nothing: due work is found by an index, also in the data of older versions."""

import asyncio
import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from redis.crc import key_slot

from proxy.memory.session import Session, encode
from proxy.memory.stores import redis
from proxy.memory.stores.postgres import open as open_postgres
from proxy.memory.stores.postgres_pool import PostgresPool
from proxy.memory.stores.redis import KeyNames, member, place_of
from proxy.memory.stores.redis import open as open_redis
from proxy.memory.stores.sql import DUE
from proxy.memory.stores.sqlite import SqliteStore
from proxy.memory.stores.store import NEVER_DUE, BlobWrite, Key, Store
from tests.peers.postgres_server import PostgresServer
from tests.peers.redis_server import LOOPBACK, SLOTS, RedisServer, cluster, single
from tests.serving_process import LISTEN, ServingProcess
from tests.waiting import until

pytestmark = pytest.mark.anyio
MANY = 200_000
CONFIG = f"""
{LISTEN}
memory:
  sessions: "${{MEMORY_URL}}"
  archive: {{keep: off}}
  summaries: {{upstream: main}}
upstreams: {{main: {{base_url: "practice:"}}}}
pipelines: {{default: {{upstreams: [main]}}}}
"""
AT_REST = """
for i = 3, #ARGV do
  redis.call('HSET', ARGV[i], 'version', 1, 'blob', ARGV[1], 'size', #ARGV[1], 'updated', '1.5')
  redis.call('PEXPIRE', ARGV[i], ARGV[2])
end
"""
INDEXED = """
for i = 2, #ARGV do
  redis.call('ZADD', KEYS[1], 0, ARGV[i])
  redis.call('ZADD', KEYS[2], ARGV[1], ARGV[i])
end
"""
OF_SERVERS = frozenset({"cmdstat_info", "cmdstat_replconf"})
"""What is not asked by a process of ours."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with single(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RedisServer]]:
    with cluster(tmp_path_factory.mktemp("cluster")) as servers:
        yield servers


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RedisServer]]:
    """A Cluster of three primaries, and then a replica of each."""
    # What is measured here is no failover, whatever else the machine does.
    with cluster(tmp_path_factory.mktemp("six"), replicas=True, silence=30_000) as servers:
        yield servers


@pytest.fixture
def prefix() -> str:
    return uuid.uuid4().hex + ":"


@contextlib.asynccontextmanager
async def closing(store: Store) -> AsyncIterator[Store]:
    try:
        yield store
    finally:
        await store.aclose()


def rest(servers: list[RedisServer], names: KeyNames, count: int) -> None:
    """So many sessions on which there is nothing to do, on a server or on the primaries of a Cluster."""
    lasting, session = 7_200_000, encode(Session())
    keys = [Key("default", f"s{n}") for n in range(count)]
    hot, places = defaultdict(list), defaultdict(list)
    for key in keys:
        name = names.session(key).first
        hot[owner(servers, name).port].append(name)
        places[names.index(place_of(key))].append(place_of(key))
    for server in servers:
        for batch in batched(hot[server.port], 5000):
            server.ask("EVAL", AT_REST, 1, batch[0], session, lasting, *batch)
    for index, members in places.items():
        for batch in batched(members, 5000):
            owner(servers, index.first).ask(
                "EVAL", INDEXED, 2, *index, int(time.time() * 1000) + lasting, *batch
            )


def owner(servers: list[RedisServer], name: str) -> RedisServer:
    """The server with a key's slot; they have equal parts."""
    return servers[key_slot(name.encode()) // (SLOTS // len(servers) + 1)]


def batched(items: list[Any], size: int) -> Iterator[list[Any]]:
    for first in range(0, len(items), size):
        yield items[first : first + size]


def commands(servers: list[RedisServer]) -> Counter[str]:
    """The commands that they have carried out, those of scripts included."""
    counts: Counter[str] = Counter()
    for server in servers:
        for name, stats in server.ask("INFO", "commandstats").items():
            if name not in OF_SERVERS:
                counts[name] += stats["calls"]
    return counts


@contextlib.contextmanager
def working(path: Path, **environ: str) -> Iterator[None]:
    """``turnkeeper worker`` beside the server."""
    command = [sys.executable, "-m", "proxy", "worker", str(path)]
    with subprocess.Popen(command, env={**os.environ, **environ}, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            assert process.stdout.readline()
            yield
        finally:
            process.kill()


@pytest.mark.timeout(200)
@pytest.mark.parametrize("form", ["single", "cluster"])
def test_sessions_at_rest_cost_less_than_a_hundred_commands_a_minute(
    tmp_path: Path, request: pytest.FixtureRequest, prefix: str, form: str
) -> None:
    servers = [request.getfixturevalue("server")] if form == "single" else request.getfixturevalue("six")[:3]
    url = f"{'redis' if form == 'single' else 'redis+cluster'}://{LOOPBACK}:{servers[0].port}?prefix={prefix}"
    names = KeyNames(prefix, spread=form == "cluster")
    rest(servers, names, MANY)
    with (
        ServingProcess(tmp_path, CONFIG, MEMORY_URL=url) as serving,
        working(serving.path, MEMORY_URL=url, PORT="1"),
    ):
        assert serving.chat(session="a").status_code == 200
        bucket = names.due_bucket(b"default:s7")
        due = owner(servers, bucket)
        due.ask("ZADD", bucket, 1, "default:s7")
        assert until(lambda: due.ask("ZCARD", bucket) == 0, 60), "found, and nothing to do"
        time.sleep(10)  # nothing that was begun at the start goes on
        before, began = commands(servers), time.monotonic()
        time.sleep(20)
        asked = commands(servers) - before
        a_minute = asked.total() / (time.monotonic() - began) * 60
    assert 20 < a_minute <= 3 * 100, ("a server, its background process and a worker", asked)


async def settle_all(store: Store) -> Counter[Key]:
    """How often each session is due until none is any more."""
    found: Counter[Key] = Counter()
    empty = 0
    while empty < 20:
        page = await store.take_due(["default"], limit=50, lease=30)
        for each in page:
            found[each.key] += 1
            await store.settle(each, NEVER_DUE)
        empty = 0 if page else empty + 1
        await asyncio.sleep(0 if page else 0.1)
    return found


async def listed(store: Store) -> list[str]:
    """All sessions, in pages."""
    ids: list[str] = []
    while page := await store.list("default", after=ids[-1] if ids else "", limit=70):
        ids += [each.session for each in page]
    return ids


async def index_as_before(servers: list[RedisServer], url: str, prefix: str, count: int) -> None:
    """Sessions of a version that had an index without buckets for each tenant."""
    former = KeyNames(prefix).former_index("default")
    async with closing(open_redis(f"{url}?prefix={prefix}", deadline=2.0)) as store:
        for n in range(count):
            put = BlobWrite(encode(Session()), version=0, ttl=600)
            assert await store.write(Key("default", f"s{n:03}"), put)
        await store.aclose()
    for server in servers:
        for name in server.ask("KEYS", f"{prefix}{{=:*"):
            server.ask("DEL", name)
    place = owner(servers, former.first)
    for n in range(count):
        place.ask("ZADD", former.first, 0, member(f"s{n:03}"))
        place.ask("ZADD", former.second, int(time.time() + 600) * 1000, member(f"s{n:03}"))


@pytest.mark.parametrize("form", ["single", "cluster"])
async def test_sessions_of_an_older_version_are_listed_throughout_and_due_once(
    form: str, request: pytest.FixtureRequest, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis, "_LOOK_WITHIN_MILLISECONDS", 500)
    servers = [request.getfixturevalue("server")] if form == "single" else request.getfixturevalue("nodes")
    kind = "redis" if form == "single" else "redis+cluster"
    url = f"{kind}://{LOOPBACK}:{servers[0].port}"
    await index_as_before(servers, url, prefix, 200)
    ids = [f"s{n:03}" for n in range(200)]
    async with (
        closing(open_redis(f"{url}?prefix={prefix}", deadline=2.0)) as one,
        closing(open_redis(f"{url}?prefix={prefix}", deadline=2.0)) as other,
    ):
        assert await listed(one) == ids
        found, others, during = await asyncio.gather(settle_all(one), settle_all(other), listed(other))
        assert found + others == Counter(Key("default", each) for each in ids)
        assert during == await listed(one) == ids
        assert await settle_all(one) == Counter()
    former = KeyNames(prefix).former_index("default")
    assert not [name for server in servers for name in server.ask("KEYS", former.first)]


async def test_no_node_of_a_cluster_has_more_than_half_as_much_again_to_do(
    nodes: list[RedisServer], prefix: str
) -> None:
    """Turns, work that is due and its leases, all of one tenant."""
    before = [commands([node]) for node in nodes]
    url = f"redis+cluster://{LOOPBACK}:{nodes[0].port}?prefix={prefix}"
    async with closing(open_redis(url, deadline=2.0)) as store:

        async def call(number: int) -> None:
            key, version = Key("default", f"call {number}"), 0
            for turn in range(4):
                due = time.time() + 1 if turn % 2 else NEVER_DUE
                put = BlobWrite(b"turn", version, ttl=60, due=due)
                assert await store.write(key, put)
                version = (await store.read(key)).version  # type: ignore[union-attr]

        for first in range(0, 300, 10):
            await asyncio.gather(*map(call, range(first, first + 10)))
        await asyncio.sleep(1)
        found = 0
        while found < 300:
            for each in await store.take_due(["default"], limit=20, lease=30):
                found += 1
                assert await store.acquire(each.key.session, b"worker", ttl=10) is None
                await store.settle(each, NEVER_DUE)
                await store.release(each.key.session, b"worker")
    done = [(commands([node]) - count).total() for node, count in zip(nodes, before, strict=True)]
    assert max(done) <= 1.5 * min(done), done


async def test_what_rests_in_postgresql_is_not_read(postgres: PostgresServer) -> None:
    url = postgres.url(await postgres.new_schema())
    async with closing(open_postgres(url, deadline=1.0)) as store:
        await store.ping()
        connection = await asyncpg.connect(url)
        try:
            # These are as an older version wrote them: they have the column's default.
            columns = "(tenant, session, version, updated, expires, cold, blob"
            rows = "SELECT 'default', int8send(n), 1, 1, 1e12, 0, 'x'"
            some, many = "FROM generate_series(1, 30) n", f"FROM generate_series(31, {MANY}) n"
            await connection.execute(f"INSERT INTO turnkeeper_sessions {columns}) {rows} {some}")
            await connection.execute(f"INSERT INTO turnkeeper_sessions {columns}, due) {rows}, 'inf' {many}")
            await connection.execute("ANALYZE turnkeeper_sessions")
            assert await rows_found(connection) == 20
            assert sum((await settle_all(store)).values()) == 30
            assert await rows_found(connection) == 0
        finally:
            await connection.close()


async def rows_found(connection: "asyncpg.Connection[asyncpg.Record]") -> int:
    """How many rows the look for what is due finds in its index; it reads no others."""
    sql = DUE.numbered.replace("$1", "0").replace("$2", f"{time.time()}").replace("$3", "20")
    ((plan,),) = await connection.fetch(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}")
    (scan,) = json.loads(plan)[0]["Plan"]["Plans"]
    assert scan["Index Name"] == "turnkeeper_sessions_due", plan
    assert "Rows Removed by Filter" not in scan, plan
    return int(scan["Actual Rows"])


async def test_what_was_due_is_not_read_again_while_a_back_up_reads(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server keeps what the back-up may still read, in the index as well."""
    monkeypatch.setattr("proxy.memory.stores.postgres._DUE_BEFORE", 0.5)
    url = postgres.url(await postgres.new_schema())
    async with closing(open_postgres(url, deadline=1.0)) as store:
        await store.ping()
        connection, backup = await asyncpg.connect(url), await asyncpg.connect(url)
        pages: list[int] = []

        async def looked_at(pool: Any, work: Any, within: float | None = None) -> Any:
            """What the look costs that is about to be carried out."""

            async def explaining(real: Any) -> Any:
                class Explaining:
                    async def fetch(self, sql: str, *values: Any) -> Any:
                        tried = real.transaction()
                        await tried.start()
                        plan = await real.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", *values)
                        await tried.rollback()
                        pages.append(json.loads(plan)[0]["Plan"]["Shared Hit Blocks"])
                        return await real.fetch(sql, *values)

                return await work(Explaining())

            return await run(pool, explaining, within)

        run = PostgresPool.run
        try:
            async with backup.transaction(isolation="repeatable_read"):
                await backup.fetch("SELECT count(*) FROM turnkeeper_people")
                await connection.execute(
                    "INSERT INTO turnkeeper_sessions"
                    " (tenant, session, version, updated, expires, cold, blob, due)"
                    " SELECT 'default', int8send(n), 1, 1, 1e12, 0, 'x', 1e300 FROM generate_series(1, 500) n"
                )
                for _ in range(20):
                    now = time.time()
                    await connection.execute("UPDATE turnkeeper_sessions SET due = $1", now)
                    await connection.execute("UPDATE turnkeeper_sessions SET due = 1e300")
                await asyncio.sleep(0.6)
                with monkeypatch.context() as patch:
                    patch.setattr(PostgresPool, "run", looked_at)
                    assert [await store.take_due(["default"], limit=20, lease=5) for _ in range(2)] == [
                        [],
                        [],
                    ]
                key = Key("default", "new")
                assert await store.write(key, BlobWrite(b"1", version=0, ttl=60, due=1.0))
                assert [each.key for each in await store.take_due(["default"], limit=20, lease=5)] == [key]
        finally:
            await connection.close()
            await backup.close()
    assert pages[1] * 10 < pages[0], pages


async def test_what_rests_in_a_file_is_not_read(path: Path) -> None:
    async with closing(SqliteStore(path, deadline=1.0)) as store:
        await store.ping()
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            columns = "(tenant, session, version, updated, expires, cold, blob)"
            row = f"INSERT INTO turnkeeper_sessions {columns} VALUES (?, ?, 1, 1, 1e12, 0, 'x')"
            connection.executemany(row, [(b"default", b"%d" % n) for n in range(30)])
            plan = connection.execute(
                f"EXPLAIN QUERY PLAN {DUE.named}", {"since": 0, "now": 1, "limit": 20}
            ).fetchall()
        assert "INDEX turnkeeper_sessions_due (due>? AND due<?)" in str(plan)
        found = await settle_all(store)
        assert found == Counter(Key("default", str(n)) for n in range(30))
        assert await settle_all(store) == Counter()
