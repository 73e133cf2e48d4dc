"""Turns that are kept for the page on a Redis: how many, how large, for how long, and what erasing leaves."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import redis

from proxy.memory.stores import redis_turns
from proxy.memory.stores.redis_turns import RedisTurns
from proxy.memory.stores.store import KeptTurn
from tests.peers import redis_server

DAY = 86_400.0
ANN, BOB, CALL = "a" * 32, "b" * 32, "c" * 32
Work = Callable[[RedisTurns], Awaitable[Any]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with redis_server.single(tmp_path_factory.mktemp("redis")) as single:
        yield single.url


@pytest.fixture
def run(server: str) -> Iterator[Callable[[Work], Any]]:
    async def with_turns(work: Work) -> Any:
        turns = RedisTurns(server)
        try:
            return await work(turns)
        finally:
            await turns.aclose()

    yield lambda work: asyncio.run(with_turns(work))
    with redis.Redis.from_url(server) as store:
        store.flushall()


def turn(id_: str, *names: str, age: float = 0.0, content: bytes = b"words") -> KeptTurn:
    return KeptTurn(id=id_, age=age, names=names, report=f"report of {id_}".encode(), content=content)


def size(server: str) -> tuple[int, int]:
    """Returns the size that is stored beside the turns, and their real size."""
    with redis.Redis.from_url(server) as store:
        (key,) = store.keys("*:turns")
        parts = store.hgetall(key)
    return int(parts.pop(b"size")), sum(len(part) for field, part in parts.items() if field[-6:] != b":names")


def test_the_newest_are_first_and_the_oldest_go(run: Callable[[Work], Any], server: str) -> None:
    async def work(turns: RedisTurns) -> Any:
        await turns.add("t", [turn("second", age=20), turn("third", age=10), turn("first", age=30)], keep=3)
        before = await turns.reports("t")
        await turns.add("t", [turn("fourth")], keep=3)
        return [*before], await turns.reports("t"), await turns.reports("other")

    before, after, others = run(work)
    assert before == ["third", "second", "first"]
    assert after == {id_: f"report of {id_}".encode() for id_ in ("fourth", "third", "second")}
    assert others == {}
    assert len(set(size(server))) == 1


def test_all_of_a_tenant_have_a_largest_size(
    run: Callable[[Work], Any], server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_turns, "_LARGEST_TENANT", 1_000)

    async def work(turns: RedisTurns) -> Any:
        for number in range(5):
            await turns.add("t", [turn(f"turn-{number}", content=b"x" * 400)], keep=50)
        return [*await turns.reports("t")]

    assert run(work) == ["turn-4", "turn-3"]
    counted, there = size(server)
    assert counted == there <= 1_000


def test_a_turn_that_is_older_than_a_day_goes(run: Callable[[Work], Any], server: str) -> None:
    async def work(turns: RedisTurns) -> Any:
        await turns.add("t", [turn("old", age=DAY + 5), turn("recent", age=DAY - 600)], keep=50)
        return [*await turns.reports("t")]

    assert run(work) == ["recent"]
    assert len(set(size(server))) == 1


def test_a_turn_that_is_added_twice_is_there_once(run: Callable[[Work], Any], server: str) -> None:
    """A reply may be lost on its way, and the batch is sent again."""

    async def work(turns: RedisTurns) -> Any:
        for content in (b"x" * 10, b"y" * 20):
            await turns.add("t", [turn("one", content=content)], keep=50)
        return [*await turns.reports("t")], await turns.contents("t", ["one", "none"])

    assert run(work) == (["one"], [b"y" * 20, b""])
    assert len(set(size(server))) == 1


def test_what_is_erased_goes_with_all_that_was_under_way(run: Callable[[Work], Any], server: str) -> None:
    async def work(turns: RedisTurns) -> Any:
        await turns.add("t", [turn("hers", CALL, ANN, age=9), turn("his", CALL, BOB, age=8)], keep=50)
        count = await turns.erase("t", [ANN, "d" * 32])
        late = [
            turn("late", BOB, ANN, age=2.0),
            turn("hers late", ANN, BOB, age=2.0),
            turn("his late", BOB, age=2.0),
        ]
        await turns.add("t", late, keep=50)
        await asyncio.sleep(0.01)
        await turns.add("t", [turn("hers anew", ANN)], keep=50)
        return count, [*await turns.reports("t")]

    count, left = run(work)
    assert count == 1
    assert left == ["hers anew", "his late", "his"]
    assert len(set(size(server))) == 1
    with redis.Redis.from_url(server) as store:
        keys = store.keys("*")
        assert len(keys) == 3
        assert all(0 < store.ttl(key) <= DAY for key in keys)


def test_an_erasure_is_forgotten_once_no_turn_can_come_late(run: Callable[[Work], Any], server: str) -> None:
    run(lambda turns: turns.erase("t", [ANN]))
    with redis.Redis.from_url(server) as store:
        (erased,) = store.keys("*:erased")
        store.zadd(erased, {ANN: store.zscore(erased, ANN) - DAY * 1000})
        run(lambda turns: turns.erase("t", [BOB]))
        assert store.zrange(erased, 0, -1) == [BOB.encode()]


def test_what_was_said_goes_and_the_turn_stays(run: Callable[[Work], Any], server: str) -> None:
    async def work(turns: RedisTurns) -> Any:
        await turns.add("t", [turn("hers", CALL, ANN), turn("his", BOB)], keep=50)
        for _ in range(2):
            await turns.remove_contents("t", [CALL])
        return {*await turns.reports("t")}, await turns.contents("t", ["hers", "his"])

    assert run(work) == ({"hers", "his"}, [b"", b"words"])
    assert len(set(size(server))) == 1
