"""A long session is archived in many short transactions, and is whole in the end."""

import asyncio
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from proxy.memory.archive.archive import Archive, open_archive
from proxy.memory.archive.records import Query
from proxy.memory.session import Entry, Session
from proxy.memory.stores.codec import Plain
from proxy.memory.stores.store import Key, Owner

pytestmark = pytest.mark.anyio
KEY, ANN = Key("acme", "call"), Owner("acme", "ann")
COUNT = 300


@pytest.fixture
async def archive(tmp_path: Path):
    opened = open_archive(f"sqlite:{tmp_path / 'a.db'}", codec=Plain())
    await opened.ping()
    yield opened
    await opened.aclose()


def session(count: int = COUNT) -> Session:
    entries = tuple(
        Entry(role="user", turn=i, content=f"Turn {i} about wheelbarrow{i % 7}", recorded_at=8.0)
        for i in range(count)
    )
    return Session(entries=entries, user="ann", created=5.0, updated=8.0)


async def texts(archive: Archive) -> list[str]:
    return [turn.entry.text for turn in await archive.session_turns(KEY)]


class OtherWriter(threading.Thread):
    """Writes to the file for as long as it may, and counts how often it could."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path, self.count, self.ending = path, 0, threading.Event()

    def run(self) -> None:
        with closing(sqlite3.connect(self.path, timeout=30, isolation_level=None)) as connection:
            while not self.ending.is_set():
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("COMMIT")
                self.count += 1
                time.sleep(0.001)


async def test_other_writers_get_in_while_a_long_session_is_archived(archive: Archive, tmp_path: Path):
    with closing(sqlite3.connect(tmp_path / "a.db")) as reader:
        other = OtherWriter(tmp_path / "a.db")
        counts: set[int] = set()

        async def look() -> None:
            while True:
                counts.add(reader.execute("SELECT count(*) FROM turnkeeper_turns").fetchone()[0])
                await asyncio.sleep(0.001)

        looking = asyncio.create_task(look())
        other.start()
        try:
            await archive.save_session(KEY, session(), as_of=8.0)
        finally:
            looking.cancel()
            other.ending.set()
            other.join(30)
    assert other.count > COUNT / 10
    assert len(counts) > COUNT / 10
    assert await texts(archive) == [entry.text for entry in session().entries]


async def test_what_was_broken_off_is_completed(archive: Archive):
    saving = asyncio.create_task(archive.save_session(KEY, session(), as_of=8.0))
    while not await texts(archive):  # noqa: ASYNC110 - it saves when it likes
        await asyncio.sleep(0.001)
    saving.cancel()
    await asyncio.wait({saving})
    assert 0 < len(await texts(archive)) < COUNT
    await archive.save_session(KEY, session(), as_of=8.0)
    assert await texts(archive) == [entry.text for entry in session().entries]
    shorter = msgspec.structs.replace(session(20), updated=9.0)
    await archive.save_session(KEY, shorter, as_of=9.0)
    assert await texts(archive) == [entry.text for entry in shorter.entries]


async def test_a_user_who_is_erased_meanwhile_stays_erased(archive: Archive):
    saving = asyncio.create_task(archive.save_session(KEY, session(), as_of=8.0))
    while not await texts(archive):  # noqa: ASYNC110 - it saves when it likes
        await asyncio.sleep(0.001)
    await archive.forget(ANN, at=9.0)
    await saving
    assert await texts(archive) == []
    assert await archive.search(ANN, Query(text="wheelbarrow1", now=9.0)) == []
