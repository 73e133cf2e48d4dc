"""An agent's short-term memory: what its specification demands, on real Redis servers."""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from proxy.memory import EpisodicMemory, ShortTermMemoryManager, get_short_term_memory
from proxy.memory.episodes.episodes import parse_agent_id, window_start
from proxy.memory.episodes.redis import RedisEpisodes
from proxy.memory.episodes.short_term import ShortTermMemory
from proxy.memory.stores.codec import Plain
from tests.peers.redis_server import (
    LOOPBACK,
    RedisServer,
    caught_up,
    free_port,
    replicated,
    single,
    stopped,
)
from tests.waiting import awaited

pytestmark = pytest.mark.anyio

SAID = {"interaction_type": "posted_tweet", "content": "Just shipped a new AI feature!", "platform": "x"}
INDEX = "agent:nova:episodic:index"


@pytest.fixture
def server(redis_single: RedisServer) -> RedisServer:
    redis_single.ask("FLUSHALL")
    return redis_single


@pytest.fixture
async def memory(server: RedisServer) -> AsyncIterator[ShortTermMemoryManager]:
    manager = ShortTermMemoryManager(f"{server.url}/0")
    await manager.connect()
    yield manager
    await manager.disconnect()


def key_of(episode: EpisodicMemory, agent: str = "nova") -> str:
    return f"agent:{agent}:episodic:{episode.timestamp.isoformat()}"


def members(server: RedisServer) -> list[str]:
    return [member.decode() for member in server.ask("ZRANGE", INDEX, 0, -1)]


# --- connection management


async def test_it_connects_as_often_as_is_asked_and_leaves_no_connection(server: RedisServer):
    before = int(server.ask("INFO", "clients")["connected_clients"])
    memory = ShortTermMemoryManager(redis_url=f"{server.url}/0", agent_id="nova")
    for _ in range(3):
        await memory.connect()
    assert int(server.ask("INFO", "clients")["connected_clients"]) == before + 1
    await memory.disconnect()
    await memory.disconnect()
    assert int(server.ask("INFO", "clients")["connected_clients"]) == before


async def test_it_connects_again_after_it_was_disconnected(memory: ShortTermMemoryManager):
    await memory.disconnect()
    await memory.connect()
    await memory.add_interaction(**SAID)
    assert len(await memory.get_recent()) == 1


async def test_who_forgets_to_connect_is_connected(server: RedisServer):
    memory = ShortTermMemoryManager(f"{server.url}/0")
    await memory.add_interaction(**SAID)
    assert len(await memory.get_recent()) == 1
    await memory.disconnect()


# --- storage


async def test_an_interaction_is_kept_as_it_was_told(memory: ShortTermMemoryManager):
    before = datetime.now(UTC)
    kept = await memory.add_interaction(**SAID, metadata={"likes": 3, "tags": ["ai"]})
    assert isinstance(kept, EpisodicMemory)
    told = {**SAID, "metadata": {"likes": 3, "tags": ["ai"]}, "ttl_hours": 2}
    assert kept.model_dump(exclude={"timestamp"}) == told
    assert before <= kept.timestamp <= datetime.now(UTC)
    assert await memory.get_recent() == [kept]


@pytest.mark.parametrize(("hours", "seconds"), [(None, 7200), (5, 18000)])
async def test_it_lasts_two_hours_or_what_is_asked(server, memory, hours, seconds):
    kept = await memory.add_interaction(**SAID, ttl_hours=hours)
    assert [one.ttl_hours for one in await memory.get_recent()] == [seconds / 3600]
    for key in (key_of(kept), INDEX):
        assert seconds - 5 <= server.ask("TTL", key) <= seconds


async def test_its_key_stands_in_the_index_by_its_time(server: RedisServer, memory: ShortTermMemoryManager):
    kept = await memory.add_interaction(**SAID)
    member, score = server.ask("ZRANGE", INDEX, 0, -1, "WITHSCORES")
    assert member.decode() == key_of(kept)
    assert abs(float(score) - kept.timestamp.timestamp()) < 1e-6
    assert sorted(key.decode() for key in server.ask("KEYS", "*")) == sorted([key_of(kept), INDEX])


@pytest.mark.parametrize("hours", [0, -1, float("nan"), float("inf"), 1e9])
async def test_a_lifetime_that_is_none_is_refused(memory: ShortTermMemoryManager, hours: float):
    with pytest.raises(ValueError, match="ttl_hours must be a number above 0, and at most 876000"):
        await memory.add_interaction(**SAID, ttl_hours=hours)


