"""Agents' episodes over each kind of store: one interface, whatever keeps them."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import msgspec
import pytest

from proxy.memory.episodes.episodes import MOST, Episodes, EpisodicMemory, open_episodes
from proxy.memory.stores.codec import Plain
from proxy.memory.stores.drivers import open_store
from proxy.memory.stores.encryption import Encryption
from proxy.memory.stores.store import BlobWrite, Key, Store
from tests.memory.conftest import DRIVERS
from tests.peers.redis_server import RedisServer

pytestmark = pytest.mark.anyio

NOVA = Key("one", "nova")


@pytest.fixture
async def url(request: pytest.FixtureRequest, driver: str) -> str:
    return await DRIVERS[driver](request)


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    store = open_store(url, deadline=1.0, codec=Plain())
    yield store
    await store.aclose()


@pytest.fixture
async def episodes(url: str, store: Store) -> AsyncIterator[Episodes]:
    opened = open_episodes(url, deadline=1.0, codec=Plain(), store=store)
    yield opened
    await opened.aclose()


def thought(content: str, at: float | None = None) -> EpisodicMemory:
    when = datetime.fromtimestamp(time.time() if at is None else at, UTC)
    return EpisodicMemory(timestamp=when, interaction_type="thought", content=content)


async def contents(episodes: Episodes, agent: Key = NOVA, since: float = 0.0, limit: int | None = None):
    return [one.content for one in await episodes.recent(agent, since=since, limit=limit)]


async def test_the_newest_come_first_within_window_and_limit(episodes: Episodes):
    now = time.time()
    for seconds in (300, 100, 200):
        await episodes.add(NOVA, thought(str(seconds), now - seconds), ttl=600)
    assert await contents(episodes) == ["100", "200", "300"]
    assert await contents(episodes, limit=2) == ["100", "200"]
    assert await contents(episodes, since=now - 250) == ["100", "200"]


async def test_an_agent_without_episodes_has_none(episodes: Episodes):
    assert await contents(episodes) == []


async def test_what_has_expired_is_gone(episodes: Episodes):
    await episodes.add(NOVA, thought("long"), ttl=600)
    await episodes.add(NOVA, thought("short"), ttl=0.1)
    await asyncio.sleep(0.2)
    assert await contents(episodes) == ["long"]


async def test_agents_and_tenants_never_meet(episodes: Episodes):
    agents = [NOVA, Key("two", "nova"), Key("one", "nova2"), Key("one", "two/nova")]
    for agent in agents:
        await episodes.add(agent, thought(str(agent)), ttl=600)
    for agent in agents:
        assert await contents(episodes, agent) == [str(agent)]


async def test_one_time_is_given_once(episodes: Episodes):
    at = time.time()
    kept = [await episodes.add(NOVA, thought(str(i), at), ttl=600) for i in range(5)]
    assert len({one.timestamp for one in kept}) == 5
    assert sorted(await contents(episodes)) == ["0", "1", "2", "3", "4"]


async def test_several_writers_lose_nothing(episodes: Episodes):
    await asyncio.gather(*(episodes.add(NOVA, thought(str(i)), ttl=600) for i in range(20)))
    assert sorted(await contents(episodes), key=int) == [str(i) for i in range(20)]


async def test_no_tenants_list_of_sessions_shows_them(episodes: Episodes, store: Store):
    await episodes.add(NOVA, thought("Hm"), ttl=600)
    assert await store.list("one") == []


async def test_the_oldest_go_where_one_blob_holds_them_all():
    store = open_store("memory:", deadline=1.0, codec=Plain())
    episodes = open_episodes("memory:", deadline=1.0, codec=Plain(), store=store)
    for number in range(MOST + 5):
        await episodes.add(NOVA, thought(str(number)), ttl=600)
    kept = await contents(episodes)
    assert (len(kept), kept[0], kept[-1]) == (MOST, str(MOST + 4), "5")
    await store.aclose()


def large(number: int, at: float | None = None) -> EpisodicMemory:
    return thought(f"{number} {'x' * 16_000}", at)


def numbers(told: list[str]) -> list[int]:
    return [int(one.partition(" ")[0]) for one in told]


async def test_many_large_ones_are_all_kept_and_cost_a_call_little(
    episodes: Episodes, store: Store, url: str
):
    now = time.time()
    for number in range(100):
        await episodes.add(NOVA, large(number, now - 100 + number), ttl=600)
    assert numbers(await contents(episodes, limit=10)) == [*range(99, 89, -1)]
    whole = await episodes.recent(NOVA, since=0.0, limit=None, background=True)
    assert numbers([one.content for one in whole]) == [*range(99, -1, -1)]
    some = await episodes.recent(NOVA, since=now - 80.5, limit=60, background=True)
    assert numbers([one.content for one in some]) == [*range(99, 39, -1)]
    if not url.startswith("redis"):
        held = await store.read(Key("one/episodes", "nova"))
        assert held is not None and len(held.blob) < 600_000


async def test_a_late_one_stands_where_it_belongs_and_times_stay_single(episodes: Episodes):
    now = time.time()
    for number in range(60):
        await episodes.add(NOVA, large(number, now + number), ttl=600)
    kept = [await episodes.add(NOVA, large(100 + i, now + 5), ttl=600) for i in range(2)]
    whole = await episodes.recent(NOVA, since=0.0, limit=None, background=True)
    assert len({one.timestamp for one in whole}) == 62
    late = numbers([one.content for one in whole])
    assert {*late[54:57]} == {5, 100, 101} and [*whole].count(kept[0]) == 1


async def test_of_large_ones_the_oldest_and_the_expired_leave_the_store(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("proxy.memory.episodes.episodes.MOST", 50)
    store = open_store("memory:", deadline=1.0, codec=Plain())
    episodes = open_episodes("memory:", deadline=1.0, codec=Plain(), store=store)
    now = time.time()
    for number in range(300):
        await episodes.add(NOVA, large(number, now - 300 + number), ttl=6000 if number == 299 else 600)
    whole = await episodes.recent(NOVA, since=0.0, limit=None, background=True)
    assert numbers([one.content for one in whole]) == [*range(299, 249, -1)]
    assert len(await store.cold(Key("one/episodes", "nova"), limit=1000)) < 100
    monkeypatch.setattr(time, "time", lambda: now + 2000)
    await episodes.add(NOVA, thought("new"), ttl=600)
    assert await store.cold(Key("one/episodes", "nova")) == []
    assert len(await contents(episodes)) == 2
    await store.aclose()


async def test_what_an_older_version_kept_is_read():
    store = open_store("memory:", deadline=1.0, codec=Plain())
    episodes = open_episodes("memory:", deadline=1.0, codec=Plain(), store=store)
    now = time.time()
    kept = [(now - i, now + 60, large(i, now - i).to_json()) for i in range(100)]
    await store.write(Key("one/episodes", "nova"), BlobWrite(msgspec.msgpack.encode(kept), version=0, ttl=60))
    assert numbers(await contents(episodes)) == [*range(100)]
    await episodes.add(NOVA, thought("7000"), ttl=600)
    whole = await episodes.recent(NOVA, since=0.0, limit=None, background=True)
    assert numbers([one.content for one in whole]) == [7000, *range(100)]
    await store.aclose()


async def test_on_redis_they_are_encrypted_where_sessions_are(redis_single: RedisServer):
    codec = Encryption([b"k" * 32])
    place = f"{redis_single.url}?prefix=encrypted:"
    store = open_store("memory:", deadline=1.0, codec=codec)
    episodes = open_episodes(place, deadline=1.0, codec=codec, store=store)
    await episodes.add(NOVA, thought("a secret"), ttl=600)
    keys = [k for k in redis_single.ask("KEYS", "encrypted:agent:one/nova:*") if not k.endswith(b"index")]
    assert len(keys) == 1
    assert b"secret" not in redis_single.ask("GET", keys[0])
    assert await contents(episodes) == ["a secret"]
    await episodes.aclose()
    await store.aclose()
