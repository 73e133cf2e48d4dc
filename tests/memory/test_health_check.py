"""The state of a store is known without calls, and one unreadable session does not count against it."""

import asyncio
import contextlib

import pytest

from filters.message import Message
from proxy.memory.compaction import SessionLimits
from proxy.memory.errors import StoreError, Unreadable
from proxy.memory.recorder import HealthCheck, Recorder, Writer
from proxy.memory.session import Session
from proxy.memory.stores.session_store import SessionWrite
from proxy.memory.stores.store import BlobWrite, Key, StoredBlob
from proxy.memory.turn_record import TurnRecord
from tests.peers.fake_upstream import stream_of
from tests.remembering import sessions

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
    health = HealthCheck(store, {})  # type: ignore[arg-type]
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


class Slow:
    """A store that takes a write once it may, or refuses it."""

    def __init__(self) -> None:
        self.refuses, self.refused = True, asyncio.Event()
        self.may_take = {name: asyncio.Event() for name in ("s1", "s2")}

    async def write(self, key: Key, put: BlobWrite) -> bool:
        if self.refuses:
            self.refused.set()
            raise StoreError("still dead")
        await self.may_take[key.session].wait()
        return True

    async def read(self, key: Key, *, background: bool = False) -> StoredBlob | None:
        return None

    async def deleted(self, key: Key) -> float | None:
        return None


def turn(key: Key) -> TurnRecord:
    return TurnRecord(
        key=key, window=[Message(role="user", content="Hi")], answer=stream_of("Hello."), at=1.0, ended_at=2.0
    )


async def test_a_write_that_is_taken_ends_the_silence():
    store = Slow()
    recorder = Recorder(writer := Writer(sessions(store), SessionLimits()))
    writer.health.read_failed = True
    recorder.put(turn(KEY))
    await asyncio.wait_for(store.refused.wait(), 5)
    await asyncio.sleep(0)
    assert writer.health.write_failed
    assert writer.health.read_failed
    store.refuses = False
    store.may_take["s1"].set()
    await recorder.drain()
    assert not writer.health.read_failed
    assert not writer.health.write_failed


async def test_the_oldest_write_that_is_under_way_tells_whether_one_is_late():
    store = Slow()
    store.refuses = False
    own = sessions(store)
    health = HealthCheck(own, own.writing, patience=0.05)
    first = asyncio.create_task(own.save(KEY, SessionWrite(Session(), 0, 60.0)))
    await asyncio.sleep(0)
    assert not health.write_late
    await asyncio.sleep(0.06)
    second = asyncio.create_task(own.save(Key("default", "s2"), SessionWrite(Session(), 0, 60.0)))
    await asyncio.sleep(0)
    assert health.write_late
    store.may_take["s2"].set()
    assert await second
    assert health.write_late
    store.may_take["s1"].set()
    assert await first
    assert not health.write_late


async def test_what_is_written_in_the_background_is_never_late():
    store = Slow()
    store.refuses = False
    own = sessions(store)
    writing = asyncio.create_task(own.save(KEY, SessionWrite(Session(), 0, 60.0, background=True)))
    await asyncio.sleep(0)
    assert not own.writing
    store.may_take["s1"].set()
    assert await writing
