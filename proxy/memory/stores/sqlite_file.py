"""A file with an SQLite database: opened, read on the event loop, and written by one thread."""

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

T = TypeVar("T")
Row = tuple[Any, ...]
Work = Callable[[sqlite3.Connection], T]
"""What the writer's thread does inside a transaction."""

GATHERING: Final = 0.02
"""Seconds between two commits at the least.

A turn is durable within 0.1 s of its end: that leaves room for the 0.05 s by which others may hold up the
loop and the writer's thread, and for the commit itself.
"""
SHARED_GATHERING: Final = 0.005
"""The same where other processes serve the same calls: they see a turn once it is committed."""
PATIENCE: Final = 1.0
"""Seconds after which the outcome of a batch is no longer waited for."""

# Terms have no spaces and stand in lower case; all beyond ASCII is part of one.
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
# Any other connection's commit empties the cache, so that a large one is of no use.
_CACHE_SIZE: Final = "PRAGMA cache_size = -512"
# Two processes that start together wait for one another's migrations, on a thread that keeps no call waiting.
_OPEN_WAIT: Final = 1.0
_LOCK_PAUSE: Final = 0.002
_GAP: Final = 5
_MAX_QUEUED: Final = 10_000
_CHORE_EVERY: Final = 1.0
_CHORE_PAUSE: Final = 0.05
# Pages of a log that is moved into the file beside the writer, and of one that the writer itself moves, as
# SQLite does: a log begins anew only where nothing is left to move, and commits may never pause.
_LONG_LOG: Final = 1000
_LONGEST_LOG: Final = 4000
_LOG_HEAD: Final = 32
_PAGE_HEAD: Final = 24
# While the log is emptied nothing is written, not even while readers of it are waited for.
_CHECKPOINT_WAIT: Final = 0.01
_CHECKPOINT_ATTEMPTS: Final = 300
_CHECKPOINT_PAUSE: Final = 0.05


class DatabaseFile:
    """One database file. ``identity`` tells the file that was opened last from another of its name."""

    def __init__(self, path: Path, *, wait: float) -> None:
        self.path = path
        self.identity: tuple[int, int] | None = None
        self._wait = wait

    def open(self) -> sqlite3.Connection:
        """A connection that may write, to tables that are up to date; a new file is its owner's alone.

        Raises StoreError, and then an existing file is as it was.
        """
        with self.errors():
            # SQLite gives its companions the same rights.
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
        """Begins a transaction that may write; raises sqlite3.Error where the file is locked for too long.

        SQLite itself would look less and less often, up to a tenth of a second apart.
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
        """A connection to the file as it is, in autocommit mode; a lock is waited for so many seconds."""
        uri = f"file:{quote(os.fsencode(self.path))}?mode=rw"
        # Another thread than the one that opened it may close it.
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
        """All rows, over a connection of their own; for any thread. Raises StoreError."""
        with self.errors(), contextlib.closing(self.connect(wait=self._wait)) as connection:
            return connection.execute(statement.named, arguments).fetchall()

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Turns the errors of SQLite and of the file system into StoreError."""
        try:
            yield
        except sqlite3.Error as error:
            raise self.failure(error) from error
        except OSError as error:
            raise StoreError(f"The memory file {self.path} cannot be used: {error.strerror}.") from error

    def failure(self, error: sqlite3.Error) -> StoreError:
        """The error with what to do about it."""
        advice = locked_by(self.path) if is_locked(error) else _ADVICE.get(_error_name(error))
        return StoreError(f"The memory file {self.path}: {advice or error}.")

    def identity_now(self) -> tuple[int, int] | None:
        """What tells the file that is there now from others; ``None`` where there is none."""
        try:
            stat = self.path.stat()
        except OSError:
            return None
        return stat.st_dev, stat.st_ino


def is_locked(error: sqlite3.Error) -> bool:
    """Whether the database is sound, and merely locked by another connection."""
    return _error_name(error) in _LOCKED


def _error_name(error: sqlite3.Error) -> str:
    """The error's primary code: extended ones carry it in front (SQLITE_IOERR_WRITE)."""
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
                "The memory file holds another program's tables. Set MEMORY_URL to another file."
            )
        return pending_migrations(())
    return pending_migrations([name for (name,) in connection.execute(APPLIED)])


