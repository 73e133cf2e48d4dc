"""An SQLite database file, which is read on the event loop, and written by one thread."""

import asyncio
import contextlib
import math
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgspec

from proxy.memory.errors import StoreError
from proxy.memory.stores.sql import (
    APPLIED,
    LEDGER,
    LEDGER_TABLE,
    Arguments,
    Migration,
    Statement,
    Types,
    migration_statements,
    pending_migrations,
)
from proxy.memory.stores.sqlite_locks import locked_by
from proxy.memory.tasks import settle

T = TypeVar("T")
Row = tuple[Any, ...]
Work = Callable[[sqlite3.Connection], T]
"""Work that the writer's thread does inside a transaction."""

GATHERING: Final = 0.02
"""The minimum of seconds between two commits.

A turn must be durable within 0.1 s of its end. The rest is for the commit, and for up to 0.05 s by which
other work may delay the event loop and the writer's thread.
"""
SHARED_GATHERING: Final = 0.005
"""The same if other processes serve the same calls, which see a turn once it is committed."""
PATIENCE: Final = 1.0
"""The time-out in seconds of waiting for a batch."""

# Terms have no spaces and are in lower case; the tokenizer treats all characters beyond ASCII as letters.
_FORGET_TERMS: Final = (
    "INSERT INTO turnkeeper_index (turnkeeper_index, rowid, terms) VALUES ('delete', old.id, old.terms);"
)
_LEARN_TERMS: Final = "INSERT INTO turnkeeper_index (rowid, terms) VALUES (new.id, new.terms);"
_ON: Final = "ON turnkeeper_passages"
TYPES: Final = Types(
    identity="INTEGER PRIMARY KEY",
    number="INTEGER",
    real="REAL",
    blob="BLOB",
    index=(
        (
            "CREATE VIRTUAL TABLE turnkeeper_index USING fts5("
            "terms, content = 'turnkeeper_passages', content_rowid = 'id', tokenize = 'ascii')"
        ),
        f"CREATE TRIGGER turnkeeper_index_new AFTER INSERT {_ON} BEGIN {_LEARN_TERMS} END",
        f"CREATE TRIGGER turnkeeper_index_old AFTER DELETE {_ON} BEGIN {_FORGET_TERMS} END",
        (
            f"CREATE TRIGGER turnkeeper_index_other AFTER UPDATE OF terms {_ON}"
            f" BEGIN {_FORGET_TERMS} {_LEARN_TERMS} END"
        ),
    ),
)

_LOCKED: Final = frozenset({"SQLITE_BUSY", "SQLITE_LOCKED"})
_ADVICE: Final = {
    "SQLITE_FULL": "the disk is full, or the file has reached its limit",
    "SQLITE_IOERR": "the disk is full or broken, or the file has reached its limit",
    "SQLITE_READONLY": "it may not be written; give this user the right to write the file and its folder",
    "SQLITE_CANTOPEN": "it cannot be opened; see that its folder is there and that this user may write in it",
    "SQLITE_PERM": "this user may not open it",
    "SQLITE_AUTH": "this user may not open it",
    "SQLITE_NOTADB": "it is no SQLite database; set MEMORY_URL to another file",
    "SQLITE_CORRUPT": "it is damaged; move it away, or restore it from a backup",
}
# Small, because each commit of another connection empties the cache.
_CACHE_SIZE: Final = "PRAGMA cache_size = -512"
# For processes that start together and wait for each other's migrations; calls do not wait for that thread.
_OPEN_WAIT: Final = 1.0
_LOCK_PAUSE: Final = 0.002
_GAP: Final = 5
_MAX_QUEUED: Final = 10_000
_CHORE_EVERY: Final = 1.0
_CHORE_PAUSE: Final = 0.05
# Pages from which on a thread checkpoints the log, and from which on the writer does, as SQLite itself: a log
# restarts only after a complete checkpoint, for which commits may never pause.
_LONG_LOG: Final = 1000
_LONGEST_LOG: Final = 4000
_LOG_HEAD: Final = 32
_PAGE_HEAD: Final = 24
# Short, because emptying the log blocks writers, also while it waits for readers.
_CHECKPOINT_WAIT: Final = 0.01
_CHECKPOINT_ATTEMPTS: Final = 300
_CHECKPOINT_PAUSE: Final = 0.05


