"""What was read or written last is believed only where nobody else can have written since."""

import asyncio
import contextlib
import os
import sqlite3
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.memory.archive.archive import Archive, open_archive
from proxy.memory.archive.records import Fact
from proxy.memory.stores import codec
from proxy.memory.stores.sqlite import SqliteStore
from proxy.memory.stores.sqlite_file import ForeignCommits
from proxy.memory.stores.store import BlobWrite, Key, Owner, Store

pytestmark = pytest.mark.anyio

SETTLED = 0.08
"""Seconds after which a file's times would tell of another write."""
KEYS = [Key("t", "one"), Key("t", "two")]
ANN = Owner("t", "ann")


@contextlib.asynccontextmanager
async def process(path: Path) -> AsyncIterator[tuple[Store, Archive, ForeignCommits]]:
    """A store and an archive on one file, as one server has them."""
    elsewhere = ForeignCommits(path)
    store = SqliteStore(path, deadline=5, foreign_commits=elsewhere)
    archive = open_archive(f"sqlite:{path}", codec=codec.Plain(), foreign_commits=elsewhere)
    await archive.ping()
    try:
        yield store, archive, elsewhere
    finally:
        await archive.aclose()
        await store.aclose()


async def put(store: Store, key: Key, blob: bytes) -> None:
    held = await store.read(key)
    assert await store.write(key, BlobWrite(blob, version=held.version if held else 0, ttl=60))


async def test_a_session_that_nobody_else_can_have_written_is_not_read_again(tmp_path: Path):
    async with process(tmp_path / "memory.db") as (store, archive, _):
        await put(store, KEYS[0], b"1")
        await asyncio.sleep(SETTLED)
        await put(store, KEYS[0], b"2")
        await asyncio.sleep(SETTLED)
        await archive.add_fact(ANN, Fact(id="f", text="Likes tea."))
        await asyncio.sleep(SETTLED)
        reader, store._reader = store._reader, None
        assert (await store.read(KEYS[0])).blob == b"2"
        store._reader = reader


async def test_facts_that_nobody_else_can_have_written_are_not_read_again(tmp_path: Path):
    async with process(tmp_path / "memory.db") as (store, archive, _):
        for blob in (b"1", b"2"):
            await put(store, KEYS[0], blob)
            await asyncio.sleep(SETTLED)
        assert archive.facts_nowait(ANN, now=1.0) == []
        archive._database.read_nowait = None
        assert archive.facts_nowait(ANN, now=1.0) == []
        await asyncio.sleep(SETTLED)
        await put(store, KEYS[0], b"3")
        await asyncio.sleep(SETTLED)
        assert archive.facts_nowait(ANN, now=1.0) == []


async def test_a_fact_is_told_from_its_writing_on_and_until_it_expires(tmp_path: Path):
    async with process(tmp_path / "memory.db") as (store, archive, _):
        for blob in (b"1", b"2"):
            await put(store, KEYS[0], blob)
            await asyncio.sleep(SETTLED)
        assert archive.facts_nowait(ANN, now=1.0) == []
        await archive.add_fact(ANN, Fact(id="f", text="Likes tea.", expires=5.0))
        await asyncio.sleep(SETTLED)
        assert [fact.id for fact in archive.facts_nowait(ANN, now=1.0)] == ["f"]
        assert [fact.id for fact in archive.facts_nowait(ANN, now=4.0)] == ["f"]
        assert archive.facts_nowait(ANN, now=6.0) == []
        await archive.forget(ANN, at=2.0)
        assert archive.facts_nowait(ANN, now=4.0) == []


async def test_another_process_with_a_write_of_the_same_size_is_seen(tmp_path: Path):
    path = tmp_path / "memory.db"
    async with process(path) as (store, _, elsewhere):
        for blob in (b"1", b"2"):
            await put(store, KEYS[0], blob)
            await asyncio.sleep(SETTLED)
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("PRAGMA wal_checkpoint(RESTART)")  # the log is written from its beginning again
            size = Path(f"{path}-wal").stat().st_size
            assert elsewhere.count_if_certain() is not None
            other.execute("UPDATE turnkeeper_sessions SET blob = ?, version = version + 1", (b"3",))
            assert Path(f"{path}-wal").stat().st_size == size
            assert (await store.read(KEYS[0])).blob == b"3"


async def test_a_clock_of_seconds_is_given_seconds(tmp_path: Path):
    path = tmp_path / "memory.db"
    async with process(path) as (store, _, elsewhere):
        for blob in (b"1", b"2"):
            await put(store, KEYS[0], blob)
            await asyncio.sleep(SETTLED)
        log, (stamp, count) = Path(f"{path}-wal"), elsewhere._seen
        for age, sure in ((0, False), (5, True)):
            second = (int(time.time()) - age) * 10**9
            os.utime(log, ns=(second, second))
            elsewhere._seen = (stamp._replace(written=second), count)
            assert (elsewhere.count_if_certain() is not None) is sure


STEPS = st.tuples(
    st.integers(0, 1),
    st.sampled_from([*KEYS, ANN]),
    st.sampled_from(["put", "read", "drop"]),
    st.sampled_from([0.0, 0.0, SETTLED]),
)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(STEPS, min_size=4, max_size=14))
async def test_two_processes_on_one_file_always_see_what_the_other_wrote(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, Key | Owner, str, float]]
):
    path = tmp_path_factory.mktemp("two") / "memory.db"
    held: dict[Key | Owner, object] = dict.fromkeys([*KEYS, ANN])
    async with process(path) as first, process(path) as second:
        for number, (who, what, step, pause) in enumerate(steps):
            store, archive, _ = (first, second)[who]
            if isinstance(what, Owner):
                held[what] = await known(archive, step, held[what], f"fact {number}")
            else:
                held[what] = await kept(store, what, step, held[what], b"%d" % number)
            await asyncio.sleep(pause)


async def kept(store: Store, key: Key, step: str, before: object, blob: bytes) -> object:
    found = await store.read(key)
    assert (found.blob if found else None) == before
    if step == "put":
        await put(store, key, blob)
        return blob
    if step == "drop":
        await store.delete(key)
        return None
    return before


async def known(archive: Archive, step: str, before: object, text: str) -> object:
    found = archive.facts_nowait(ANN, now=1.0)
    assert (found[0].text if found else None) == before
    if step == "put":
        await archive.add_fact(ANN, Fact(id="f", text=text))
        return text
    if step == "drop":
        await archive.remove_fact(ANN, "f")
        return None
    return before
