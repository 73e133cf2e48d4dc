"""A turn that goes on without something that was said says so, whatever part of memory lags behind."""

import asyncio
from typing import Any

import pytest

from proxy.memory.errors import StoreError
from proxy.memory.stores.store import Key, StoredBlob
from proxy.memory.stores.volatile import VolatileStore
from tests.peers.fake_upstream import FakeUpstream
from tests.proxy_server import ProxyServer, Serve
from tests.remembering import IMPATIENT, call, held, settle, texts, user

QUICK = IMPATIENT.replace("memory: {", "memory: {deadline: 60ms, ")


class Lagging:
    """A driver whose reads fail calls, and hold up the background, each as long as it is to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fails_calls = self.holds_background = False
        read = VolatileStore.read

        async def lagging(store: VolatileStore, key: Key, *, background: bool = False) -> StoredBlob | None:
            if not background and self.fails_calls:
                raise StoreError("the primary was lost")
            while background and self.holds_background:
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
    said = [text for _, text in texts(held(proxy))]
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
