"""Errors of SQLite files, and data that must not be in them."""

import asyncio
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, closing, contextmanager
from pathlib import Path

import pytest

from proxy.memory.errors import StoreError
from proxy.memory.stores import sql, sqlite, sqlite_file
from proxy.memory.stores.sqlite import SLICE, SqliteStore
from proxy.memory.stores.sqlite_file import GATHERING
from proxy.memory.stores.store import BlobWrite, Key, StoredBlob
from tests.memory.commits import Commits, on_statement

pytestmark = pytest.mark.anyio
KEY = Key("acme", "call-1")
DEADLINE = 0.05
MUCH = 500_000
PATIENCE = 5.0
"""Of whoever reads from a file that is yet to be opened: that takes a thread its time."""
STEPS = [(step.__name__,) for step in sql.MIGRATIONS]
ROOT = Path(__file__).parents[3]


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    opened = SqliteStore(path, deadline=PATIENCE)
    yield opened
    await opened.aclose()


@pytest.fixture
async def hasty(path: Path) -> AsyncIterator[SqliteStore]:
    """For locks: it waits half a second for one where it writes."""
    opened = SqliteStore(path, deadline=DEADLINE)
    yield opened
    await opened.aclose()


async def written_much(store: SqliteStore, session: int) -> None:
    """A session of more than a tenth of the pages of a long log."""
    assert await store.write(Key("acme", f"much-{session}"), BlobWrite(b"x" * MUCH, version=0, ttl=60))


async def written(
    store: SqliteStore, blob: bytes = b"1", *, version: int = 0, cold: tuple[bytes, ...] = ()
) -> int:
    assert await store.write(KEY, BlobWrite(blob, version=version, ttl=60, cold=cold))
    held = await store.read(KEY)
    assert held is not None
    return held.version


