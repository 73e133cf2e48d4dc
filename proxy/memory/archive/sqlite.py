"""The archive's database in an SQLite file: the session store's own, or another."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from proxy.memory.archive.sql import Rows, Steps, Transaction
from proxy.memory.errors import StoreError
from proxy.memory.stores import sqlite_file
from proxy.memory.stores.sql import Arguments, BoundStatement, Each, Statement
from proxy.memory.stores.sqlite_file import DatabaseFile, FileConnection, FileWriter
from proxy.memory.tasks import retrieve_exception

T = TypeVar("T")

# During a call only a search waits for the archive, and readers do not wait for writers.
_WAIT: Final = 1.0
_PATIENCE: Final = 5.0
# Short, because turns may be written to the same file, and would wait for long transactions.
_LOCK_SECONDS: Final = 0.002
_THREADS: Final = 2
_MAX_READS: Final = 64
_PAGES_AT_ONCE: Final = 500


class SqliteDatabase:
    """Writes on one thread in batches; reads on two other threads, or on the event loop."""

    def __init__(self, path: Path) -> None:
        self._file = DatabaseFile(path, wait=_WAIT)
        self._writer = FileWriter(self._file, lock_seconds=_LOCK_SECONDS)
        self._readers = ThreadPoolExecutor(_THREADS, thread_name_prefix="recall")
        self._connections: dict[int, FileConnection] = {}
        self._reads = 0
        self._inline = FileConnection(self._file)
        self._closed = False

    async def write(self, work: Transaction[T]) -> T:
        """Runs the steps in the writer's next batch."""
        return await self._submit(partial(_run, work))

    async def read(self, work: Transaction[T]) -> T:
        """Runs the steps on a reading thread. Raises StoreError if too many reads are waiting."""
        if self._closed:
            raise StoreError("The archive has been closed.")
        if self._reads >= _MAX_READS:
            raise StoreError("The archive cannot keep up: too many reads are waiting.")
        if self._file.identity is None:
            await self._submit(lambda _: None)
        self._reads += 1
        reading = asyncio.get_running_loop().run_in_executor(self._readers, self._read, work)
        reading.add_done_callback(self._read_ended)
        return await asyncio.shield(reading)

    async def read_inline(self, work: Transaction[T]) -> T:
        """Runs the steps on the event loop, which costs less than a thread; on failure, like ``read``."""
        if not self._closed and self._file.identity is not None:
            try:
                return _run(work, self._inline.get())
            except sqlite3.Error:
                self._inline.close()
        return await self.read(work)

    def rows_nowait(self, statement: Statement, arguments: Arguments) -> Rows | None:
        """Returns a query's rows, read on the event loop; ``None`` if the file is not open or is locked."""
        if self._closed or self._file.identity is None:
            return None
        try:
            return self._inline.get().execute(statement.named, arguments).fetchall()
        except sqlite3.Error:
            self._inline.close()
            return None

    async def scrub(self) -> None:
        """Merges the index's segments into one, without deleted terms, and empties the write-ahead log."""
        more = await self._submit(partial(_merge, -_PAGES_AT_ONCE))
        while more:
            more = await self._submit(partial(_merge, _PAGES_AT_ONCE))
        await sqlite_file.empty_log(self._file.path)

    async def ping(self) -> None:
        """Returns if a write would succeed now; else raises StoreError."""
        await self._submit(lambda it: it.execute("UPDATE turnkeeper_migrations SET name = name"))

    async def aclose(self) -> None:
        """Finishes reads and writes and closes all connections."""
        self._closed = True
        await asyncio.to_thread(self._readers.shutdown)
        for connection in (self._inline, *self._connections.values()):
            connection.close()
        await self._writer.aclose()

    async def _submit(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await self._writer.run(work, _PATIENCE)

    def _read_ended(self, reading: "asyncio.Future[Any]") -> None:
        self._reads -= 1
        retrieve_exception(reading)

    def _read(self, work: Transaction[T]) -> T:
        """Runs the steps on this thread's own connection."""
        thread = threading.get_ident()
        connection = self._connections.get(thread)
        if connection is None:
            connection = self._connections[thread] = FileConnection(self._file, wait=_WAIT)
        with self._file.errors():
            try:
                return _run(work, connection.get())
            except sqlite3.Error:
                connection.close()
                raise


def _run(work: Transaction[T], connection: sqlite3.Connection) -> T:
    steps: Steps[T] = work()
    reply: Any = None
    try:
        while True:
            reply = [_rows(each, connection) for each in steps.send(reply)]
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def _rows(step: BoundStatement | Each, connection: sqlite3.Connection) -> list[Any]:
    if isinstance(step, Each):
        if not step.statement.has_rows:
            rows = map(step.statement.in_order, step.rows)
            connection.executemany(step.statement.numbered_for_sqlite, rows)
            return [[] for _ in step.rows]
        return [connection.execute(step.statement.named, row).fetchall() for row in step.rows]
    return connection.execute(step.statement.named, step.arguments).fetchall()


def _merge(pages: int, connection: sqlite3.Connection) -> bool:
    """Merges some pages of the index; returns whether there may be more to merge."""
    before = connection.total_changes
    connection.execute("INSERT INTO turnkeeper_index (turnkeeper_index, rank) VALUES ('merge', ?)", (pages,))
    return connection.total_changes - before > 1
