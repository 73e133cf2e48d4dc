"""Two processes on one file: each reads what the other wrote."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.memory.archive.archive import Archive, open_archive
from proxy.memory.archive.records import Fact
from proxy.memory.errors import SessionDeleted
from proxy.memory.stores import codec
from proxy.memory.stores.sqlite import SqliteStore
from proxy.memory.stores.store import BlobWrite, Key, Owner, Store

pytestmark = pytest.mark.anyio

PAUSE = 0.08
"""Seconds in which a batch is written, and the log's time moves on."""
KEYS = [Key("t", "one"), Key("t", "two")]
ANN = Owner("t", "ann")


@contextlib.asynccontextmanager
async def process(path: Path) -> AsyncIterator[tuple[Store, Archive]]:
    """A store and an archive on one file, as one server has them."""
    store = SqliteStore(path, deadline=5)
    archive = open_archive(f"sqlite:{path}", codec=codec.Plain())
    await archive.ping()
    try:
        yield store, archive
    finally:
        await archive.aclose()
        await store.aclose()


async def put(store: Store, key: Key, blob: bytes) -> None:
    held = await store.read(key)
    assert await store.write(key, BlobWrite(blob, version=held.version if held else 0, ttl=60))


async def test_a_fact_is_told_from_its_writing_on_and_until_it_expires(tmp_path: Path):
    async with process(tmp_path / "memory.db") as (store, archive):
        await put(store, KEYS[0], b"1")
        assert archive.facts_nowait(ANN, now=1.0) == []
        await archive.add_fact(ANN, Fact(id="f", text="Likes tea.", expires=5.0))
        assert [fact.id for fact in archive.facts_nowait(ANN, now=1.0)] == ["f"]
        assert [fact.id for fact in archive.facts_nowait(ANN, now=4.0)] == ["f"]
        assert archive.facts_nowait(ANN, now=6.0) == []
        await archive.forget(ANN, at=2.0)
        assert archive.facts_nowait(ANN, now=4.0) == []


@pytest.mark.parametrize("is_deleted", [True, False], ids=["deleted", "replaced"])
async def test_what_another_process_has_changed_is_refused_before_a_commit(tmp_path: Path, is_deleted: bool):
    ours = SqliteStore(tmp_path / "memory.db", deadline=5)
    async with process(tmp_path / "memory.db") as (theirs, _):
        await put(theirs, KEYS[0], b"1")
        held = await ours.read(KEYS[0])
        assert held is not None
        at = time.time()
        await (theirs.delete(KEYS[0]) if is_deleted else put(theirs, KEYS[0], b"2"))
        may_go_on = threading.Event()
        holding = asyncio.ensure_future(ours._writer.run(lambda _: may_go_on.wait(60), 60.0))
        try:
            with pytest.raises(SessionDeleted) if is_deleted else contextlib.nullcontext():
                assert not await ours.write(KEYS[0], BlobWrite(b"3", version=held.version, ttl=60, at=at))
            assert not holding.done()
        finally:
            may_go_on.set()
            await holding
            await ours.aclose()


STEPS = st.tuples(
    st.integers(0, 1),
    st.sampled_from([*KEYS, ANN]),
    st.sampled_from(["put", "read", "drop"]),
    st.sampled_from([0.0, 0.0, PAUSE]),
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
            store, archive = (first, second)[who]
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
