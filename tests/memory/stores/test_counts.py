"""What all counts do, in the process and on a Redis."""

import asyncio
import math
import uuid
from collections.abc import AsyncIterator, Callable

import pytest

from proxy.memory.stores.counts import Counts, LocalCounts
from proxy.memory.stores.redis import RedisCounts
from tests.peers.redis_server import RedisServer

pytestmark = pytest.mark.anyio
MINUTE = 60.0


def own(_: pytest.FixtureRequest) -> Counts:
    return LocalCounts()


def redis(request: pytest.FixtureRequest) -> Counts:
    server: RedisServer = request.getfixturevalue("redis_single")
    return RedisCounts(f"{server.url}?prefix={uuid.uuid4().hex}:", deadline=5.0)


DRIVERS: dict[str, Callable[[pytest.FixtureRequest], Counts]] = {"own": own, "redis": redis}


@pytest.fixture(params=DRIVERS)
async def counts(request: pytest.FixtureRequest) -> AsyncIterator[Counts]:
    opened = DRIVERS[request.param](request)
    yield opened
    await opened.aclose()


async def test_a_number_is_counted_up_by_its_key(counts: Counts) -> None:
    asked = (("a", 1), ("a", 4), ("b", 2))
    found = [(await counts.add(key, amount, ttl=MINUTE)).value for key, amount in asked]
    assert found == [1, 5, 2]


async def test_to_add_nothing_is_to_look(counts: Counts) -> None:
    assert (await counts.add("a", 0, ttl=MINUTE)).value == 0
    await counts.add("a", 3, ttl=MINUTE)
    assert (await counts.add("a", 0, ttl=MINUTE)).value == 3


async def test_it_is_nothing_again_so_long_after_it_was_first_added_to(counts: Counts) -> None:
    first = await counts.add("a", 2, ttl=0.4)
    assert first.expires_in == pytest.approx(0.4, abs=0.01)
    await asyncio.sleep(0.2)
    again = await counts.add("a", 1, ttl=MINUTE)
    assert again.value == 1 or again.expires_in < first.expires_in  # a busy machine may have slept for longer
    await counts.add("b", 2, ttl=0.2)
    await asyncio.sleep(0.5)
    assert (await counts.add("b", 1, ttl=MINUTE)).value == 1


async def test_those_who_come_at_once_are_all_counted(counts: Counts) -> None:
    found = await asyncio.gather(*(counts.add("a", 1, ttl=MINUTE) for _ in range(50)))
    assert sorted(one.value for one in found) == list(range(1, 51))
    assert all(0 < one.expires_in <= MINUTE for one in found)


async def test_no_more_leases_are_taken_than_the_limit_says(counts: Counts) -> None:
    taken = await asyncio.gather(*(counts.take("a", f"l{each}", limit=3, ttl=MINUTE) for each in range(9)))
    assert sum(taken) == 3
    assert await counts.take("b", "l0", limit=1, ttl=MINUTE)


async def test_a_lease_that_is_given_back_is_another_s(counts: Counts) -> None:
    assert await counts.take("a", "one", limit=1, ttl=MINUTE)
    assert not await counts.take("a", "two", limit=1, ttl=MINUTE)
    await counts.free("a", "one")
    assert await counts.take("a", "two", limit=1, ttl=MINUTE)


async def test_a_lease_is_renewed_by_its_holder_and_else_expires(counts: Counts) -> None:
    assert await counts.take("a", "one", limit=1, ttl=0.3)
    assert await counts.take("a", "one", limit=1, ttl=0.3)
    assert await counts.take("a", "under way", limit=math.inf, ttl=MINUTE)
    assert not await counts.take("a", "two", limit=2, ttl=MINUTE)
    async with asyncio.timeout(5):
        while not await counts.take("a", "two", limit=2, ttl=MINUTE):  # noqa: ASYNC110 - it expires when it does
            await asyncio.sleep(0.02)
    assert not await counts.take("a", "one", limit=2, ttl=MINUTE)


async def test_a_clock_that_only_rises_tells_when_it_is_over() -> None:
    now = 100.0
    counted = LocalCounts(lambda: now)
    await counted.add("a", 2, ttl=MINUTE)
    now = 159.9
    assert await counted.add("a", 1, ttl=MINUTE) == (3, pytest.approx(0.1))
    now = 160.0
    assert await counted.add("a", 1, ttl=MINUTE) == (1, MINUTE)
