"""What all counts do, in the process and on a Redis."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable

import pytest

from proxy.memory.stores.counts import Count, Counts, LocalCounts, Permit
from proxy.memory.stores.redis_counts import RedisCounts
from tests.peers.redis_server import RedisServer

pytestmark = pytest.mark.anyio
MINUTE = 60.0


def own(_: pytest.FixtureRequest) -> Counts:
    return LocalCounts()


def redis(request: pytest.FixtureRequest) -> Counts:
    server: RedisServer = request.getfixturevalue("redis_single")
    return RedisCounts(f"{server.url}?prefix={uuid.uuid4().hex}:", deadline=5.0)


def cluster(request: pytest.FixtureRequest) -> Counts:
    first: RedisServer = request.getfixturevalue("redis_nodes")[0]
    url = f"redis+cluster://127.0.0.1:{first.port}?prefix={uuid.uuid4().hex}:"
    return RedisCounts(url, deadline=5.0)


SHARED: dict[str, Callable[[pytest.FixtureRequest], Counts]] = {"redis": redis, "redis+cluster": cluster}
DRIVERS = {"own": own, **SHARED}


@pytest.fixture(params=DRIVERS)
async def counts(request: pytest.FixtureRequest) -> AsyncIterator[Counts]:
    opened = DRIVERS[request.param](request)
    yield opened
    await opened.aclose()


async def add(counts: Counts, key: str, amount: int, *, ttl: float) -> Count:
    found = await counts.count(key, {"number": amount}, ttl=ttl)
    assert found
    return found["number"]


async def test_a_number_is_counted_up_by_its_key(counts: Counts) -> None:
    asked = (("a", 1), ("a", 4), ("b", 2))
    found = [(await add(counts, key, amount, ttl=MINUTE)).value for key, amount in asked]
    assert found == [1, 5, 2]


async def test_to_add_nothing_is_to_look(counts: Counts) -> None:
    assert (await add(counts, "a", 0, ttl=MINUTE)).value == 0
    await add(counts, "a", 3, ttl=MINUTE)
    assert (await add(counts, "a", 0, ttl=MINUTE)).value == 3


async def test_it_is_nothing_again_so_long_after_it_was_first_added_to(counts: Counts) -> None:
    first = await add(counts, "a", 2, ttl=0.4)
    assert first.expires_in == pytest.approx(0.4, abs=0.01)
    await asyncio.sleep(0.2)
    again = await add(counts, "a", 1, ttl=MINUTE)
    assert again.value == 1 or again.expires_in < first.expires_in  # a busy machine may have slept for longer
    await add(counts, "b", 2, ttl=0.2)
    await asyncio.sleep(0.5)
    assert (await add(counts, "b", 1, ttl=MINUTE)).value == 1


async def test_those_who_come_at_once_are_all_counted(counts: Counts) -> None:
    found = await asyncio.gather(*(add(counts, "a", 1, ttl=MINUTE) for _ in range(50)))
    assert sorted(one.value for one in found) == list(range(1, 51))
    assert all(0 < one.expires_in <= MINUTE for one in found)


@pytest.fixture(params=SHARED)
async def permits(request: pytest.FixtureRequest) -> AsyncIterator[Counts]:
    """Those that servers share: one process counts its own answers without any."""
    opened = SHARED[request.param](request)
    yield opened
    await opened.aclose()


async def take(counts: Counts, key: str, name: str, *, limit: int | None, ttl: float = MINUTE) -> bool:
    return await counts.count(key, {}, Permit(name, ttl, limit), ttl=MINUTE) is not None


async def test_no_more_permits_are_taken_than_the_limit_says(permits: Counts) -> None:
    taken = await asyncio.gather(*(take(permits, "a", f"l{each}", limit=3) for each in range(9)))
    assert sum(taken) == 3
    assert await take(permits, "b", "l0", limit=1)


async def test_a_permit_that_is_given_back_is_another_s(permits: Counts) -> None:
    assert await take(permits, "a", "one", limit=1)
    assert not await take(permits, "a", "two", limit=1)
    await permits.count("a", {}, Permit("one", MINUTE, 1).ended, ttl=MINUTE)
    assert await take(permits, "a", "two", limit=1)


async def test_a_permit_is_renewed_by_its_holder_and_else_expires(permits: Counts) -> None:
    assert await take(permits, "a", "one", limit=1, ttl=0.3)
    assert await take(permits, "a", "one", limit=1, ttl=0.3)
    assert await take(permits, "a", "under way", limit=None)
    assert not await take(permits, "a", "two", limit=2)
    async with asyncio.timeout(5):
        while not await take(permits, "a", "two", limit=2):  # noqa: ASYNC110 - it expires when it does
            await asyncio.sleep(0.02)
    assert not await take(permits, "a", "one", limit=2)


async def test_with_a_permit_all_is_counted_and_without_one_nothing(permits: Counts) -> None:
    amounts = {"requests": 2, "tokens": 0}
    one, two = Permit("one", MINUTE, 1), Permit("two", MINUTE, 1)
    first = await permits.count("a", amounts, one, ttl=MINUTE)
    assert first and {name: count.value for name, count in first.items()} == amounts
    assert await permits.count("a", amounts, two, ttl=MINUTE) is None
    after = await permits.count("a", {"tokens": 7}, one.ended, ttl=MINUTE)
    assert after and after["tokens"].value == 7
    second = await permits.count("a", amounts, two, ttl=MINUTE)
    assert second and {name: count.value for name, count in second.items()} == {"requests": 4, "tokens": 7}


async def test_each_number_has_a_window_of_its_own(counts: Counts) -> None:
    await counts.count("a", {"one": 1}, ttl=0.2)
    await counts.count("a", {"two": 1}, ttl=MINUTE)
    await asyncio.sleep(0.3)
    found = await counts.count("a", {"one": 1, "two": 1}, ttl=MINUTE)
    assert found and (found["one"].value, found["two"].value) == (1, 2)


async def test_a_clock_that_only_rises_tells_when_it_is_over() -> None:
    now = 100.0
    counted = LocalCounts(lambda: now)
    await add(counted, "a", 2, ttl=MINUTE)
    now = 159.9
    assert await add(counted, "a", 1, ttl=MINUTE) == (3, pytest.approx(0.1))
    now = 160.0
    assert await add(counted, "a", 1, ttl=MINUTE) == (1, MINUTE)
