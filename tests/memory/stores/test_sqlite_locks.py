"""The message about a locked file names the process that locks it, and blames no other program wrongly."""

import asyncio
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from proxy.memory.errors import StoreError
from proxy.memory.stores.sqlite import SqliteStore
from proxy.memory.stores.sqlite_file import empty_log
from proxy.memory.stores.sqlite_locks import locked_by
from proxy.memory.stores.store import BlobWrite, Key

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform != "linux", reason="the kernel's own list of locks is read"),
]
KEY = Key("acme", "call-1")
_PROGRAM = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
for statement in sys.argv[2:]:
    connection.execute(statement).fetchall()
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def program(path: Path, *statements: str) -> Iterator[int]:
    """Another program, which has carried out these statements; its pid."""
    command = [sys.executable, "-c", _PROGRAM, str(path), *statements]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        yield process.pid


async def refusal(store: SqliteStore) -> str:
    """Why it cannot be written now."""
    with pytest.raises(StoreError) as caught:
        await store.ping()
    return str(caught.value)


@pytest.fixture
async def store(tmp_path: Path):
    opened = SqliteStore(tmp_path / "memory.db", deadline=0.05)
    await opened.ping()
    yield opened
    await opened.aclose()


async def test_another_program_is_named_with_its_number(store: SqliteStore, tmp_path: Path) -> None:
    with program(tmp_path / "memory.db", "BEGIN IMMEDIATE") as pid:
        reason = await refusal(store)
    assert re.search(rf"locked by another program \(.*python.*, process {pid}\)\.$", reason)
    await store.ping()


async def test_another_program_that_reads_locks_nothing(store: SqliteStore, tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    assert await store.write(KEY, BlobWrite(b"1", version=0, ttl=60))
    with program(path, "BEGIN", "SELECT * FROM turnkeeper_sessions") as pid:
        await store.ping()
        assert "which process did it cannot be told" in locked_by(path)
        emptying = asyncio.ensure_future(empty_log(path))
        for number in range(50):
            assert await store.write(Key("acme", f"other-{number}"), BlobWrite(b"1", version=0, ttl=60))
        assert not emptying.done()
        with pytest.raises(StoreError, match=rf"emptied: it is in use by another program \(.*process {pid}"):
            await emptying


async def test_our_own_writer_that_is_behind_is_called_that(store: SqliteStore) -> None:
    let_go = threading.Event()
    busy = asyncio.ensure_future(store._writer.run(lambda _: let_go.wait(), 60.0))
    await asyncio.sleep(0)
    try:
        with pytest.raises(StoreError) as caught:
            await store.write(KEY, BlobWrite(b"1", version=0, ttl=60))
    finally:
        let_go.set()
    await busy
    assert "too slow: what this process writes before it is not done" in str(caught.value)
    assert "program" not in str(caught.value)


async def test_who_holds_the_lock_is_named_while_a_writer_waits_for_it(
    store: SqliteStore, tmp_path: Path
) -> None:
    patient = SqliteStore(tmp_path / "memory.db", deadline=5.0)
    await patient.ping()
    with program(tmp_path / "memory.db", "BEGIN IMMEDIATE") as pid:
        reason = await refusal(patient)
    assert re.search(rf"too slow: it is locked by another program .*process {pid}", reason)
    await patient.aclose()


async def test_a_second_store_of_this_process_is_no_other_program(store: SqliteStore, tmp_path: Path) -> None:
    let_go, taken = threading.Event(), threading.Event()
    second = SqliteStore(tmp_path / "memory.db", deadline=0.05)
    await second.ping()
    busy = asyncio.ensure_future(second._writer.run(lambda _: (taken.set(), let_go.wait()), 60.0))
    assert await asyncio.to_thread(taken.wait, 10)
    try:
        with pytest.raises(StoreError, match="locked by another writer or reader of this process"):
            await store.ping()
    finally:
        let_go.set()
    await busy
    await second.aclose()
