"""A turn without a part of its history is marked as degraded, whatever part of memory lags behind."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proxy.memory.errors import StoreError
from proxy.memory.stores import session_store
from proxy.memory.stores.codec import Plain
from proxy.memory.stores.drivers import open_store
from proxy.memory.stores.store import Key, StoredBlob
from proxy.memory.stores.volatile import VolatileStore
from tests.peers.fake_upstream import FakeUpstream
from tests.peers.redis_server import RedisServer, single
from tests.proxy_server import ProxyServer, Serve
from tests.remembering import CONFIG, IMPATIENT, call, settle, stored_entries, texts, user

QUICK = IMPATIENT.replace("memory: {", "memory: {deadline: 60ms, ")


class Lagging:
    """A driver whose reads fail calls, and hold up the background, each as long as it is to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fails_calls = self.holds_background = False
        read = VolatileStore.read

        async def lagging(store: VolatileStore, key: Key, *, background: bool = False) -> StoredBlob | None:
            if not background and self.fails_calls:
                raise StoreError("the primary was lost")
            while background and self.holds_background:  # noqa: ASYNC110 - it is let go in another thread
                await asyncio.sleep(0.005)
            return await read(store, key, background=background)

        monkeypatch.setattr(VolatileStore, "read", lagging)


def degraded(answer: Any) -> bool:
    return "memory" in answer.headers.get("x-turnkeeper-degraded", "")


def shown(upstream: FakeUpstream) -> list[str]:
    return [message["content"] for message in upstream.last.json["messages"]]


def test_a_turn_that_is_read_before_the_last_one_is_taken_in_says_so(
    serve: Serve, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    lagging = Lagging(monkeypatch)
    proxy: ProxyServer = serve(QUICK, MEMORY_URL="memory:")
    assert not degraded(call(proxy, user("One.")))
    settle(proxy)
    lagging.fails_calls = lagging.holds_background = True
    assert degraded(call(proxy, user("Two.")))
    lagging.fails_calls = False
    answer = call(proxy, user("Three."))
    assert shown(upstream) == ["One.", "Hello there.", "Three."]
    assert degraded(answer)
    lagging.holds_background = False
    settle(proxy)
    assert not degraded(call(proxy, user("Four.")))
    said = [text for _, text in texts(stored_entries(proxy))]
    assert said == [
        "One.",
        "Hello there.",
        "Two.",
        "Hello there.",
        "Three.",
        "Hello there.",
        "Four.",
        "Hello there.",
    ]
    assert shown(upstream) == said[:-1]


LINES = [text for number in range(1, 9) for text in (f"Question {number}.", "Hello there.")]


class Failing:
    """A Redis that is gone back to, as a replica that was promoted, what it had been at a time."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._keys: dict[bytes, bytes] = {}

    def note(self) -> None:
        """This is what the replica has."""
        self._keys = {key: self._server.ask("DUMP", key) for key in self._server.ask("KEYS", "*")}

    def take_over(self) -> None:
        self._server.ask("FLUSHALL")
        for key, value in self._keys.items():
            self._server.ask("RESTORE", key, 60_000, value)


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with single(tmp_path) as server:
        yield server


@pytest.mark.parametrize("turns", [0, 1, 2])
def test_what_a_failover_has_lost_of_this_process_s_writes_is_gone_on_from(
    serve: Serve, upstream: FakeUpstream, redis: RedisServer, turns: int
) -> None:
    proxy, failing = serve(CONFIG, MEMORY_URL=redis.url), Failing(redis)
    for number in range(turns):
        call(proxy, user(LINES[2 * number]))
    settle(proxy)
    failing.note()
    call(proxy, user(LINES[2 * turns]))
    settle(proxy)
    failing.take_over()
    for number in range(turns + 1, turns + 3):
        answer = call(proxy, user(LINES[2 * number]))
        assert shown(upstream) == LINES[: 2 * number + 1]
        assert not degraded(answer)
        settle(proxy)
    assert [text for _, text in texts(stored_entries(proxy))] == LINES[: 2 * (turns + 3)]


@pytest.mark.parametrize("turns", [0, 1])
def test_what_a_failover_has_lost_and_this_process_does_not_have_any_more_is_marked(
    serve: Serve, upstream: FakeUpstream, redis: RedisServer, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    monkeypatch.setattr(session_store, "_CACHE_SIZE", 0)
    proxy, failing = serve(CONFIG, MEMORY_URL=redis.url), Failing(redis)
    for number in range(turns):
        call(proxy, user(LINES[2 * number]))
    settle(proxy)
    failing.note()
    call(proxy, user("This is lost."))
    settle(proxy)
    failing.take_over()
    for number in range(turns, turns + 3):
        answer = call(proxy, user(LINES[2 * number]))
        assert shown(upstream) == LINES[: 2 * number + 1]
        assert degraded(answer) == (number == turns)
        settle(proxy)


def test_what_was_deleted_is_not_brought_back(
    serve: Serve, upstream: FakeUpstream, redis: RedisServer
) -> None:
    """By another host, which this process has heard nothing of."""
    proxy = serve(CONFIG, MEMORY_URL=redis.url)
    call(proxy, user("Forget this."))
    settle(proxy)
    store = open_store(redis.url, deadline=5, codec=Plain())

    async def delete() -> None:
        assert await store.delete(Key("default", "s1"))
        await store.aclose()

    asyncio.run(delete())
    answer = call(proxy, user("What was it?"))
    assert shown(upstream) == ["What was it?"]
    assert not degraded(answer)
