"""Reads of a few microseconds, on the event loop: a thread would cost more than the read."""

import asyncio
import sqlite3

from proxy.memory.faults import StoreError
from proxy.memory.sql.file import File, is_locked
from proxy.memory.sql.statement import Arguments, Statement

Row = tuple[object, ...]
_PAUSE = 0.002


class Reader:
    """A connection of the loop's own. SQLite itself never waits here; a locked file is asked again."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None

    async def row(self, statement: Statement, arguments: Arguments, *, due: float) -> Row | None:
        """The only row, if any. Raises StoreError, for a lock when ``due`` (in loop's time) has passed."""
        while True:
            try:
                return self._row(statement, arguments)
            except sqlite3.Error as error:
                if not is_locked(error):
                    self.close()
                if not is_locked(error) or asyncio.get_running_loop().time() >= due:
                    raise self._file.failure(error) from error
            await asyncio.sleep(_PAUSE)

    def close(self) -> None:
        """The next read connects anew."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _row(self, statement: Statement, arguments: Arguments) -> Row | None:
        # All rows are fetched, so that no statement stays open and holds an old state of the file.
        rows: list[Row] = self._connected().execute(statement.named, arguments).fetchall()
        return rows[0] if rows else None

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None or self._identity != self._file.identity:
            self.close()
            if self._file.identity is None:
                raise StoreError(f"The memory file {self._file.path} has not been opened yet.")
            self._connection = self._file.connect(wait=0)
            self._identity = self._file.identity
        return self._connection
