"""How a store fares is known without any call, and a fault of one session's is none of the store's."""

import asyncio
import contextlib

import pytest

from proxy.memory.errors import StoreError, Unreadable
from proxy.memory.recorder import HealthCheck
from proxy.memory.stores.store import Key, StoredBlob

pytestmark = pytest.mark.anyio

KEY = Key("default", "s1")


class Answering:
    """A store that answers every read with nothing, or with an error."""

    def __init__(self, error: StoreError | None) -> None:
        self.error = error
        self.asked = asyncio.Event()

    async def read(self, key: Key, *, background: bool = False) -> StoredBlob | None:
        assert background, "no call waits for it"
        self.asked.set()
        if self.error:
            raise self.error
        return None


async def taken(when: asyncio.Event | None = None) -> bool:
    if when:
        await when.wait()
    return True


async def refused() -> bool:
    raise StoreError("still dead")


@contextlib.asynccontextmanager
async def looked(error: StoreError | None):
    store = Answering(error)
    health = HealthCheck(store)  # type: ignore[arg-type]
    running = asyncio.create_task(health.run())
    await asyncio.wait_for(store.asked.wait(), 5)
    await asyncio.sleep(0)
    yield health
    running.cancel()


@pytest.mark.parametrize(
    ("error", "silent"), [(None, False), (StoreError("dead"), True), (Unreadable("its key is lost"), False)]
)
async def test_a_look_tells_whether_the_store_answers(error: StoreError | None, silent: bool):
    async with looked(error) as health:
        assert health.read_failed is silent


async def test_a_write_that_is_taken_ends_the_silence():
    async with looked(StoreError("dead")) as health:
        with contextlib.suppress(StoreError):
            await health.watch(KEY, refused())
        assert health.read_failed
        assert await health.watch(KEY, taken())
        assert not health.read_failed


async def test_the_oldest_write_that_is_under_way_tells_whether_one_is_late():
    health = HealthCheck(Answering(None), patience=0.05)  # type: ignore[arg-type]
    first, second = asyncio.Event(), asyncio.Event()
    async with asyncio.TaskGroup() as writes:
        one = writes.create_task(health.watch(KEY, taken(first)))
        await asyncio.sleep(0)
        assert not health.write_late
        await asyncio.sleep(0.06)
        other = writes.create_task(health.watch(Key("default", "s2"), taken(second)))
        await asyncio.sleep(0)
        assert health.write_late
        second.set()
        await other
        assert health.write_late
        first.set()
        await one
        assert not health.write_late
