"""A file with an SQLite database in it: how it is made, checked and opened."""

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote

from proxy.memory.faults import StoreError
from proxy.memory.sql.migrations import LEDGER, LEDGER_TABLE, TAKEN, Types, ahead
from proxy.memory.sql.statement import Arguments, Statement

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
    "SQLITE_BUSY": "it is locked by another program",
    "SQLITE_LOCKED": "it is locked by another program",
    "SQLITE_FULL": "the disk is full, or the file has reached its limit",
    "SQLITE_IOERR": "the disk is full or broken, or the file has reached its limit",
    "SQLITE_READONLY": "it may not be written; give this user the right to write the file and its folder",
    "SQLITE_CANTOPEN": "it cannot be opened; see that its folder is there and that this user may write in it",
    "SQLITE_PERM": "this user may not open it",
    "SQLITE_AUTH": "this user may not open it",
    "SQLITE_NOTADB": "it is no SQLite database; set MEMORY_URL to another file",
    "SQLITE_CORRUPT": "it is damaged; move it away, or restore it from a backup",
}
# A commit of any other connection's empties the cache, so that a large one is of no use.
_FEW_PAGES: Final = "PRAGMA cache_size = -512"
# Two processes that start together wait for one another's migrations, on a thread that keeps no call waiting.
_OPENING = 1.0


class File:
    """One database file. ``identity`` tells the file that was opened last from another of its name."""

    def __init__(self, path: Path, *, wait: float) -> None:
        self.path = path
        self.identity: tuple[int, int] | None = None
        self._wait = wait

    def open(self) -> sqlite3.Connection:
        """A connection that may write, to tables that are up to date; a new file is its owner's alone.

        Raises StoreError, and then an existing file is as it was.
        """
        with self.named():
            self._make()
            connection = self.connect(wait=_OPENING)
            try:
                _prepare(connection)
                connection.execute(f"PRAGMA busy_timeout = {int(self._wait * 1000)}")
            except BaseException:
                connection.close()
                raise
        self.identity = self._there()
        return connection

    def connect(self, *, wait: float, shared: bool = False) -> sqlite3.Connection:
        """A connection to the file as it is, without a transaction; a lock is waited for so many seconds.

        One that is ``shared`` may be closed by another thread than the one that opened it.
        """
        place = f"file:{quote(os.fsencode(self.path))}?mode=rw"
        connection = sqlite3.connect(
            place, uri=True, timeout=wait, isolation_level=None, check_same_thread=not shared
        )
        try:
            connection.execute(_FEW_PAGES)
        except BaseException:
            connection.close()
            raise
        return connection

    def fetch(self, statement: Statement, arguments: Arguments) -> list[tuple[object, ...]]:
        """All rows, over a connection of their own; for any thread. Raises StoreError."""
        with self.named(), contextlib.closing(self.connect(wait=self._wait)) as connection:
            return connection.execute(statement.named, arguments).fetchall()

    def replaced(self) -> bool:
        """Whether the file that was opened has been taken away, or another put in its place."""
        return self._there() != self.identity

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Turns the errors of SQLite and of the file system into StoreError."""
        try:
            yield
        except sqlite3.Error as error:
            raise self.failure(error) from error
        except OSError as error:
            raise StoreError(f"The memory file {self.path} cannot be used: {error.strerror}.") from error

    def failure(self, error: sqlite3.Error) -> StoreError:
        """The error with what to do about it."""
        return StoreError(f"The memory file {self.path}: {_ADVICE.get(_name(error)) or error}.")

    def _make(self) -> None:
        """An empty file for this user alone; SQLite gives its companions the same rights."""
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))

    def _there(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino


def is_locked(error: sqlite3.Error) -> bool:
    """Whether the database itself is sound, and merely somebody else's for now."""
    return _name(error) in _LOCKED


def _name(error: sqlite3.Error) -> str:
    """The error's primary code: extended ones carry it in front (SQLITE_IOERR_WRITE)."""
    return "_".join(getattr(error, "sqlite_errorname", "").split("_")[:2])


def _prepare(connection: sqlite3.Connection) -> None:
    _ahead(connection)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA secure_delete = ON")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(LEDGER_TABLE)
    for statement in _ahead(connection):
        connection.execute(statement)
    connection.execute("COMMIT")


def _ahead(connection: sqlite3.Connection) -> Iterator[str]:
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if LEDGER not in tables:
        if tables:
            raise StoreError(
                "The memory file holds another program's tables. Set MEMORY_URL to another file."
            )
        return ahead((), TYPES)
    return ahead([name for (name,) in connection.execute(TAKEN)], TYPES)