class FileConnection:
    """A connection to the file that was opened last, for one thread, which makes it when it needs it.

    A lock is waited for so many seconds. Any thread may close it.
    """

    def __init__(self, file: DatabaseFile, *, wait: float = 0) -> None:
        self._file = file
        self._wait = wait
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None

    def get(self) -> sqlite3.Connection:
        """The connection. Raises StoreError where the file has not been opened yet, and sqlite3.Error."""
        identity = self._file.identity
        if self._connection is None or self._identity != identity:
            self.close()
            if identity is None:
                raise StoreError(f"The memory file {self._file.path} has not been opened yet.")
            self._connection = self._file.connect(wait=self._wait)
            self._identity = identity
        return self._connection

    async def row(self, statement: Statement, arguments: Arguments, *, within: float) -> Row | None:
        """The only row, if any. Raises StoreError, for a lock after so many seconds.

        It is read on the event loop: a thread would cost more than a read of a few microseconds.
        """
        due = 0.0
        while True:
            try:
                connection = self._connection
                if connection is None or self._identity != self._file.identity:
                    connection = self.get()
                # All rows are fetched, so that no statement stays open and holds an old state of the file.
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
        """Closes the connection, which is made anew where it is needed."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class _Log:
    """A file's write-ahead log, which is moved into the file by a thread once it is long; for one writer.

    A disk may take hundreds of milliseconds until what is moved is stored for good.
    """

    def __init__(self, file: DatabaseFile) -> None:
        self._file = file
        self._thread: threading.Thread | None = None
        # It is kept: SQLite has the folder stored for good, too, for each new one.
        self._connection = FileConnection(file)

    def move_if_long(self) -> None:
        """Begins to move the log, if it is long and is not being moved."""
        if self._thread is not None and self._thread.is_alive():
            return
        with contextlib.suppress(OSError, RuntimeError):  # no thread can be started, or the log not be read
            if self._is_long():
                self._thread = threading.Thread(target=self._move, name="memory log", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Ends once the log is not being moved any more."""
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()
        self._connection.close()

    def _is_long(self) -> bool:
        """Whether the log has so many pages: what is left of a former one has other salts than its head."""
        log = os.open(f"{self._file.path}-wal", os.O_RDONLY)
        try:
            head = os.pread(log, _LOG_HEAD, 0)
            page_size = int.from_bytes(head[8:12])
            page = os.pread(log, _PAGE_HEAD, _LOG_HEAD + (_LONG_LOG - 1) * (_PAGE_HEAD + page_size))
        finally:
            os.close(log)
        return len(page) == _PAGE_HEAD and page[8:16] == head[16:24]

    def _move(self) -> None:
        """Moves as much as readers let it; where that fails, as on a full disk, the log goes on."""
        try:
            self._connection.get().execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        except sqlite3.Error:
            self._connection.close()


class _Job(msgspec.Struct, frozen=True):
    work: Work[Any]
    outcome: asyncio.Future[Any]
    on_done: Callable[[], None] | None


class _NoTransaction(StoreError):
    """No transaction could be begun, so that there is no use in trying the next."""