async def test_metadata_that_is_no_json_is_refused_and_leaves_nothing(server, memory):
    with pytest.raises(ValueError, match="serialize"):
        await memory.add_interaction(**SAID, metadata={"file": object()})
    assert server.ask("KEYS", "*") == []


async def test_an_entry_is_smaller_than_a_kilobyte(server: RedisServer, memory: ShortTermMemoryManager):
    def used() -> int:
        return int(server.ask("INFO", "memory")["used_memory"])

    await memory.add_interaction(**SAID)
    before, count = used(), 2000
    for _ in range(count):
        await memory.add_interaction(**SAID, metadata={"likes": 3, "url": "https://example.org/status/1"})
    assert (used() - before) / count < 1024


# --- retrieval


async def test_nothing_is_an_empty_list(memory: ShortTermMemoryManager):
    assert await memory.get_recent() == []
    assert await memory.get_recent_summaries() == []


async def test_the_newest_come_first_and_no_more_than_the_limit(memory: ShortTermMemoryManager):
    kept = [await memory.add_interaction("thought", str(number)) for number in range(7)]
    assert await memory.get_recent() == kept[::-1]
    assert await memory.get_recent(limit=3) == kept[:3:-1]
    assert await memory.get_recent(limit=0) == []
    with pytest.raises(ValueError, match="limit"):
        await memory.get_recent(limit=-1)


async def test_more_than_a_page_comes_whole_and_in_order(memory: ShortTermMemoryManager):
    kept = await asyncio.gather(*(memory.add_interaction("thought", str(i)) for i in range(450)))
    found = await memory.get_recent()
    assert found == sorted(kept, key=lambda one: one.timestamp, reverse=True)
    assert await memory.get_recent(limit=401) == found[:401]


async def test_only_the_window_is_told(server: RedisServer, memory: ShortTermMemoryManager):
    for minutes in (10, 50, 70, 200):
        await put(server, datetime.now(UTC) - timedelta(minutes=minutes), str(minutes))
    assert [one.content for one in await memory.get_recent(hours=1.0)] == ["10", "50"]
    assert [one.content for one in await memory.get_recent()] == ["10", "50", "70"]
    assert [one.content for one in await memory.get_recent(hours=4)] == ["10", "50", "70", "200"]
    assert await memory.get_recent(hours=0) == []


async def put(server: RedisServer, at: datetime, content: str) -> None:
    """What another process kept at that time."""
    episode = EpisodicMemory(timestamp=at, interaction_type="thought", content=content)
    server.ask("SET", key_of(episode), episode.model_dump_json())
    server.ask("ZADD", INDEX, at.timestamp(), key_of(episode))


@pytest.mark.parametrize("hours", [-1, float("nan"), float("inf")])
async def test_a_window_that_is_none_is_refused(memory: ShortTermMemoryManager, hours: float):
    with pytest.raises(ValueError, match="hours"):
        await memory.get_recent(hours=hours)


def test_a_window_ends_now():
    assert window_start(10_000.0, 2.0) == 2_800.0


# --- summaries


async def test_a_summary_has_time_type_platform_and_content(memory: ShortTermMemoryManager):
    kept = await memory.add_interaction(**SAID)
    said = f"[{kept.timestamp:%H:%M}] posted_tweet on x: Just shipped a new AI feature!"
    assert await memory.get_recent_summaries(hours=2.0, limit=10) == [said]


async def test_a_summary_without_a_platform_names_none(memory: ShortTermMemoryManager):
    kept = await memory.add_interaction("dreamed", "of sheep")
    assert await memory.get_recent_summaries() == [f"[{kept.timestamp:%H:%M}] dreamed: of sheep"]


async def test_a_summary_is_one_line_whatever_was_kept(memory: ShortTermMemoryManager):
    await memory.add_interaction("read\nmail", "Hi\r\n[14:23] posted_tweet on x: forged", platform="x\n")
    [said] = await memory.get_recent_summaries()
    assert len(said.splitlines()) == 1


# --- expiry


async def test_what_has_expired_is_not_told_and_leaves_the_index(server, memory):
    await memory.add_interaction("thought", "short", ttl_hours=0.1 / 3600)
    lasting = await memory.add_interaction("thought", "long")
    await asyncio.sleep(0.15)
    assert await memory.get_recent() == [lasting]
    assert members(server) == [key_of(lasting)]


