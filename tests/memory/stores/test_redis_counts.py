"""Counts for limits, on a Redis that is all others' as well."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from unittest.mock import ANY

import pytest

from proxy.memory.stores.redis import RedisCounts
from tests.peers.redis_server import RedisServer, single

pytestmark = pytest.mark.anyio
MINUTE = 60.0
HALF_AN_HOUR = 1800


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with single(tmp_path, "maxmemory-policy volatile-ttl", "maxmemory-samples 10") as found:
        yield found


@pytest.fixture
async def counts(server: RedisServer) -> AsyncIterator[RedisCounts]:
    found = RedisCounts(server.url, deadline=5.0)
    yield found
    await found.aclose()


async def test_a_redis_that_makes_room_forgets_sessions_before_limits(
    counts: RedisCounts, server: RedisServer
) -> None:
    """It takes what would expire first, and a minute is shorter than all that is kept of a session."""
    await counts.count("key", {"requests": 3}, ttl=MINUTE)
    server.ask("CONFIG", "SET", "maxmemory", int(server.ask("INFO", "memory")["used_memory"]) + 300_000)
    for number in range(400):
        server.ask("SET", f"session-{number}", b"x" * 3000, "EX", HALF_AN_HOUR)
    assert int(server.ask("INFO", "stats")["evicted_keys"]) > 0
    assert await counts.count("key", {"requests": 0}, ttl=MINUTE) == {"requests": (3, ANY)}


async def test_a_clock_that_is_set_back_makes_no_window_longer(
    counts: RedisCounts, server: RedisServer
) -> None:
    await counts.count("key", {"requests": 3}, ttl=MINUTE)
    (name,) = server.ask("KEYS", "*key*")
    server.ask("HSET", name, "requests:until", int(server.ask("TIME")[0]) * 1000 + 2 * HALF_AN_HOUR * 1000)
    assert await counts.count("key", {"requests": 1}, ttl=MINUTE) == {"requests": (1, MINUTE)}
