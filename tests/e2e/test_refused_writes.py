"""The log says once that memory refuses writes, and once that it accepts them again."""

import asyncio
import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.memory.stores import codec
from proxy.memory.stores.drivers import open_store
from tests.peers.fake_upstream import FakeUpstream
from tests.peers.postgres_server import PostgresServer
from tests.peers.redis_server import RedisServer
from tests.remembering import CONFIG
from tests.serving_process import LISTEN, ServingProcess
from tests.waiting import awaited, until

WAITING = "turnkeeper_memory_queue_turns 3.0"
TOLD = re.compile(r"WARNING ((?:Memory|The archive) .*)")


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with contextlib.closing(RedisServer(tmp_path)) as server:
        yield server


def log_lines(serving: ServingProcess) -> list[str]:
    return TOLD.findall(serving.log)


def count_sessions(url: str) -> int:
    """How many sessions there are."""

    async def counted() -> int:
        store = open_store(url, deadline=5, codec=codec.Plain())
        try:
            return len(await store.list("default"))
        finally:
            await store.aclose()

    return asyncio.run(counted())


def test_a_store_that_refuses_writes_is_told_of_twice(
    redis: RedisServer, upstream: FakeUpstream, tmp_path: Path
) -> None:
    environ = {"UPSTREAM_BASE_URL": upstream.url, "MEMORY_URL": redis.url}
    with ServingProcess(tmp_path, LISTEN + CONFIG, **environ) as serving:
        for outage in (1, 2):
            redis.ask("CONFIG", "SET", "maxmemory", 1)
            for session in ("s1", "s2", "s2"):
                assert serving.chat("Hi", f"{session}-{outage}").status_code == 200
            assert until(lambda: serving.client.get("/readyz").json()["degraded"] == ["memory"])
            assert until(lambda: WAITING in serving.client.get("/metrics").text)
            redis.ask("CONFIG", "SET", "maxmemory", 0)
            assert until(lambda: serving.client.get("/readyz").json()["degraded"] == [])
            lines = awaited(lambda n=2 * outage: log_lines(serving) if len(log_lines(serving)) >= n else [])
            assert len(lines) == 2 * outage, "each of the two lines once for each outage"
            assert lines[-2].startswith("Memory cannot be written: ")
            assert lines[-1] == "Memory is written again (turns that waited: 3, lost: 0)"
        assert count_sessions(redis.url) == 4


def test_an_archive_that_refuses_writes_is_told_of_twice(upstream: FakeUpstream, tmp_path: Path) -> None:
    config = LISTEN + CONFIG.replace('"${MEMORY_URL}"', '"memory:", archive: {url: "${ARCHIVE_URL}"}')
    with contextlib.closing(PostgresServer()) as server:
        url = server.url(asyncio.run(server.new_schema()))
        with ServingProcess(tmp_path, config, UPSTREAM_BASE_URL=upstream.url, ARCHIVE_URL=url) as serving:
            server.ask("ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()")
            serving.chat("Hi", "s1")
            awaited(lambda: log_lines(serving))
            server.ask(
                "SET default_transaction_read_only = off",
                "ALTER SYSTEM RESET default_transaction_read_only",
                "SELECT pg_reload_conf()",
            )
            assert until(lambda: len(log_lines(serving)) > 1)
            first, last = log_lines(serving)
    assert first.startswith("The archive cannot be written: ")
    assert last == "The archive is written again"