class FileWriter:
    """Writes to a database file from a thread with a connection of its own, a transaction for each batch.

    It takes work from one event loop and does it in the order in which it came. ``chore`` is done in between,
    now and then; it returns whether there is more of it to do. Two commits are ``gathering`` seconds apart
    at the least. A transaction that has lasted ``lock_seconds`` begins no other work, and the next one leaves
    the lock to others for five times as long.
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
        """The result of ``work``, once it is durable. Raises StoreError as ``submit`` and ``result`` do."""
        return await self.result(self.submit(work), within)

    def submit(self, work: Work[T], on_done: Callable[[], None] | None = None) -> asyncio.Future[T]:
        """The outcome of ``work``: there once it is durable. Raises StoreError where no more is taken.

        ``on_done`` is called once the work is durable or has failed, however long that takes.
        """
        if self._closed:
            raise StoreError("The memory has been closed.")
        if self._jobs.qsize() >= _MAX_QUEUED:
            raise StoreError("The memory file cannot keep up: too much waits to be written.")
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T] = loop.create_future()
        self._jobs.put(_Job(work, outcome, on_done))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, args=(loop,), name="memory", daemon=True)
            self._thread.start()
        return outcome

    async def result(self, outcome: asyncio.Future[T], within: float) -> T:
        """What came of work that was submitted, which goes on if the waiting ends.

        Raises StoreError after so many seconds.
        """
        timer = outcome.get_loop().call_later(within, self._give_up, outcome)
        try:
            return await outcome
        finally:
            timer.cancel()

    async def aclose(self) -> None:
        """Closes the file once what was submitted is durable, or has failed."""
        self._closed = True
        if self._thread is not None:
            self._jobs.put(None)
            await asyncio.to_thread(self._thread.join)

    def _give_up(self, outcome: asyncio.Future[Any]) -> None:
        """Ends the waiting for an outcome, with what keeps the work from being done."""
        if outcome.done():
            return
        if self._waits_for_lock:
            reason = locked_by(self._file.path)
        else:
            reason = "what this process writes before it is not done"
        outcome.set_exception(StoreError(f"The memory file {self._file.path} is too slow: {reason}."))

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        open_ = True
        while open_:
            jobs, open_ = self._batch()
            while jobs:
                outcomes = self._carry_out(jobs)
                with contextlib.suppress(RuntimeError):  # the loop is closed: there is nothing to tell
                    loop.call_soon_threadsafe(_settle, outcomes)
                if jobs := jobs[len(outcomes) :]:
                    time.sleep(_GAP * self._lock_seconds)
            if time.monotonic() < self._chore_due:
                continue
            more = False
            if self._chore is not None and self._connection is not None:
                # What fails is tried again, and a write will say what is wrong.
                with contextlib.suppress(sqlite3.Error):
                    more = self._chore(self._connection)
            self._chore_due = time.monotonic() + (_CHORE_PAUSE if more else _CHORE_EVERY)
        self._log.close()
        self._disconnect()

    def _batch(self) -> tuple[list[_Job], bool]:
        """The next jobs, if any come before a chore is due, and whether more may come."""
        try:
            jobs = [self._jobs.get(timeout=max(_CHORE_PAUSE, self._chore_due - time.monotonic()))]
        except queue.Empty:
            return [], True
        time.sleep(max(0.0, self._commit_due - time.monotonic()))
        while not self._jobs.empty():
            jobs.append(self._jobs.get_nowait())
        return [*filter(None, jobs)], jobs[-1] is not None

    def _carry_out(self, jobs: Sequence[_Job]) -> list[tuple[_Job, Any]]:
        """The first jobs, each with its result, or with the error that it failed of."""
        try:
            return list(zip(jobs, self._commit(jobs), strict=False))
        except _NoTransaction as error:
            return [(job, StoreError(str(error))) for job in jobs]
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the job's outcome
            # A fault of the file rather than of one job, as far as SQLite tells, is the outcome of all.
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
            self._disconnect()  # which rolls back, and drops what may be broken
            raise
        self._log.move_if_long()
        return results

    def _begin(self) -> sqlite3.Connection:
        """A connection inside a transaction that may write."""
        self._waits_for_lock = True
        try:
            if self._connection is not None and self._file.identity_now() != self._file.identity:
                self._disconnect()  # the file was taken away, or another put in its place
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


def _settle(outcomes: list[tuple[_Job, Any]]) -> None:
    for job, result in outcomes:
        if job.on_done is not None:
            job.on_done()
        if job.outcome.done():
            continue
        if isinstance(result, Exception):
            job.outcome.set_exception(result)
        else:
            job.outcome.set_result(result)


async def empty_log(path: Path) -> None:
    """Moves the write-ahead log into the file and empties it: it holds what was deleted lately, too.

    Raises StoreError where others keep reading it.
    """
    file = DatabaseFile(path, wait=_CHECKPOINT_WAIT)

    def checkpoint() -> bool:
        if not file.path.exists():
            return True
        with file.errors(), contextlib.closing(file.connect(wait=_CHECKPOINT_WAIT)) as connection:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)")  # beside writers, as far as it goes
            busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return not busy

    for _ in range(_CHECKPOINT_ATTEMPTS):
        if await asyncio.to_thread(checkpoint):
            return
        await asyncio.sleep(_CHECKPOINT_PAUSE)
    raise StoreError(f"The log of {path} cannot be emptied: {locked_by(path, for_reading=True)}.")