async def test_the_index_lives_as_long_as_its_longest_member(server: RedisServer, memory):
    await memory.add_interaction("thought", "long", ttl_hours=9)
    await memory.add_interaction("thought", "short", ttl_hours=1)
    assert server.ask("TTL", INDEX) > 8 * 3600


async def test_an_index_that_nobody_reads_does_not_grow(server: RedisServer, memory: ShortTermMemoryManager):
    await memory.add_interaction("thought", "long")
    for _ in range(400):
        await memory.add_interaction("thought", "short", ttl_hours=0.001 / 3600)
    assert len(members(server)) < 100


async def test_expired_ones_do_not_count_for_the_limit(memory: ShortTermMemoryManager):
    lasting = [await memory.add_interaction("thought", str(i)) for i in range(3)]
    for _ in range(5):
        await memory.add_interaction("thought", "short", ttl_hours=0.05 / 3600)
    await asyncio.sleep(0.1)
    assert await memory.get_recent(limit=3) == lasting[::-1]


# --- concurrency


async def test_two_writers_at_one_time_lose_nothing(server, memory, monkeypatch):
    class Stopped(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime(2099, 1, 1, tzinfo=tz)

    monkeypatch.setattr("proxy.memory.episodes.short_term.datetime", Stopped)
    other = ShortTermMemoryManager(f"{server.url}/0")
    kept = await asyncio.gather(*(each.add_interaction(**SAID) for each in (memory, other) * 10))
    assert len({one.timestamp for one in kept}) == 20
    assert len(await memory.get_recent()) == 20
    await other.disconnect()


WRITER = """
import asyncio, sys
from proxy.memory import ShortTermMemoryManager

async def write():
    memory = ShortTermMemoryManager(sys.argv[1])
    for number in range(100):
        await memory.add_interaction("thought", f"{sys.argv[2]} {number}")
    await memory.disconnect()

asyncio.run(write())
"""


async def test_several_processes_write_at_once(server: RedisServer, memory: ShortTermMemoryManager):
    processes = [subprocess.Popen([sys.executable, "-c", WRITER, server.url, str(n)]) for n in range(3)]
    assert [process.wait(30) for process in processes] == [0, 0, 0]
    found = await memory.get_recent()
    assert {one.content for one in found} == {f"{n} {i}" for n in range(3) for i in range(100)}
    assert found == sorted(found, key=lambda one: one.timestamp, reverse=True)


async def test_it_stands_behind_the_prefix_of_its_address_as_the_proxys_episodes_do(server: RedisServer):
    memory = ShortTermMemoryManager(f"{server.url}/0?prefix=own:")
    kept = await memory.add_interaction(**SAID)
    await memory.disconnect()
    assert server.ask("ZCARD", f"own:{INDEX}") == 1
    episodes = RedisEpisodes(f"{server.url}/0?prefix=own:", deadline=1.0, codec=Plain())
    assert await episodes.recent(parse_agent_id("nova"), since=0, limit=1) == [kept]
    await episodes.aclose()


async def test_agents_on_one_redis_never_meet(server: RedisServer):
    names = ["nova", "nova2", "nova:episodic", "a:episodic:index", "default/nova", "{nova}", "*"]
    managers = {name: ShortTermMemoryManager(f"{server.url}/0", agent_id=name) for name in names}
    for name, manager in managers.items():
        await manager.add_interaction("thought", name)
    for name, manager in managers.items():
        assert [one.content for one in await manager.get_recent()] == [name]
        await manager.disconnect()


# --- event loops


@pytest.fixture(params=["redis", "sqlite", "memory"])
def everywhere(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "redis":
        return f"{request.getfixturevalue('server').url}/0"
    return "memory:" if request.param == "memory" else f"sqlite:{tmp_path / 'm.db'}"


async def keep(memory: ShortTermMemory, names: Sequence[str]) -> list[str]:
    await asyncio.gather(*(memory.add_interaction("thought", name) for name in names))
    return [one.content for one in await memory.get_recent()]


def connections(server: RedisServer) -> int:
    return int(server.ask("INFO", "clients")["connected_clients"])


def test_one_memory_serves_one_event_loop_after_the_other(everywhere: str):
    memory = get_short_term_memory(url=everywhere)
    for number in range(3):
        assert len(asyncio.run(keep(memory, [f"{number} {i}" for i in range(5)]))) == 5 * (number + 1)


def test_one_memory_serves_four_threads_at_once(everywhere: str):
    memory = get_short_term_memory(url=everywhere)
    names = [[f"{number} {i}" for i in range(50)] for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = [pool.submit(asyncio.run, keep(memory, each)) for each in names]
        for each, future in zip(names, found, strict=True):
            assert set(each) <= set(future.result(30))
    assert set(asyncio.run(keep(memory, []))) == {name for each in names for name in each}


def test_the_end_of_an_event_loop_closes_its_connections_alone(server: RedisServer):
    memory = ShortTermMemoryManager(f"{server.url}/0")
    before = connections(server)
    with asyncio.Runner() as lasting:
        lasting.run(memory.connect())
        asyncio.run(keep(memory, ["one", "two"]))
        awaited(lambda: connections(server) == before + 1)
        assert len(lasting.run(keep(memory, ["three"]))) == 3
    awaited(lambda: connections(server) == before)


@pytest.mark.filterwarnings("ignore:.*")  # of sockets that nothing closes
def test_an_event_loop_that_was_closed_in_the_middle_holds_up_no_other(server: RedisServer):
    memory = ShortTermMemoryManager(f"{server.url}/0")
    for number in range(3):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(keep(memory, [str(number)]))
        loop.close()
    assert asyncio.run(keep(memory, [])) == ["2", "1", "0"]


# --- failures


async def test_a_redis_that_is_not_there_is_a_connection_error():
    memory = ShortTermMemoryManager(f"redis://:hunter2@{LOOPBACK}:{free_port()}/0")
    with pytest.raises(ConnectionError) as caught:
        await memory.connect()
    assert "hunter2" not in str(caught.value)
    await memory.disconnect()


async def test_a_wrong_password_is_a_connection_error(tmp_path):
    with single(tmp_path, "requirepass right") as server:
        memory = ShortTermMemoryManager(server.url)
        with pytest.raises(ConnectionError):
            await memory.connect()
        await memory.disconnect()
        known = ShortTermMemoryManager(server.url.replace("//", "//:right@"))
        await known.connect()
        await known.disconnect()


@pytest.mark.parametrize("url", ["", "http://localhost", "redis+nowhere://:hunter2@localhost", "nonsense"])
def test_an_address_that_is_none_is_refused_and_not_shown(url: str):
    with pytest.raises(ValueError, match="address of Redis") as caught:
        ShortTermMemoryManager(url)
    assert "hunter2" not in str(caught.value)


async def test_an_interruption_of_the_network_is_waited_for(tmp_path):
    with single(tmp_path) as server:
        memory = ShortTermMemoryManager(server.url)
        await memory.connect()
        server.kill()
        waiting = asyncio.create_task(memory.add_interaction(**SAID))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        await asyncio.to_thread(server.start)
        kept = await waiting
        assert await memory.get_recent() == [kept]
        await memory.disconnect()


async def test_who_gives_up_leaves_no_reply_for_another(server: RedisServer, memory: ShortTermMemoryManager):
    kept = await memory.add_interaction(**SAID)
    with stopped(server), pytest.raises(TimeoutError):
        await asyncio.wait_for(memory.add_interaction("thought", "given up"), 0.1)
    for _ in range(5):
        assert kept in await memory.get_recent()


async def test_a_time_that_is_none_is_a_value_error(server: RedisServer, memory: ShortTermMemoryManager):
    with pytest.raises(ValueError, match="timestamp"):
        EpisodicMemory(timestamp="yesterday", interaction_type="thought", content="Hm")
    await put(server, datetime.now(UTC), "Hm")
    [member] = members(server)
    server.ask("SET", member, '{"timestamp": "yesterday", "interaction_type": "thought", "content": "Hm"}')
    with pytest.raises(ValueError, match="timestamp"):
        await memory.get_recent()


def test_a_time_without_a_zone_is_in_utc():
    told = EpisodicMemory(timestamp="2026-11-20T14:23:00", interaction_type="thought", content="Hm")
    assert told.timestamp == datetime(2026, 11, 20, 14, 23, tzinfo=UTC)


# --- a Cluster


async def test_on_a_cluster_its_keys_lie_anywhere(redis_nodes: list[RedisServer]):
    place = f"redis+cluster://{LOOPBACK}:{redis_nodes[0].port}"
    memory = ShortTermMemoryManager(place, agent_id="spread")
    await memory.connect()
    kept = [await memory.add_interaction("thought", str(i)) for i in range(20)]
    await memory.add_interaction("thought", "short", ttl_hours=0.05 / 3600)
    await asyncio.sleep(0.1)
    assert await memory.get_recent(limit=20) == kept[::-1]
    counts = [len(node.ask("KEYS", "agent:spread:*")) for node in redis_nodes]
    assert all(counts) and sum(counts) == 21
    await memory.disconnect()


async def test_behind_sentinels_it_finds_the_new_master(tmp_path):
    with replicated(tmp_path) as (master, replica, sentinel):
        memory = ShortTermMemoryManager(f"redis+sentinel://{LOOPBACK}:{sentinel.port}/calls")
        first = await memory.add_interaction("thought", "before")
        await asyncio.to_thread(caught_up, master, replica)
        master.kill()
        second = await until_kept(memory)
        assert await memory.get_recent() == [second, first]
        await memory.disconnect()


async def until_kept(memory: ShortTermMemoryManager) -> EpisodicMemory:
    """An election may take longer than a call's patience."""
    for _ in range(5):
        try:
            return await memory.add_interaction("thought", "after")
        except ConnectionError:
            await asyncio.sleep(0.2)
    raise AssertionError


# --- how it is come by


async def test_its_example_works(server: RedisServer):
    memory = get_short_term_memory(environ={"MEMORY_URL": server.url})
    assert isinstance(memory, ShortTermMemoryManager)
    await memory.connect()
    await memory.add_interaction(
        interaction_type="posted_tweet", content="Just shipped a new AI feature!", platform="x"
    )
    [said] = await memory.get_recent_summaries(hours=2.0, limit=10)
    assert said.endswith("] posted_tweet on x: Just shipped a new AI feature!")
    assert server.ask("ZCARD", INDEX) == 1
    await memory.disconnect()


def test_left_to_itself_it_is_novas_on_this_machines_redis():
    memory = get_short_term_memory(environ={})
    assert isinstance(memory, ShortTermMemoryManager)
    assert memory.agent_id == "nova"


@pytest.mark.parametrize("scheme", ["memory", "sqlite"])
async def test_without_redis_it_is_kept_among_the_sessions(scheme, tmp_path):
    url = "memory:" if scheme == "memory" else f"sqlite:{tmp_path / 'memory.db'}"
    memory = get_short_term_memory(environ={"MEMORY_URL": url})
    await memory.connect()
    kept = [await memory.add_interaction("thought", str(i)) for i in range(3)]
    assert await memory.get_recent(limit=2) == kept[:0:-1]
    assert len(await memory.get_recent_summaries()) == 3
    await memory.disconnect()
    assert len(await memory.get_recent()) == (3 if scheme == "sqlite" else 0)
    await memory.disconnect()


async def test_a_store_that_fails_is_a_connection_error(tmp_path):
    memory = get_short_term_memory(url=f"sqlite:{tmp_path}/nowhere/memory.db")
    with pytest.raises(ConnectionError):
        await memory.connect()
    await memory.disconnect()


@pytest.mark.parametrize("place", ["redis://localhost", "memory:"])
def test_an_agent_has_a_name(place: str):
    with pytest.raises(ValueError, match="agent_id"):
        get_short_term_memory(agent_id="", url=place)


@pytest.mark.parametrize("name", ["nova", "default/nova", "/", "a/", "/a", "a/b/c", "agent 7"])
async def test_no_two_agents_have_one_name(name: str):
    others = ["nova", "default/nova", "/", "a/", "/a", "a/b/c", "agent 7"]
    assert [other for other in others if parse_agent_id(other) == parse_agent_id(name)] == [name]


def test_whoever_imports_memory_loads_no_redis():
    script = "import sys, proxy.memory; sys.exit('redis' in sys.modules or 'pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


# --- speed, generous: the bench measures it


async def test_writes_and_reads_are_fast_enough_for_a_call(memory: ShortTermMemoryManager):
    async def took(work) -> float:
        began = time.perf_counter()
        await work()
        return time.perf_counter() - began

    writes = sorted([await took(lambda: memory.add_interaction(**SAID)) for _ in range(200)])
    reads = sorted([await took(lambda: memory.get_recent(limit=10)) for _ in range(200)])
    assert writes[100] < 0.010
    assert reads[100] < 0.050