class DatabaseFile:
    """A database file. ``identity`` is that of the file that was opened last, which may be replaced."""

    def __init__(self, path: Path, *, wait: float) -> None:
        self.path = path
        self.identity: tuple[int, int] | None = None
        self._wait = wait

    def open(self) -> sqlite3.Connection:
        """Opens a connection for writing, and migrates the tables; only the owner may read a new file.

        Raises StoreError; an existing file is unchanged then.
        """
        with self.errors():
            # SQLite gives its log files the same permissions.
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            connection = self.connect(wait=_OPEN_WAIT)
            try:
                _migrate(connection)
                connection.execute("PRAGMA busy_timeout = 0")
            except BaseException:
                connection.close()
                raise
        self.identity = self.identity_now()
        return connection

    def begin(self, connection: sqlite3.Connection) -> None:
        """Begins a writing transaction. Raises sqlite3.Error if the file is locked for too long.

        SQLite itself would poll the lock at growing intervals, of up to a tenth of a second.
        """
        due = time.monotonic() + self._wait
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.Error as error:
                if not is_locked(error) or time.monotonic() >= due:
                    raise
            else:
                return
            time.sleep(_LOCK_PAUSE)

    def connect(self, *, wait: float) -> sqlite3.Connection:
        """Opens an autocommit connection without migrations; it waits ``wait`` seconds for locks."""
        uri = f"file:{quote(os.fsencode(self.path))}?mode=rw"
        # Any thread may close the connection.
        connection = sqlite3.connect(
            uri, uri=True, timeout=wait, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute(_CACHE_SIZE)
        except BaseException:
            connection.close()
            raise
        return connection

    def fetch(self, statement: Statement, arguments: Arguments) -> list[tuple[object, ...]]:
        """Reads all rows over a new connection, in any thread. Raises StoreError."""
        with self.errors(), contextlib.closing(self.connect(wait=self._wait)) as connection:
            return connection.execute(statement.named, arguments).fetchall()

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Converts errors of SQLite and of the file system into StoreError."""
        try:
            yield
        except sqlite3.Error as error:
            raise self.failure(error) from error
        except OSError as error:
            raise StoreError(f"The memory file {self.path} cannot be used: {error.strerror}.") from error

    def failure(self, error: sqlite3.Error) -> StoreError:
        """Returns the StoreError for an error of SQLite, with advice."""
        advice = locked_by(self.path) if is_locked(error) else _ADVICE.get(_error_name(error))
        return StoreError(f"The memory file {self.path}: {advice or error}.")

    def identity_now(self) -> tuple[int, int] | None:
        """Returns the identity of the current file; ``None`` without a file."""
        try:
            stat = self.path.stat()
        except OSError:
            return None
        return stat.st_dev, stat.st_ino


def is_locked(error: sqlite3.Error) -> bool:
    """Whether the error is only a lock of another connection."""
    return _error_name(error) in _LOCKED


def _error_name(error: sqlite3.Error) -> str:
    """Returns the primary code of an error, with which extended ones begin (SQLITE_IOERR_WRITE)."""
    return "_".join(getattr(error, "sqlite_errorname", "").split("_")[:2])


def _migrate(connection: sqlite3.Connection) -> None:
    _pending_migrations(connection)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA secure_delete = ON")
    connection.execute(f"PRAGMA wal_autocheckpoint = {_LONGEST_LOG}")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(LEDGER_TABLE)
    for migration in _pending_migrations(connection):
        for statement in migration_statements(migration, TYPES):
            connection.execute(statement)
    connection.execute("COMMIT")


def _pending_migrations(connection: sqlite3.Connection) -> list[Migration]:
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if LEDGER not in tables:
        if tables:
            raise StoreError(
                "The memory file contains another program's tables. Set MEMORY_URL to another file."
            )
        return pending_migrations(())
    return pending_migrations([name for (name,) in connection.execute(APPLIED)])


class FileConnection:
    """A connection of one thread to the file that was opened last, opened at first use.

    It waits ``wait`` seconds for locks. Any thread may close it.
    """

    def __init__(self, file: DatabaseFile, *, wait: float = 0) -> None:
        self._file = file
        self._wait = wait
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None

    def get(self) -> sqlite3.Connection:
        """Returns the connection. Raises sqlite3.Error, and StoreError before the file was opened."""
        identity = self._file.identity
        if self._connection is None or self._identity != identity:
            self.close()
            if identity is None:
                raise StoreError(f"The memory file {self._file.path} has not been opened yet.")
            self._connection = self._file.connect(wait=self._wait)
            self._identity = identity
        return self._connection

    async def row(self, statement: Statement, arguments: Arguments, *, within: float) -> Row | None:
        """Reads the only row, if any. Raises StoreError; for a lock, after ``within`` seconds.

        It reads on the event loop, because a thread would cost more than a read of a few microseconds.
        """
        due = 0.0
        while True:
            try:
                connection = self._connection
                if connection is None or self._identity != self._file.identity:
                    connection = self.get()
                # Fetches all rows, so that no open statement keeps an old snapshot of the file.
                rows: list[Row] = connection.execute(statement.named, arguments).fetchall()
            except sqlite3.Error as error:
                if not is_locked(error):
                    self.close()
                now = asyncio.get_running_loop().time()
                due = due or now + within
                if not is_locked(error) or now >= due:
                    raise self._file.failure(error) from error
            else:
                return rows[0] if rows else None
            await asyncio.sleep(_LOCK_PAUSE)

    def close(self) -> None:
        """Closes the connection; the next use opens it again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class _Log:
    """Checkpoints a file's write-ahead log in a thread once it is long; for one writer.

    A disk may take hundreds of milliseconds for a checkpoint.
    """

    def __init__(self, file: DatabaseFile) -> None:
        self._file = file
        self._thread: threading.Thread | None = None
        # Stays open, because SQLite syncs the folder for each new connection.
        self._connection = FileConnection(file)

    def move_if_long(self) -> None:
        """Starts a checkpoint if the log is long and none is under way."""
        if self._thread is not None and self._thread.is_alive():
            return
        with contextlib.suppress(OSError, RuntimeError):  # no thread can be started, or the log not be read
            if self._is_long():
                self._thread = threading.Thread(target=self._move, name="memory log", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Waits for the checkpoint under way, and closes the connection."""
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()
        self._connection.close()

    def _is_long(self) -> bool:
        """Whether the log has ``_LONG_LOG`` pages; those of a former log have other salts than its head."""
        log = os.open(f"{self._file.path}-wal", os.O_RDONLY)
        try:
            head = os.pread(log, _LOG_HEAD, 0)
            page_size = int.from_bytes(head[8:12])
            page = os.pread(log, _PAGE_HEAD, _LOG_HEAD + (_LONG_LOG - 1) * (_PAGE_HEAD + page_size))
        finally:
            os.close(log)
        return len(page) == _PAGE_HEAD and page[8:16] == head[16:24]

    def _move(self) -> None:
        """Checkpoints as much as readers permit; if that fails, as on a full disk, the log grows."""
        try:
            self._connection.get().execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        except sqlite3.Error:
            self._connection.close()


class _Job(msgspec.Struct, frozen=True):
    work: Work[Any]
    outcome: asyncio.Future[Any]
    on_done: Callable[[], None] | None


class _NoTransaction(StoreError):
    """A transaction could not be begun, so that trying the next job is useless."""


class FileWriter:
    """Writes to a database file from a thread with its own connection, one transaction per batch.

    It does the work of one event loop in the order of submission. ``chore`` is done in between from time to
    time, and returns whether there is more to do. Two commits are at least ``gathering`` seconds apart. A
    transaction that has lasted ``lock_seconds`` starts no further work, and leaves the lock to others for
    five times as long.
    """

    def __init__(
        self,
        file: DatabaseFile,
        *,
        chore: Work[bool] | None = None,
        gathering: float = GATHERING,
        lock_seconds: float = math.inf,
    ) -> None:
        self._file = file
        self._lock_seconds = lock_seconds
        self._gathering = min(gathering, _GAP * lock_seconds)
        self._chore = chore
        self._log = _Log(file)
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._connection: sqlite3.Connection | None = None
        self._chore_due = 0.0
        self._commit_due = 0.0
        self._waits_for_lock = False

    async def run(self, work: Work[T], within: float) -> T:
        """Returns the result of ``work`` once it is durable. Raises StoreError."""
        return await self.result(self.submit(work), within)

    def submit(self, work: Work[T], on_done: Callable[[], None] | None = None) -> asyncio.Future[T]:
        """Returns a future of the result of ``work``, set once it is durable.

        ``on_done`` is called once the work is durable or has failed, however long that takes. Raises
        StoreError if the writer is closed, or its queue is full.
        """
        if self._closed:
            raise StoreError("The memory has been closed.")
        if self._jobs.qsize() >= _MAX_QUEUED:
            raise StoreError("The memory file cannot keep up: too many writes are waiting.")
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T] = loop.create_future()
        self._jobs.put(_Job(work, outcome, on_done))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, args=(loop,), name="memory", daemon=True)
            self._thread.start()
        return outcome

    async def result(self, outcome: asyncio.Future[T], within: float) -> T:
        """Waits for submitted work, which continues if the waiting ends; returns its result.

        Raises StoreError after ``within`` seconds.
        """
        timer = outcome.get_loop().call_later(within, self._give_up, outcome)
        try:
            return await outcome
        finally:
            timer.cancel()

    async def aclose(self) -> None:
        """Closes the file once all submitted work is durable or has failed."""
        self._closed = True
        if self._thread is not None:
            self._jobs.put(None)
            await asyncio.to_thread(self._thread.join)

    def _give_up(self, outcome: asyncio.Future[Any]) -> None:
        """Fails an outcome with the reason for which it takes too long."""
        if self._waits_for_lock:
            reason = locked_by(self._file.path)
        else:
            reason = "what this process writes before it is not done"
        settle(outcome, StoreError(f"The memory file {self._file.path} is too slow: {reason}."))

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        open_ = True
        while open_:
            jobs, open_ = self._batch()
            while jobs:
                outcomes = self._carry_out(jobs)
                with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits for the outcomes
                    loop.call_soon_threadsafe(_settle_jobs, outcomes)
                if jobs := jobs[len(outcomes) :]:
                    time.sleep(_GAP * self._lock_seconds)
            if time.monotonic() < self._chore_due:
                continue
            more = False
            if self._chore is not None and self._connection is not None:
                # A failed chore is tried again, and the next write reports the error.
                with contextlib.suppress(sqlite3.Error):
                    more = self._chore(self._connection)
            self._chore_due = time.monotonic() + (_CHORE_PAUSE if more else _CHORE_EVERY)
        self._log.close()
        self._disconnect()

    def _batch(self) -> tuple[list[_Job], bool]:
        """Returns the next jobs, if any come before a chore is due, and whether more may come."""
        try:
            jobs = [self._jobs.get(timeout=max(_CHORE_PAUSE, self._chore_due - time.monotonic()))]
        except queue.Empty:
            return [], True
        time.sleep(max(0.0, self._commit_due - time.monotonic()))
        while not self._jobs.empty():
            jobs.append(self._jobs.get_nowait())
        return [*filter(None, jobs)], jobs[-1] is not None

    def _carry_out(self, jobs: Sequence[_Job]) -> list[tuple[_Job, Any]]:
        """Commits the first jobs; returns each with its result or error."""
        try:
            return list(zip(jobs, self._commit(jobs), strict=False))
        except _NoTransaction as error:
            return [(job, StoreError(str(error))) for job in jobs]
        except Exception as error:  # noqa: BLE001 - any error is the outcome of its job
            # An error of the file rather than of one job is the outcome of all jobs.
            concerns_all = isinstance(error, sqlite3.OperationalError) or type(error) is sqlite3.DatabaseError
            if len(jobs) == 1 or concerns_all:
                failure = self._file.failure(error) if isinstance(error, sqlite3.Error) else error
                return [(job, failure) for job in jobs]
        return [outcome for job in jobs for outcome in self._carry_out([job])]

    def _commit(self, jobs: Sequence[_Job]) -> list[Any]:
        connection = self._begin()
        try:
            results, began = [], time.monotonic()
            for job in jobs:
                results.append(job.work(connection))
                if time.monotonic() - began >= self._lock_seconds:
                    break
            connection.execute("COMMIT")
            self._commit_due = time.monotonic() + self._gathering
        except BaseException:
            self._disconnect()  # rolls back, and drops a connection that may be broken
            raise
        self._log.move_if_long()
        return results

    def _begin(self) -> sqlite3.Connection:
        """Begins a writing transaction; returns its connection."""
        self._waits_for_lock = True
        try:
            if self._connection is not None and self._file.identity_now() != self._file.identity:
                self._disconnect()  # the file was removed or replaced
            if self._connection is None:
                self._connection = self._file.open()
            self._file.begin(self._connection)
        except StoreError as error:
            raise _NoTransaction(str(error)) from error
        except sqlite3.Error as error:
            if not is_locked(error):
                self._disconnect()
            raise _NoTransaction(str(self._file.failure(error))) from error
        finally:
            self._waits_for_lock = False
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _settle_jobs(outcomes: list[tuple[_Job, Any]]) -> None:
    for job, result in outcomes:
        if job.on_done is not None:
            job.on_done()
        settle(job.outcome, result)


async def empty_log(path: Path) -> None:
    """Checkpoints and truncates the write-ahead log, which still contains recently deleted rows.

    Raises StoreError if other connections keep reading it.
    """
    file = DatabaseFile(path, wait=_CHECKPOINT_WAIT)

    def checkpoint() -> bool:
        if not file.path.exists():
            return True
        with file.errors(), contextlib.closing(file.connect(wait=_CHECKPOINT_WAIT)) as connection:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)")  # without blocking writers
            busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return not busy

    for _ in range(_CHECKPOINT_ATTEMPTS):
        if await asyncio.to_thread(checkpoint):
            return
        await asyncio.sleep(_CHECKPOINT_PAUSE)
    raise StoreError(f"The log of {path} cannot be emptied: {locked_by(path, for_reading=True)}.")