@contextmanager
def other_program(path: Path, *statements: str) -> Iterator[sqlite3.Connection]:
    """Somebody else's connection, after these statements."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)
        yield connection


class Watch:
    """How long something took, and the longest time for which the loop did nothing else."""

    def __init__(self) -> None:
        self._began = self._seen = time.monotonic()
        self.stalled = 0.0
        self._task = asyncio.ensure_future(self._tick())

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(0.001)
            self._look()

    def _look(self) -> None:
        now = time.monotonic()
        self.stalled, self._seen = max(self.stalled, now - self._seen), now

    def stop(self) -> float:
        self._task.cancel()
        self._look()
        return time.monotonic() - self._began


# --- locks


async def test_a_writer_elsewhere_stops_no_read_and_writes_only_while_it_lasts(
    hasty: SqliteStore, path: Path
):
    version = await written(hasty)
    with other_program(path, "BEGIN EXCLUSIVE") as other:
        assert await hasty.read(KEY) == StoredBlob(b"1", version)
        with pytest.raises(StoreError, match="locked by another writer or reader of this process"):
            await hasty.write(KEY, BlobWrite(b"2", version=version, ttl=60))
        with pytest.raises(StoreError, match="locked"):
            await hasty.ping()
        assert await hasty.read(KEY) == StoredBlob(b"1", version)
        assert [line.session for line in await hasty.list("acme")] == ["call-1"]
        other.execute("ROLLBACK")
    assert await hasty.write(KEY, BlobWrite(b"2", version=version, ttl=60))


async def test_a_lock_is_asked_for_again_and_again_while_another_holds_it(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
):
    statements: list[str] = []
    on_statement(monkeypatch, statements.append)
    await store.ping()
    with other_program(path, "BEGIN IMMEDIATE") as other:
        writing = asyncio.ensure_future(store.write(KEY, BlobWrite(b"1", version=0, ttl=60)))
        statements.clear()
        while statements.count("BEGIN IMMEDIATE") < 20:
            assert not writing.done()
            await asyncio.sleep(0.001)
        other.execute("COMMIT")
    assert await writing


async def test_a_locked_file_costs_the_deadline_and_never_the_loop(store: SqliteStore, path: Path):
    await store.ping()
    await store.aclose()
    deadline = 1.0
    reading = SqliteStore(path, deadline=deadline)
    await reading.ping()
    await reading._writer.aclose()  # nothing of ours holds the file any more
    with other_program(path, "PRAGMA locking_mode = EXCLUSIVE", "BEGIN EXCLUSIVE"):
        watch = Watch()
        with pytest.raises(StoreError, match="locked"):
            await reading.read(KEY)
        assert 0.9 * deadline <= watch.stop() < 3 * deadline
        assert watch.stalled < deadline / 2
    assert await reading.read(KEY) is None


async def test_a_file_locked_from_the_start_costs_the_deadline(hasty: SqliteStore, path: Path):
    with other_program(
        path, "PRAGMA locking_mode = EXCLUSIVE", "CREATE TABLE x (y)", "BEGIN EXCLUSIVE"
    ) as other:
        watch = Watch()
        with pytest.raises(StoreError, match="too slow"):  # opening says "locked", after a second
            await hasty.read(KEY)
        watch.stop()
        assert watch.stalled < 0.5
        other.execute("DROP TABLE x")
        other.execute("COMMIT")
    assert await hasty.read(KEY, background=True) is None
    await written(hasty)


# --- files that cannot be written, or are none


async def test_a_folder_that_is_not_there_is_named(tmp_path: Path):
    store = SqliteStore(tmp_path / "no" / "memory.db", deadline=PATIENCE)
    with pytest.raises(StoreError, match=r"no/memory\.db cannot be used: No such file"):
        await store.read(KEY)
    (tmp_path / "no").mkdir()
    await written(store)
    await store.aclose()


async def test_a_folder_is_no_file(tmp_path: Path):
    store = SqliteStore(tmp_path, deadline=PATIENCE)
    with pytest.raises(StoreError, match="cannot be opened"):
        await store.ping()
    await store.aclose()


def run(code: str, path: Path) -> subprocess.CompletedProcess[str]:
    prologue = f"""
        import asyncio, concurrent.futures.thread, os, pathlib
        from proxy.memory.errors import StoreError
        from proxy.memory.stores.store import Key, BlobWrite
        from proxy.memory.stores.sqlite import SqliteStore
        KEY = Key("acme", "call-1")
        path = pathlib.Path({str(path)!r})
        store = SqliteStore(path, deadline={DEADLINE})
    """
    program = textwrap.dedent(prologue) + textwrap.dedent(code) + "\nasyncio.run(main())\n"
    return subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=50, check=False
    )


async def test_a_folder_that_may_not_be_written_is_said_to_be_so(shared: Path):
    path = shared / "memory.db"
    await fill(path)
    path.chmod(0o444)
    shared.chmod(0o555)
    done = run(
        """
        if os.geteuid() == 0:  # what root may do proves nothing
            os.setgid(65534)
            os.setuid(65534)
        async def main():
            for use in (store.ping(), store.write(KEY, BlobWrite(b"2", version=0, ttl=60))):
                try:
                    await use
                except StoreError as error:
                    print(error)
            await store.aclose()
        """,
        path,
    )
    assert done.stderr == ""
    assert done.stdout.count("this user may") + done.stdout.count("to write") == 2


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that any user can reach."""
    folder = Path(tempfile.mkdtemp(prefix="tk-"))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


async def fill(path: Path) -> None:
    """A database with one session."""
    store = SqliteStore(path, deadline=PATIENCE)
    await written(store)
    await store.aclose()


