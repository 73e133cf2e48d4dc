"""Counts for limits, on a Redis that is all others' as well."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from proxy.memory.redis.counts import Counts
from tests.memory.redis_server import RedisServer, single

pytestmark = pytest.mark.anyio
MINUTE = 60
HALF_AN_HOUR = 1800


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with single(tmp_path, "maxmemory-policy volatile-ttl", "maxmemory-samples 10") as found:
        yield found


@pytest.fixture
async def counts(server: RedisServer) -> AsyncIterator[Counts]:
    found = Counts(server.url, deadline=5.0)
    yield found
    await found.aclose()


async def test_what_was_counted_counts_until_the_window_is_over(counts: Counts) -> None:
    assert await counts.incr("key", MINUTE) == 1
    assert await counts.incr("key", MINUTE, amount=4) == 5
    assert await counts.get("key") == 5
    await counts.incr("short", 1, amount=3)
    await asyncio.sleep(1.1)
    assert await counts.get("short") == 0
    assert await counts.incr("short", 1) == 1
    assert await counts.get("key") == 5
    assert await counts.get("other") == 0
    await counts.clear("key")
    assert await counts.get("key") == 0


async def test_a_redis_that_makes_room_forgets_sessions_before_limits(
    counts: Counts, server: RedisServer
) -> None:
    """It takes what would expire first, and a minute is shorter than all that is kept of a session."""
    await counts.incr("key", MINUTE, amount=3)
    server.ask("CONFIG", "SET", "maxmemory", int(server.ask("INFO", "memory")["used_memory"]) + 300_000)
    for number in range(400):
        server.ask("SET", f"session-{number}", b"x" * 3000, "EX", HALF_AN_HOUR)
    assert int(server.ask("INFO", "stats")["evicted_keys"]) > 0
    assert await counts.get("key") == 3
