"""The one that writes to a database file: a thread with a connection of its own, a transaction per batch."""

import asyncio
import contextlib
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from proxy.memory.faults import StoreError
from proxy.memory.sql.elsewhere import Elsewhere
from proxy.memory.sql.file import File, is_locked

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

GATHERING: Final = 0.05
"""Seconds between two commits at the least: with the commit itself, a write is durable within 0.1 s."""
PATIENCE: Final = 1.0
"""Seconds after which nobody waits for the outcome of a batch any longer."""
_MOST_QUEUED: Final = 10_000
_CHORE_EVERY: Final = 1.0
_CHORE_PAUSE: Final = 0.05


class _Job(NamedTuple):
    work: Work[Any]
    outcome: asyncio.Future[Any]


class _Stuck(StoreError):
    """No transaction could be begun, so that there is no use in trying the next."""


class Writer:
    """Takes work from one event loop and carries it out in the order in which it came.

    ``chore`` is done beside it, now and then; it says whether there is more of it to do. ``elsewhere`` is
    told of each commit.
    """

    def __init__(
        self,
        file: File,
        *,
        chore: Work[bool] | None = None,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self._file = file
        self._elsewhere = elsewhere or Elsewhere(file.path)
        self._chore = chore
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._hurry = threading.Event()
        self._thread: threading.Thread | None = None
        self._connection: sqlite3.Connection | None = None
        self._chore_due = 0.0
        self._free = 0.0

    def submit(self, work: Work[T]) -> asyncio.Future[T]:
        """The outcome of ``work``: there once it is durable. Raises StoreError where no more is taken."""
        if self._hurry.is_set():
            raise StoreError("The memory has been closed.")
        if self._jobs.qsize() >= _MOST_QUEUED:
            raise StoreError("The memory file cannot keep up: too much waits to be written.")
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T] = loop.create_future()
        self._jobs.put(_Job(work, outcome))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, args=(loop,), name="memory", daemon=True)
            self._thread.start()
        return outcome

    async def aclose(self) -> None:
        """What was submitted is durable, or has failed; the file is closed."""
        self._hurry.set()
        if self._thread is not None:
            self._jobs.put(None)
            await asyncio.to_thread(self._thread.join)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        open_ = True
        while open_:
            jobs, open_ = self._batch()
            if jobs:
                _tell(loop, self._carry_out(jobs))
            self._do_chore()
        self._drop()

    def _batch(self) -> tuple[list[_Job], bool]:
        """The next jobs, if any come before a chore is due, and whether more may come."""
        try:
            found = [self._jobs.get(timeout=max(_CHORE_PAUSE, self._chore_due - time.monotonic()))]
        except queue.Empty:
            return [], True
        self._hurry.wait(max(0.0, self._free - time.monotonic()))
        found.extend(self._jobs.get_nowait() for _ in range(self._jobs.qsize()))
        return [job for job in found if job is not None], found[-1] is not None

    def _carry_out(self, jobs: Sequence[_Job]) -> list[tuple[_Job, Any]]:
        """Each job with its result, or with the error that it failed of."""
        try:
            return list(zip(jobs, self._commit(jobs), strict=True))
        except _Stuck as error:
            return [(job, StoreError(str(error))) for job in jobs]
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told to whom it concerns
            if len(jobs) == 1 or _concerns_all(error):
                return [(job, self._told(error)) for job in jobs]
        return [outcome for job in jobs for outcome in self._carry_out([job])]

    def _commit(self, jobs: Sequence[_Job]) -> list[Any]:
        connection = self._begun()
        try:
            began = self._elsewhere.began(connection)
            results = [job.work(connection) for job in jobs]
            connection.execute("COMMIT")
            self._elsewhere.committed(connection, began)
            self._free = time.monotonic() + GATHERING
        except BaseException:
            self._drop()  # which rolls back, and forgets what may be broken
            raise
        return results

    def _begun(self) -> sqlite3.Connection:
        """A connection inside a transaction that may write."""
        try:
            if self._connection is not None and self._file.replaced():
                self._drop()
            if self._connection is None:
                self._connection = self._file.open()
            self._connection.execute("BEGIN IMMEDIATE")
        except StoreError as error:
            raise _Stuck(str(error)) from error
        except sqlite3.Error as error:
            if not is_locked(error):
                self._drop()
            raise _Stuck(str(self._file.failure(error))) from error
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _do_chore(self) -> None:
        if time.monotonic() < self._chore_due:
            return
        more = False
        # What fails is tried again, and whoever writes will say what is wrong.
        with contextlib.suppress(sqlite3.Error):
            more = self._chore is not None and self._connection is not None and self._chore(self._connection)
        self._chore_due = time.monotonic() + (_CHORE_PAUSE if more else _CHORE_EVERY)

    def _told(self, error: Exception) -> Exception:
        return self._file.failure(error) if isinstance(error, sqlite3.Error) else error


def _concerns_all(error: Exception) -> bool:
    """Whether it is the file's fault rather than one job's, as far as SQLite tells."""
    return isinstance(error, sqlite3.OperationalError) or type(error) is sqlite3.DatabaseError


def _tell(loop: asyncio.AbstractEventLoop, outcomes: list[tuple[_Job, Any]]) -> None:
    try:
        loop.call_soon_threadsafe(_settle, outcomes)
    except RuntimeError:  # the loop is closed: nobody waits any more
        return


def _settle(outcomes: list[tuple[_Job, Any]]) -> None:
    for job, result in outcomes:
        if job.outcome.done():
            continue
        if isinstance(result, Exception):
            job.outcome.set_exception(result)
        else:
            job.outcome.set_result(result)
