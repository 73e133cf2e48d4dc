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


@contextlib.asynccontextmanager
async def looked(error: StoreError | None):
    store = Answering(error)
    pulse = HealthCheck(store)  # type: ignore[arg-type]
    running = asyncio.create_task(pulse.run())
    await asyncio.wait_for(store.asked.wait(), 5)
    await asyncio.sleep(0)
    yield pulse
    running.cancel()


@pytest.mark.parametrize(
    ("error", "silent"), [(None, False), (StoreError("dead"), True), (Unreadable("its key is lost"), False)]
)
async def test_a_look_tells_whether_the_store_answers(error: StoreError | None, silent: bool):
    async with looked(error) as pulse:
        assert pulse.silent is silent


async def test_a_write_that_is_taken_ends_the_silence():
    async with looked(StoreError("dead")) as pulse:
        with contextlib.suppress(StoreError), pulse.writing(KEY):
            raise StoreError("still dead")
        assert pulse.silent
        with pulse.writing(KEY):
            pass
        assert not pulse.silent


async def test_the_oldest_write_that_is_under_way_tells_whether_one_is_late():
    pulse = HealthCheck(Answering(None), patience=0.05)  # type: ignore[arg-type]
    with pulse.writing(KEY):
        assert not pulse.late
        await asyncio.sleep(0.06)
        with pulse.writing(Key("default", "s2")):
            assert pulse.late
        assert pulse.late
    assert not pulse.late