async def test_a_full_file_stops_writes_until_there_is_room(path: Path):
    done = run(
        """
        import resource
        async def main():
            assert await store.write(KEY, BlobWrite(b"1", version=0, ttl=60))
            held = await store.read(KEY)
            most = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, most[1]))
            refused = 0
            for n in range(4):
                try:
                    await store.write(Key("acme", str(n)), BlobWrite(b"x" * 90_000, version=0, ttl=60))
                except StoreError as error:
                    assert "reached its limit" in str(error), error
                    refused += 1
            assert refused, refused
            assert await store.read(KEY) == held
            resource.setrlimit(resource.RLIMIT_FSIZE, most)
            assert await store.write(KEY, BlobWrite(b"2", version=held.version, ttl=60))
            await store.ping()
            await store.aclose()
            print("lives")
        """,
        path,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("lives\n", "", 0)
    with other_program(path) as other:
        assert other.execute(
            "SELECT blob FROM turnkeeper_sessions WHERE session = ?", (b"call-1",)
        ).fetchone() == (b"2",)
        assert other.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.parametrize(
    "content", [b"this is a text, not a database" * 100, b"SQLite format 3\0" + b"\xff" * 9000]
)
async def test_a_file_that_is_no_database_is_left_alone(store: SqliteStore, path: Path, content: bytes):
    path.write_bytes(content)
    for use in (
        store.read(KEY),
        store.write(KEY, BlobWrite(b"1", version=0, ttl=60)),
        store.list("acme"),
        store.ping(),
    ):
        with pytest.raises(StoreError, match=r"memory\.db: it is (no SQLite database|damaged)"):
            await use
    assert path.read_bytes() == content
    path.unlink()
    await written(store)


async def test_a_damaged_database_says_so(path: Path):
    await fill(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\xa5" * (len(whole) - 4096))
    store = SqliteStore(path, deadline=PATIENCE)
    with pytest.raises(StoreError, match="damaged"):
        await store.read(KEY)
    await store.aclose()


async def test_a_newer_database_is_refused_and_not_touched(store: SqliteStore, path: Path):
    await fill(path)
    with other_program(
        path, "INSERT INTO turnkeeper_migrations VALUES ('m900_the_future')", "PRAGMA journal_mode=DELETE"
    ):
        pass
    before = path.read_bytes()
    for use in (store.read(KEY), store.write(KEY, BlobWrite(b"2", version=0, ttl=60)), store.ping()):
        with pytest.raises(StoreError, match=r"newer Turnkeeper \(m900_the_future.*Upgrade Turnkeeper"):
            await use
    await store.aclose()
    assert path.read_bytes() == before
    assert sorted(path.parent.iterdir()) == [path]


async def test_another_programs_database_is_refused_and_not_touched(store: SqliteStore, path: Path):
    with other_program(path, "CREATE TABLE customers (name)"):
        pass
    before = path.read_bytes()
    with pytest.raises(StoreError, match="another program's tables"):
        await store.ping()
    await store.aclose()
    assert path.read_bytes() == before


async def test_an_older_database_is_brought_up_to_date(path: Path, monkeypatch: pytest.MonkeyPatch):
    await fill(path)

    def m999_colour(types: sql.Types) -> tuple[str, ...]:
        return (f"ALTER TABLE turnkeeper_sessions ADD COLUMN colour {types.blob}",)

    monkeypatch.setattr(sql, "MIGRATIONS", (*sql.MIGRATIONS, m999_colour))
    await fill_again(path)
    await fill_again(path)
    with other_program(path) as other:
        assert other.execute("SELECT colour FROM turnkeeper_sessions").fetchall() == [(None,)]
        assert other.execute(sql.APPLIED).fetchall() == [*STEPS, ("m999_colour",)]


async def fill_again(path: Path) -> None:
    store = SqliteStore(path, deadline=PATIENCE)
    held = await store.read(KEY)
    assert held is not None
    await written(store, version=held.version)
    await store.aclose()


async def test_a_dropped_table_stops_writes_until_it_is_back(store: SqliteStore, path: Path):
    version = await written(store)
    with other_program(path, "ALTER TABLE turnkeeper_sessions RENAME TO away"):
        with pytest.raises(StoreError, match="no such table"):
            await store.write(KEY, BlobWrite(b"2", version=version, ttl=60))
        with pytest.raises(StoreError, match="no such table"):
            await store.read(KEY)
    with other_program(path, "ALTER TABLE away RENAME TO turnkeeper_sessions"):
        pass
    assert await store.read(KEY) == StoredBlob(b"1", version)
    await written(store, b"2", version=version)


async def test_a_file_that_was_taken_away_is_made_anew(store: SqliteStore, path: Path):
    await written(store)
    for there in path.parent.iterdir():
        there.unlink()
    await store.ping()
    assert await store.read(KEY) is None
    await written(store, b"new")
    await store.aclose()
    with other_program(path) as other:
        assert other.execute("SELECT blob FROM turnkeeper_sessions").fetchall() == [(b"new",)]


# --- batches


async def test_one_bad_job_spoils_no_other_of_its_batch(store: SqliteStore):
    await store.ping()
    wrong = asyncio.ensure_future(store._writer.run(lambda own: own.execute("SELECT ?", (object(),)), 60.0))
    keys = [Key("acme", str(n)) for n in range(5)]
    writing = [store.write(key, BlobWrite(b"1", version=0, ttl=60)) for key in keys]
    assert await asyncio.gather(*writing) == [True] * 5
    with pytest.raises(StoreError):
        await wrong


async def test_what_a_failed_batch_began_is_undone(store: SqliteStore, path: Path):
    await store.ping()

    def half(connection: sqlite3.Connection) -> None:
        connection.execute("UPDATE turnkeeper_migrations SET name = 'half'")
        connection.execute("SELECT ?", (object(),))

    with pytest.raises(StoreError):
        await store._writer.run(half, 60.0)
    with other_program(path, "BEGIN IMMEDIATE", "ROLLBACK") as other:  # no lock is left behind
        assert other.execute(sql.APPLIED).fetchall() == STEPS
    await written(store)  # nor does the next job pay for it


async def test_commits_keep_their_distance(store: SqliteStore, monkeypatch: pytest.MonkeyPatch):
    await store.ping()
    batches: list[int] = []
    commit = store._writer._commit
    monkeypatch.setattr(store._writer, "_commit", lambda jobs: (batches.append(len(jobs)), commit(jobs))[1])
    writing, began = [], time.monotonic()
    for n in range(20):
        writing.append(
            asyncio.ensure_future(store.write(Key("acme", str(n)), BlobWrite(b"1", version=0, ttl=60)))
        )
        await asyncio.sleep(0.005)
    assert all(await asyncio.gather(*writing))
    assert sum(batches) == 20
    assert len(batches) <= 2 + (time.monotonic() - began) / GATHERING


async def test_a_batch_is_one_transaction(store: SqliteStore):
    await store.ping()
    said: list[str] = []
    busy, all_are_there = threading.Event(), threading.Event()

    def hold_up(connection: sqlite3.Connection) -> None:
        connection.set_trace_callback(said.append)
        busy.set()
        assert all_are_there.wait(10)

    first = asyncio.ensure_future(store._writer.run(hold_up, 60.0))
    assert await asyncio.to_thread(busy.wait, 10)
    keys = [Key("acme", str(n)) for n in range(50)]
    writing = [asyncio.ensure_future(store.write(key, BlobWrite(b"1", version=0, ttl=60))) for key in keys]
    await asyncio.sleep(0)
    assert store._writer._jobs.qsize() == len(keys)
    all_are_there.set()
    await first
    assert all(await asyncio.gather(*writing))
    assert said.count("BEGIN IMMEDIATE") == 1
    assert said.count("COMMIT") == 2, "of the one that held them up, and of theirs"


async def test_a_deletion_that_takes_longer_than_is_waited_for_is_read_as_done(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sqlite, "BACKGROUND_DEADLINE", 0.1)
    await written(store)
    done = threading.Event()
    holding = asyncio.ensure_future(store._writer.run(lambda _: done.wait(60), 60.0))
    with pytest.raises(StoreError, match="too slow"):
        await store.delete(KEY)
    assert await store.read(KEY) is None
    assert await store.deleted(KEY)
    done.set()
    await holding
    await store.ping()
    assert await store.read(KEY) is None
    assert await store.deleted(KEY)


async def test_what_failed_is_no_longer_read(hasty: SqliteStore, path: Path):
    version = await written(hasty)
    with other_program(path, "BEGIN IMMEDIATE"):
        writing = asyncio.ensure_future(hasty.write(KEY, BlobWrite(b"2", version=version, ttl=60)))
        await asyncio.sleep(0)
        assert (await hasty.read(KEY) or StoredBlob(b"", 0)).blob == b"2"
        with pytest.raises(StoreError):
            await writing
        with pytest.raises(StoreError):  # and by now it has failed, not merely taken too long
            await hasty._writer.run(lambda _: None, 60.0)
    assert await hasty.read(KEY) == StoredBlob(b"1", version)


async def test_a_chain_of_writes_breaks_where_another_process_cut_in(store: SqliteStore, path: Path):
    version = await written(store)
    with other_program(path, "BEGIN IMMEDIATE") as other:
        first = asyncio.ensure_future(store.write(KEY, BlobWrite(b"2", version=version, ttl=60)))
        await asyncio.sleep(0)
        in_flight = await store.read(KEY)
        assert in_flight is not None
        second = asyncio.ensure_future(store.write(KEY, BlobWrite(b"3", version=in_flight.version, ttl=60)))
        await asyncio.sleep(0)
        other.execute("UPDATE turnkeeper_sessions SET blob = ?, version = version + 1", (b"theirs",))
        other.execute("COMMIT")
    assert await asyncio.gather(first, second) == [False, False]
    assert (await store.read(KEY) or StoredBlob(b"", 0)).blob == b"theirs"


# --- expiry and secrecy


async def test_what_has_expired_leaves_the_file(store: SqliteStore, path: Path):
    for n in range(12):
        assert await store.write(Key("acme", str(n)), BlobWrite(b"1", version=0, ttl=0.01, cold=[b"c"] * 3))
    await written(store)
    with other_program(path) as other:
        async with asyncio.timeout(30):
            while other.execute("SELECT session FROM turnkeeper_sessions").fetchall() != [(b"call-1",)]:  # noqa: ASYNC110 - nobody says when
                await asyncio.sleep(0.05)
        assert other.execute("SELECT * FROM turnkeeper_cold").fetchall() == []


@pytest.mark.parametrize("is_new", [False, True], ids=["replaced", "made"])
async def test_others_write_while_a_large_session_is_written_or_deleted(
    store: SqliteStore, path: Path, is_new: bool
):
    words = tuple(b"%6d" % i * 5000 for i in range(300))
    if is_new:
        await store.ping()
        replacing = asyncio.ensure_future(store.write(KEY, BlobWrite(b"2", 0, ttl=60, cold=words)))
    else:
        put = BlobWrite(b"2", await written(store, cold=(b"before",)), ttl=60, cold=words)
        replacing = asyncio.ensure_future(store.replace(KEY, put))
    others = 0
    while not replacing.done():
        assert await store.write(Key("acme", f"other-{others}"), BlobWrite(b"1", version=0, ttl=60))
        others += not replacing.done()
    assert await replacing
    assert others > 5, "between the slices"
    assert await store.cold(KEY) == list(words)
    held = await store.read(KEY)
    assert held and held.blob == b"2"
    with other_program(path) as other:
        count = "SELECT count(*) FROM turnkeeper_cold"
        assert other.execute(count).fetchone() == (len(words),), "nothing is left of what was there before"
        assert await store.delete(KEY)
        assert other.execute(count).fetchone() == (0,)
        assert other.execute("SELECT count(*) FROM turnkeeper_sessions").fetchone() == (others + 2,)
    assert await store.cold(KEY) == []


@pytest.mark.parametrize("how", ["another was faster", "its caller left"])
async def test_a_large_session_that_does_not_take_its_place_leaves_nothing(
    store: SqliteStore, path: Path, how: str
):
    version, words = await written(store, cold=(b"before",)), tuple(b"%6d" % i * 5000 for i in range(300))
    put = BlobWrite(b"2", version + (how == "another was faster"), ttl=60, cold=words)
    replacing = asyncio.ensure_future(store.replace(KEY, put))
    if how == "its caller left":
        with other_program(path) as other:
            while other.execute("SELECT count(*) FROM turnkeeper_cold").fetchone()[0] < 100:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        replacing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await replacing
    else:
        assert not await replacing
    assert await store.read(KEY) == StoredBlob(b"1", version)
    assert await store.cold(KEY) == [b"before"]
    with other_program(path) as other:
        assert other.execute("SELECT count(*) FROM turnkeeper_cold").fetchone() == (1,)
        assert other.execute("SELECT count(*) FROM turnkeeper_sessions").fetchone() == (1,)


@pytest.mark.parametrize("how", ["deleted", "replaced", "expired"])
async def test_of_a_session_with_long_texts_a_transaction_removes_little(
    path: Path, monkeypatch: pytest.MonkeyPatch, how: str
):
    commits = Commits(monkeypatch, path, "SELECT sum(length(blob)) FROM turnkeeper_cold")
    texts = tuple(b"%6d" % i * 20_000 for i in range(40))
    async with aclosing(SqliteStore(path, deadline=PATIENCE)) as store:
        version = await written(store, cold=texts)
        if how == "deleted":
            assert await store.delete(KEY)
        elif how == "replaced":
            assert await store.replace(KEY, BlobWrite(b"2", version, ttl=60, cold=[b"a" * SLICE, b"b"]))
            assert await store.cold(KEY) == [b"a" * SLICE, b"b"]
        else:
            with other_program(path) as other:
                other.execute("UPDATE turnkeeper_sessions SET expires = 1")
            async with asyncio.timeout(30):
                while commits.number:  # noqa: ASYNC110 - nobody says when the sweep is through
                    await asyncio.sleep(0.01)
    removed = [change for change in commits.changes if change > 0]
    assert sum(removed) == sum(map(len, texts))
    assert max(removed) < SLICE + len(texts[0])


async def test_a_large_session_that_a_kill_left_halfway_is_swept(path: Path):
    code = f"""
        import asyncio, os
        from pathlib import Path
        from proxy.memory.stores import sqlite
        from proxy.memory.stores.store import BlobWrite, Key

        sqlite._put_in_place = lambda *_: os._exit(9)
        store = sqlite.SqliteStore(Path({str(path)!r}), deadline=5)
        put = BlobWrite(b"2", 0, ttl=60, cold=[b"words" * 1000] * 600)
        asyncio.run(store.replace(Key("acme", "call-1"), put))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, check=False)
    assert done.returncode == 9
    with other_program(path) as other:
        count = "SELECT count(*) FROM turnkeeper_cold"
        assert other.execute(count).fetchone() == (600,)
        other.execute("UPDATE turnkeeper_sessions SET expires = 1")  # as after a minute
        async with aclosing(SqliteStore(path, deadline=PATIENCE)) as store:
            assert await store.read(KEY) is None
            assert await store.list("acme") == []
            await store.ping()
            async with asyncio.timeout(30):
                while other.execute("SELECT count(*) FROM turnkeeper_sessions").fetchone() != (0,):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        assert other.execute(count).fetchone() == (0,)


async def test_what_was_deleted_is_not_left_in_the_file(store: SqliteStore, path: Path):
    await written(store, b"my secret is 4711", cold=(b"and 0815",))
    assert await store.delete(KEY)
    await store.aclose()
    assert sorted(path.parent.iterdir()) == [path]
    assert b"4711" not in path.read_bytes()
    assert b"0815" not in path.read_bytes()


async def test_a_new_file_is_its_owners_alone(store: SqliteStore, path: Path):
    await written(store)
    files = sorted(path.parent.iterdir())
    assert len(files) == 3
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}


async def test_the_file_is_in_the_mode_that_was_meant(hasty: SqliteStore):
    def modes(connection: sqlite3.Connection) -> list[object]:
        names = ("journal_mode", "synchronous", "secure_delete", "foreign_keys", "busy_timeout")
        return [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names]

    assert await hasty._writer.run(modes, 60.0) == ["wal", 1, 1, 1, 0]


async def test_a_log_is_moved_into_the_file_once_it_is_long(store: SqliteStore, path: Path):
    for session in range(8):
        await written_much(store, session)
    assert path.stat().st_size < MUCH
    await written_much(store, 8)
    async with asyncio.timeout(30):
        while path.stat().st_size < 8 * MUCH:  # noqa: ASYNC110 - the thread tells nobody
            await asyncio.sleep(0.01)
    log = Path(f"{path}-wal")
    async with asyncio.timeout(30):
        version = 0
        while log.read_bytes()[16:24] == log.read_bytes()[-4120:][8:16]:  # until it begins anew
            version = await written(store, version=version)
    assert log.stat().st_size > 8 * MUCH
    assert not store._writer._log._is_long()  # by what is left of the former one


async def test_no_write_waits_for_a_log_that_is_moved_and_it_has_an_end(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
):
    goes_on, moves = threading.Event(), list[str]()

    def never_ends(_: object) -> None:
        moves.append(threading.current_thread().name)
        goes_on.wait(60)

    monkeypatch.setattr(sqlite_file._Log, "_move", never_ends)
    try:
        for session in range(60):
            await written_much(store, session)
        assert moves == ["memory log"]
        assert 16_000_000 < Path(f"{path}-wal").stat().st_size < 20_000_000
        assert path.stat().st_size > 16_000_000
    finally:
        goes_on.set()
    await store.aclose()
    assert sorted(path.parent.iterdir()) == [path]


async def test_a_log_that_no_thread_can_move_costs_no_write(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
):
    await store.ping()

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        for session in range(10):
            await written_much(store, session)
    await written_much(store, 10)


async def test_a_connection_keeps_few_pages_of_the_file(hasty: SqliteStore):
    kept = "PRAGMA cache_size"
    assert await hasty._writer.run(lambda own: own.execute(kept).fetchone(), 60.0) == (-512,)
    with closing(hasty._file.connect(wait=0)) as another:
        assert another.execute(kept).fetchone() == (-512,)


# --- work


async def test_a_long_cold_part_makes_no_read_dearer(store: SqliteStore):
    await store.ping()
    work = []
    for cold in (20, 2000):
        key = Key("acme", f"s{cold}")
        assert await store.write(key, BlobWrite(b"x" * 5000, version=0, ttl=60, cold=[b"y" * 500] * cold))
        work.append(await steps_of_reading(store, key))
    assert work[0] == work[1] < 100


async def steps_of_reading(store: SqliteStore, key: Key) -> int:
    """How many of SQLite's instructions a read takes."""
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    assert await store.read(key)
    connection = store._reader._connection
    connection.set_progress_handler(step, 1)
    assert await store.read(key)
    connection.set_progress_handler(None, 1)
    return steps


async def test_every_query_that_names_a_session_goes_by_an_index(store: SqliteStore):
    await store.ping()
    asked = ["READ", "STATE", "COLD", "LIST", "DUE", "SWEEP", "REPLACE", "EXPIRE", "EXPIRE_COLD"]
    asked += ["EMPTY", "CLEAR", "ERASED_SINCE"]
    given = dict.fromkeys(re.findall(r":(\w+)", "".join(getattr(sql, name).named for name in asked)), 1)
    for name in asked:
        plan = store._reader.get().execute("EXPLAIN QUERY PLAN " + getattr(sql, name).named, given)
        assert [row[3] for row in plan if row[3].startswith("SCAN")] == [], name


# --- the process is killed


WRITING = """
async def main():
    await store.ping()
    await asyncio.gather(*map(live, range(8)))

async def live(n):
    key, version = Key("acme", f"s{n}"), 0
    for turn in range(10_000):
        if not await store.write(key, BlobWrite(b"%d" % turn, version=version, ttl=600, cold=[b"%d" % turn])):
            raise SystemExit("lost")
        version = (await store.read(key)).version
        os.write(1, f"{n} {turn}\\n".encode())
"""


@pytest.mark.parametrize("after", [0.3, 0.47, 0.71])
async def test_what_was_acknowledged_survives_a_kill(path: Path, after: float):
    prologue = f"""
import asyncio, os, pathlib
from proxy.memory.stores.store import Key, BlobWrite
from proxy.memory.stores.sqlite import SqliteStore
store = SqliteStore(pathlib.Path({str(path)!r}), deadline={DEADLINE})
"""
    program = prologue + WRITING + "\nasyncio.run(main())\n"
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE) as process:
        first = process.stdout.readline()
        await asyncio.sleep(after)
        process.send_signal(signal.SIGKILL)
        said = first + process.stdout.read()
    last: dict[int, int] = {}
    for line in said.decode().split("\n")[:-1]:
        session, turn = map(int, line.split())
        last[session] = turn
    assert len(last) == 8
    store = SqliteStore(path, deadline=1.0)
    for session, turn in last.items():
        key = Key("acme", f"s{session}")
        held = await store.read(key)
        assert held is not None
        kept = int(held.blob)
        assert kept >= turn
        assert await store.cold(key, limit=kept + 2) == [b"%d" % n for n in range(kept + 1)]
    await store.aclose()


async def test_two_processes_that_start_together_share_a_new_file(path: Path):
    program = f"""
import asyncio, pathlib, sys
from proxy.memory.errors import StoreError
from proxy.memory.stores.store import Key, BlobWrite
from proxy.memory.stores.sqlite import SqliteStore
store, key = SqliteStore(pathlib.Path({str(path)!r}), deadline=0.5), Key("acme", "shared")
async def patiently(ask):  # a busy machine may let one wait longer than a call does
    while True:
        try:
            return await ask()
        except StoreError:
            await asyncio.sleep(0.05)
async def main():
    await patiently(store.ping)
    for n in range(15):
        held = await patiently(lambda: store.read(key))
        entry = sys.argv[1] + str(n)
        try:
            version = held.version if held else 0
            won = await store.write(key, BlobWrite(b"x", version=version, ttl=60, cold=[entry.encode()]))
        except StoreError:
            won = "unknown"
        print(entry, won)
    await store.aclose()
asyncio.run(main())
"""
    running = [
        subprocess.Popen([sys.executable, "-c", program, name], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for name in "ab"
    ]
    said = [line.split() for process in running for line in process.communicate(timeout=50)[0].splitlines()]
    store = SqliteStore(path, deadline=1.0)
    entries = await store.cold(Key("acme", "shared"))
    await store.aclose()
    assert len(said) == 30
    assert any(won == "True" for _, won in said)
    for entry, won in said:
        expected = {"True": {1}, "False": {0}, "unknown": {0, 1}}[won]
        assert entries.count(entry.encode()) in expected
