"""The archive in an SQLite file: the sessions' own, or another."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from proxy.memory.archive.sql import Batch, BoundStatement, Rows, Steps, Transaction
from proxy.memory.errors import StoreError
from proxy.memory.stores import sqlite_file
from proxy.memory.stores.sqlite_file import DatabaseFile, FileWriter, ForeignCommits
from proxy.memory.tasks import retrieve_exception

T = TypeVar("T")

# Nobody waits for the archive on a call but whoever searches, and readers wait for no writer.
_WAIT: Final = 1.0
_PATIENCE: Final = 5.0
_THREADS: Final = 2
_MOST_READING: Final = 64
_MERGED_AT_ONCE: Final = 500


class SqliteDatabase:
    """Writes on a thread of its own, in batches; reads on two others, beside the loop."""

    def __init__(self, path: Path, elsewhere: ForeignCommits | None = None) -> None:
        self._file = DatabaseFile(path, wait=_WAIT)
        self._writer = FileWriter(self._file, foreign_commits=elsewhere)
        self._readers = ThreadPoolExecutor(_THREADS, thread_name_prefix="recall")
        self._own = threading.local()
        self._opened: list[sqlite3.Connection] = []
        self._reading = 0
        self._eye: sqlite3.Connection | None = None
        self._seen: tuple[int, int] | None = None
        self._closed = False

    async def write(self, work: Transaction[T]) -> T:
        """As the protocol has it."""
        return await self._submitted(partial(_carried_out, work))

    async def read(self, work: Transaction[T]) -> T:
        """As the protocol has it; where too many are reading, StoreError."""
        if self._closed:
            raise StoreError("The archive has been closed.")
        if self._reading >= _MOST_READING:
            raise StoreError("The archive cannot keep up: too many are reading it.")
        if self._file.identity is None:
            await self._submitted(lambda _: None)
        self._reading += 1
        reading = asyncio.get_running_loop().run_in_executor(self._readers, self._read, work)
        reading.add_done_callback(self._has_read)
        return await asyncio.shield(reading)

    async def read_inline(self, work: Transaction[T]) -> T:
        """Inline: a thread would cost more than the look. Whatever hinders it, a thread tries it again."""
        found = self.read_nowait(work)
        return await self.read(work) if found is None else found

    def read_nowait(self, work: Transaction[T]) -> T | None:
        """As the protocol has it: where the file is open, and nobody else's for the moment."""
        if self._closed or self._file.identity is None:
            return None
        try:
            return _carried_out(work, self._looking())
        except sqlite3.Error:
            self._blink()
            return None

    async def scrub(self) -> None:
        """The index's segments are merged into one, without what was removed; then the log is emptied."""
        before = await self._submitted(partial(_merge, -_MERGED_AT_ONCE))
        while before:
            before = await self._submitted(partial(_merge, _MERGED_AT_ONCE))
        await sqlite_file.empty_log(self._file.path)

    async def ping(self) -> None:
        """As the protocol has it."""
        await self._submitted(_touch)

    async def aclose(self) -> None:
        """As the protocol has it."""
        self._closed = True
        await asyncio.to_thread(self._readers.shutdown)
        self._blink()
        for connection in self._opened:
            connection.close()
        await self._writer.aclose()

    async def _submitted(self, work: Callable[[sqlite3.Connection], T]) -> T:
        outcome = self._writer.submit(work)
        outcome.add_done_callback(retrieve_exception)
        done, _ = await asyncio.wait({outcome}, timeout=_PATIENCE)
        if not done:
            raise StoreError("The archive is too slow.")
        return outcome.result()

    def _looking(self) -> sqlite3.Connection:
        """The loop's own connection, to the file that was opened last; it waits for nobody."""
        if self._eye is None or self._seen != self._file.identity:
            self._blink()
            self._eye, self._seen = self._file.connect(wait=0), self._file.identity
        return self._eye

    def _blink(self) -> None:
        eye, self._eye = self._eye, None
        if eye is not None:
            eye.close()

    def _has_read(self, reading: "asyncio.Future[Any]") -> None:
        self._reading -= 1
        retrieve_exception(reading)

    def _read(self, work: Transaction[T]) -> T:
        with self._file.errors():
            try:
                return _carried_out(work, self._connection())
            except sqlite3.Error:
                self._let_go()
                raise

    def _connection(self) -> sqlite3.Connection:
        """The thread's own, to the file that was opened last."""
        known: sqlite3.Connection | None = getattr(self._own, "connection", None)
        if known is None or self._own.identity != self._file.identity:
            self._let_go()
            known = self._file.connect(wait=_WAIT, shared=True)
            self._opened.append(known)
            self._own.connection, self._own.identity = known, self._file.identity
        return known

    def _let_go(self) -> None:
        """The thread's own connection is closed, if it has one."""
        known: sqlite3.Connection | None = getattr(self._own, "connection", None)
        if known is not None:
            self._own.connection = None
            self._opened.remove(known)
            known.close()


def _carried_out(work: Transaction[T], connection: sqlite3.Connection) -> T:
    steps: Steps[T] = work()
    try:
        step = next(steps)
        while True:
            step = steps.send(_reply(step, connection))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def _reply(step: BoundStatement | Batch, connection: sqlite3.Connection) -> Rows | list[Rows]:
    if isinstance(step, BoundStatement):
        return connection.execute(step.statement.named, step.arguments).fetchall()
    return [connection.execute(ask.statement.named, ask.arguments).fetchall() for ask in step.asks]


def _merge(pages: int, connection: sqlite3.Connection) -> bool:
    """Whether there may be more to merge."""
    before = connection.total_changes
    connection.execute("INSERT INTO turnkeeper_index (turnkeeper_index, rank) VALUES ('merge', ?)", (pages,))
    return connection.total_changes - before > 1


def _touch(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE turnkeeper_migrations SET name = name")
