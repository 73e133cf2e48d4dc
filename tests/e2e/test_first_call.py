"""Whoever calls first after a start has memory, as all others do; a memory that is away holds up no start."""

import asyncio
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import AGORA
from tests.e2e.conftest import Address
from tests.peers.fake_upstream import FakeUpstream
from tests.peers.postgres_server import PostgresServer
from tests.peers.redis_server import LOOPBACK, free_port
from tests.peers.relay import Relay
from tests.proxy_server import ProxyServer, Serve
from tests.serving_process import LISTEN, ServingProcess
from tests.waiting import until

DEADLINE = "200ms"
"""What a call waits for memory here, so that a busy machine is not taken for a store that is being opened."""
BUSY = 0.6
"""Seconds that opening a store takes here: three times what a call waits for it."""
START = 3.0
"""Seconds that a start may take while memory is away: one, and what a busy machine adds."""
SHIPPED = AGORA.read_text().replace("  deadline: 50ms\n", f"  deadline: {DEADLINE}\n")
RECALLING = """
memory: {deadline: DEADLINE, sessions: "${MEMORY_URL}"}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL:-practice:}"}}
pipelines: {default: {upstreams: [main], request: [restore_history, inject_facts, recall]}}
""".replace("DEADLINE", DEADLINE)


@contextmanager
def locked(path: Path) -> Iterator[sqlite3.Connection]:
    """Another program has the file for itself, until the connection is closed."""
    with closing(sqlite3.connect(path, check_same_thread=False)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield other


def call_with(proxy: ProxyServer, text: str, **more: Any) -> Any:
    who = {"X-Session-Id": "s1", "X-User-Id": "ann"}
    return proxy.chat([{"role": "user", "content": text}], headers=who, **more)


@pytest.mark.parametrize("config", [SHIPPED, RECALLING], ids=["shipped", "recalling"])
def test_the_first_call_finds_the_stores_open(serve: Serve, tmp_path: Path, config: str) -> None:
    path = tmp_path / "memory.db"
    with locked(path) as other:
        over = threading.Timer(BUSY, other.close)
        over.start()
        proxy = serve(config, MEMORY_URL=f"sqlite:{path}")
        told = proxy.client.get("/readyz").json()
        answers = [call_with(proxy, text) for text in ("Hello?", "Are you there?")]
        over.join()
    assert told == {"status": "ready", "degraded": []}
    assert [got.headers.get("x-turnkeeper-degraded") for got in answers] == [None, None]


@pytest.mark.parametrize("kind", ["memory", "sqlite", "redis", "postgresql"])
def test_so_it_does_wherever_memory_is(
    serve: Serve, address: Address, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for patience in ("proxy.memory.memory._OPEN_WITHIN", "proxy.memory.stores.postgres.TIMEOUT"):
        monkeypatch.setattr(patience, 10.0)  # a busy machine takes its time
    proxy = serve(SHIPPED, MEMORY_URL=address(kind))
    assert proxy.client.get("/readyz").json() == {"status": "ready", "degraded": []}
    assert call_with(proxy, "Hello?").headers.get("x-turnkeeper-degraded") is None


def test_a_database_at_some_distance_is_open_before_the_first_call(
    serve: Serve, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.memory.memory._OPEN_WITHIN", 10.0)
    schema = asyncio.run(postgres.new_schema())
    with Relay(postgres.socket) as relay:
        url = f"postgresql://postgres@{LOOPBACK}:{relay.port}/postgres?search_path={schema}"
        serve(SHIPPED, MEMORY_URL=url)  # whose tables are made
        relay.delay = 0.02
        patient = SHIPPED.replace(f"  deadline: {DEADLINE}\n", "  deadline: 10s\n")
        proxy = serve(patient, MEMORY_URL=url)
        assert proxy.client.get("/readyz").json() == {"status": "ready", "degraded": []}
        relay.full = True
        assert call_with(proxy, "Hello?").headers.get("x-turnkeeper-degraded") is None


def test_the_first_call_after_a_restart_has_what_was_said_before(
    serve: Serve, upstream: FakeUpstream, tmp_path: Path
) -> None:
    url = f"sqlite:{tmp_path / 'memory.db'}"
    shipped = tmp_path / "shipped.yaml"
    shipped.write_text(SHIPPED)
    with ProxyServer(shipped, {"MEMORY_URL": url, "UPSTREAM_BASE_URL": upstream.url}) as before:
        call_with(before, "My name is Ada.")
    again = call_with(serve(SHIPPED, MEMORY_URL=url), "Who am I?")
    assert again.headers.get("x-turnkeeper-degraded") is None
    assert upstream.last.json["messages"][0]["content"] == "My name is Ada."


def test_the_first_call_after_a_reload_finds_the_new_stores_open(
    tmp_path: Path, upstream: FakeUpstream
) -> None:
    paths = [tmp_path / name for name in ("one.db", "other.db")]
    configs = [LISTEN + RECALLING.replace("${MEMORY_URL}", f"sqlite:{path}") for path in paths]
    with ServingProcess(tmp_path, configs[0], UPSTREAM_BASE_URL=upstream.url) as serving:
        with locked(paths[1]) as other:
            over = threading.Timer(BUSY, other.close)
            over.start()
            serving.path.write_text(configs[1])
            serving.hang_up()
            assert until(lambda: "was read again" in serving.log)
            got = serving.chat("Hello?", session="s1", user_id="ann")
            over.join()
        assert got.headers.get("x-turnkeeper-degraded") is None


@contextmanager
def silent() -> Iterator[str]:
    """A server that takes connections and says nothing."""
    with socket.create_server((LOOPBACK, 0)) as server:
        yield f"{LOOPBACK}:{server.getsockname()[1]}"


@pytest.mark.faults
@pytest.mark.parametrize("fault", ["locked", "no folder", "refused", "silent redis", "silent postgres"])
def test_a_memory_that_is_away_holds_up_no_start(serve: Serve, tmp_path: Path, fault: str) -> None:
    path = tmp_path / "memory.db"
    with locked(path), silent() as address:
        urls = {
            "locked": f"sqlite:{path}",
            "no folder": f"sqlite:{tmp_path / 'none' / 'memory.db'}",
            "refused": f"redis://{LOOPBACK}:{free_port()}",
            "silent redis": f"redis://{address}",
            "silent postgres": f"postgresql://{address}/memory",
        }
        began = time.monotonic()
        proxy = serve(SHIPPED, MEMORY_URL=urls[fault])
        told = proxy.client.get("/readyz")
        assert time.monotonic() - began < START
        assert (told.status_code, told.json()) == (200, {"status": "degraded", "degraded": ["memory"]})
        got = call_with(proxy, "Hello?")
        assert (got.status_code, "memory" in got.headers["x-turnkeeper-degraded"]) == (200, True)


def test_a_server_that_is_up_has_memory_at_once(tmp_path: Path, upstream: FakeUpstream) -> None:
    config = LISTEN + RECALLING
    environ = {"MEMORY_URL": f"sqlite:{tmp_path / 'memory.db'}", "UPSTREAM_BASE_URL": upstream.url}
    with ServingProcess(tmp_path, config, **environ) as serving:
        got = serving.chat("Hello?", session="s1", user_id="ann")
        assert (got.status_code, got.headers.get("x-turnkeeper-degraded")) == (200, None)
