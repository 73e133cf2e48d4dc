"""How many more Python calls a turn takes on a Redis Cluster than on one Redis: a tenth of it at most."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import FrameType

import pytest
import uvloop

from proxy.memory.stores.codec import Plain
from proxy.memory.stores.drivers import open_store
from proxy.memory.stores.store import BlobWrite, Key, Store
from tests.bench.test_calls import A_TURN_OF_A_SESSION
from tests.peers import redis_server

TURNS = 20


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    with ExitStack() as started:
        one = started.enter_context(redis_server.single(tmp_path_factory.mktemp("redis")))
        nodes = started.enter_context(redis_server.cluster(tmp_path_factory.mktemp("cluster")))
        yield one.url, f"redis+cluster://{nodes[0].address}:{nodes[0].port}"


async def turn(store: Store, session: str) -> None:
    key = Key("default", session)
    stored = await store.read(key)
    assert await store.write(key, BlobWrite(b"x" * 5000, stored.version if stored else 0, ttl=600))


def calls(address: str, name: Callable[[int], str]) -> float:
    """What a turn's read and write take; ``name`` is the session of each turn."""
    count = 0

    def profile(_frame: FrameType, event: str, _arg: object) -> None:
        nonlocal count
        count += event == "call"

    async def run() -> None:
        store = open_store(address, deadline=10, codec=Plain())
        for number in range(12):  # it is connected to each node, and the scripts are there
            await turn(store, name(0))
            await turn(store, f"before {number}")
        sys.setprofile(profile)
        try:
            for number in range(TURNS):
                await turn(store, name(number))
        finally:
            sys.setprofile(None)
            await store.aclose()

    former = sys.getprofile()
    try:
        uvloop.run(run())
    finally:
        sys.setprofile(former)
    return count / TURNS


@pytest.mark.parametrize("name", [lambda _: "call", "call {}".format], ids=["later turns", "first turns"])
def test_a_turn_on_a_cluster(addresses: tuple[str, str], name: Callable[[int], str]) -> None:
    one, cluster = (calls(address, name) for address in addresses)
    assert 0 < one < cluster <= one + A_TURN_OF_A_SESSION / 10
