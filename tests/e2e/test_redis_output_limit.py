"""A Redis that ends connections whose replies pile up: the one that all askers share goes with them."""

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.peers.fake_upstream import FakeUpstream
from tests.peers.redis_server import RedisServer, stopped
from tests.proxy_server import ProxyServer, Serve
from tests.remembering import CONFIG, IMPATIENT, call, stored_entries, user
from tests.tried import Tried
from tests.waiting import until

pytestmark = pytest.mark.faults
LIMIT = "client-output-buffer-limit normal 64kb 0 0"
NO_LIMIT = "normal 0 0 0"
LONG = "x" * 100_000
QUICK = 1.5
"""Seconds that a call has: its deadline of 50 ms, and what a busy machine adds."""
OTHERS = [f"s{number}" for number in range(8)]


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with contextlib.closing(RedisServer(tmp_path, LIMIT)) as server:
        yield server


def asked(proxy: ProxyServer, session: str, text: str) -> Any:
    began = time.monotonic()
    got = call(proxy, user(text), session=session)
    assert (got.status_code, "Hello" in got.text) == (200, True)
    got.extensions["took"] = time.monotonic() - began
    return got


def degraded(got: Any) -> bool:
    return got.headers.get("x-turnkeeper-degraded") == "memory"


def connections(server: RedisServer) -> int:
    """How many were ever made."""
    return int(server.ask("INFO", "stats")["total_connections_received"])


def ended_connections(server: RedisServer) -> int:
    """How many it ended since their replies piled up."""
    return (server.folder / "log").read_text().count("output buffer limits")


def test_a_session_beyond_the_limit_costs_its_own_calls_memory_and_no_time(
    serve: Serve, upstream: FakeUpstream, redis: RedisServer, tried: Tried
) -> None:
    proxy = serve(IMPATIENT, MEMORY_URL=redis.url)
    asked(proxy, "long", LONG)
    asked(proxy, "short", "Before.")
    assert until(lambda: len(stored_entries(proxy, "short")) == 2)
    for _ in range(3):
        got = asked(proxy, "long", "And then?")
        assert degraded(got) and got.extensions["took"] < QUICK
    assert ended_connections(redis) >= 3
    assert until(lambda: proxy.client.get("/readyz").json()["degraded"] == ["memory"])
    # The connection is made again, for all others: what was said before comes back from memory.
    assert until(lambda: asked(proxy, "short", "Again.") and len(upstream.last.json["messages"]) > 1)
    redis.ask("CONFIG", "SET", "client-output-buffer-limit", NO_LIMIT)
    assert until(lambda: proxy.client.get("/readyz").json()["degraded"] == [])
    assert [entry.content for entry in stored_entries(proxy, "long")][:3] == [
        LONG,
        "Hello there.",
        "And then?",
    ]
    tried("redis with a low output limit", "the answer at once, without memory; all turns held later")


def test_all_who_ask_at_once_lose_their_connection_together_and_have_it_again(
    serve: Serve, upstream: FakeUpstream, redis: RedisServer, tried: Tried
) -> None:
    proxy = serve(CONFIG, MEMORY_URL=redis.url)
    sessions = ["long", *OTHERS]
    for session in sessions:
        asked(proxy, session, LONG if session == "long" else "Before.")
        assert len(stored_entries(proxy, session) if session != "long" else "ab") == 2
    before, answered = connections(redis), len(upstream.requests)
    with ThreadPoolExecutor(len(sessions)) as callers:
        with stopped(redis):
            calls = [callers.submit(asked, proxy, session, "And then?") for session in sessions]
            assert until(lambda: proxy.app.gauges().in_flight == len(sessions))
            time.sleep(0.2)
            assert len(upstream.requests) == answered, "all of them wait for memory"
        got = [one.result() for one in calls]
    assert all(map(degraded, got)), "one reply too long, and nobody was answered"
    assert connections(redis) > before
    assert ended_connections(redis) > 0
    redis.ask("CONFIG", "SET", "client-output-buffer-limit", NO_LIMIT)
    assert until(lambda: proxy.client.get("/readyz").json()["degraded"] == [])
    for session in OTHERS:
        assert not degraded(asked(proxy, session, "And now?"))
        assert len(upstream.last.json["messages"]) == 5, "all that was said is shown to the model"
    tried("redis ends the connection of all askers", "answers without memory; all turns held later")
