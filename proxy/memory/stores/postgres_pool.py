"""Connections to a PostgreSQL server that may be down, slow or empty, and reads that share a statement.

Tables are created and migrated while other servers use them. Each migration is its own transaction, which
gives up if it does not get a lock at once. Indexes are created and dropped concurrently, by one process, once
the tables can be used.
"""

import asyncio
import contextlib
import logging
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final, TypeVar

import asyncpg
import msgspec

from proxy.circuit import Backoff
from proxy.memory.errors import StoreError
from proxy.memory.stores.addresses import checked_postgres_address
from proxy.memory.stores.sql import (
    APPLIED,
    INDEXING,
    LEDGER_TABLE,
    NAMED,
    Arguments,
    BoundStatement,
    Each,
    Statement,
    Types,
    migration_statements,
    pending_migrations,
)
from proxy.memory.tasks import Tasks, retrieve_exception, wait_until_done

T = TypeVar("T")
Connection = Any  # asyncpg has no type hints
Work = Callable[[Connection], Awaitable[T]]
Rows = list[tuple[Any, ...]]
_Batch = dict[Statement, list[Arguments]]

_STATEMENTS: Final = 100
# By this time callers have stopped waiting, and a server that works has answered.
_CLOSING: Final = 0.4
FAILURES: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)
"""The errors of a server that is unreachable, slow or unwilling."""
# Raised on connecting, when the environment or a service file adds something invalid to the address.
_UNREADABLE: Final = (ValueError, IndexError, OverflowError)
_PARAMETER: Final = re.compile(r"\$(\d+)")
# The types of arguments that are passed as arrays.
_ARRAYS: Final = {
    "tenant": "bytea",
    "session": "bytea",
    "person": "bytea",
    "name": "bytea",
    "created": "double precision",
    "now": "double precision",
    "kind": "bigint",
    "life": "bigint",
    "turn": "bigint",
    "until": "bigint",
    "end": "bigint",
}
_log: Final = logging.getLogger(__name__)


class PostgresPool:
    """A few connections, opened when they are needed, and reopened after the server was unreachable.

    No command takes longer than ``timeout`` seconds. A caller may stop waiting earlier, and its command
    continues until it ends or times out. Raises ValueError for an address that cannot be parsed.
    """

    def __init__(self, url: str, *, timeout: float, size: int) -> None:
        self._url = checked_postgres_address(url)
        self._timeout = timeout
        self._size = size
        self._tasks = Tasks()
        self._opening: asyncio.Task[Any] | None = None
        self._indexing: asyncio.Task[None] | None = None
        self._closed = False

    async def run(self, work: Work[T], within: float | None = None) -> T:
        """Returns the result of ``work`` with a connection to a database whose tables are up to date.

        Raises StoreError, after ``within`` seconds at the latest if given.
        """
        return await self.result(self.begin(work), within)

    def begin(self, work: Work[T]) -> asyncio.Task[T]:
        """Starts ``work`` in a task, and returns that. Raises StoreError if the pool is closed."""
        if self._closed:
            raise StoreError("The memory has been closed.")
        return self._start(self._carry_out(work))

    async def result(self, task: asyncio.Task[T], within: float | None = None) -> T:
        """Returns the result of a task from ``begin``. Raises what ``run`` raises."""
        if not await wait_until_done(task, within or self._timeout):
            raise StoreError("The memory database is too slow.")
        if isinstance(error := task.exception(), StoreError):
            # A copy: the task's own would refer to the frames that refer to the task, and to what was sent.
            raise _copied(error) from error.__cause__
        return task.result()

    async def aclose(self) -> None:
        """Closes all connections once the commands in flight have ended; cancels those that take too long."""
        self._closed = True
        if self._indexing:
            self._indexing.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=min(4 * self._timeout, _CLOSING))
        for task in tuple(self._tasks):
            task.cancel()
        if self._opening is not None and _succeeded(self._opening):
            self._opening.result().terminate()

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = self._tasks.start(work)
        task.add_done_callback(retrieve_exception)
        return task

    async def _carry_out(self, work: Work[T]) -> T:
        try:
            if self._opening is None or (self._opening.done() and not _succeeded(self._opening)):
                self._opening = self._start(self._open())
            pool = await asyncio.shield(self._opening)
            connection = await pool.acquire(timeout=self._timeout)
            try:
                return await work(connection)
            finally:
                self._start(pool.release(connection))  # this takes several rounds of the loop
        except FAILURES as error:
            # For the same reason: its frames include some of asyncpg's that refer to it.
            error.__traceback__ = None
            raise _failure(error) from error

    async def _open(self) -> Any:
        """Brings the tables up to date, and returns asyncpg's pool."""
        try:
            direct, unindexed = await _migrate(self._url, self._timeout)
        except _UNREADABLE:
            raise StoreError("The address of the memory database cannot be understood.") from None
        # Connections need no reset, because nothing is set in a session that would have to be undone.
        pool = asyncpg.create_pool(
            self._url,
            min_size=0,
            max_size=self._size,
            timeout=self._timeout,
            command_timeout=self._timeout,
            # Behind a pooler, prepared statements may be unknown, or another process's of the same name.
            statement_cache_size=_STATEMENTS if direct else 0,
            reset=_keep_state,
        )
        await pool
        try:
            # Opens half of the connections, or as many as the server allows: calls come several at once.
            acquiring = (pool.acquire(timeout=self._timeout) for _ in range(-(-self._size // 2)))
            for connection in await asyncio.gather(*acquiring, return_exceptions=True):
                if not isinstance(connection, BaseException):
                    await pool.release(connection)
        except BaseException:
            pool.terminate()
            raise
        if unindexed and not self._closed:
            self._indexing = asyncio.create_task(_make_all_indexes(self._url, self._timeout))
            self._indexing.add_done_callback(retrieve_exception)
        return pool


async def _keep_state(_connection: Connection) -> None:
    """Does nothing, which saves the round trip of asyncpg's own reset."""


def _succeeded(task: asyncio.Task[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _copied(error: StoreError) -> StoreError:
    copy = type(error).__new__(type(error), *error.args)
    copy.__dict__.update(error.__dict__)
    return copy


def _failure(error: BaseException) -> StoreError:
    """Returns an error without the address, which may contain a password."""
    if isinstance(error, TimeoutError):
        return StoreError("The memory database is too slow.")
    if isinstance(error, asyncpg.PostgresError):
        return StoreError(f"The memory database says: {error.sqlstate} {type(error).__name__}.")
    return StoreError(f"The memory database cannot be reached ({type(error).__name__}).")


# --- tables

TYPES: Final = Types(
    identity="BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    number="BIGINT",
    real="DOUBLE PRECISION",
    blob="BYTEA",
    index=(
        (
            "CREATE INDEX turnkeeper_index ON turnkeeper_passages"
            " USING gin (array_to_tsvector(string_to_array(terms, ' ')))"
        ),
    ),
)
_IN_USE: Final = msgspec.structs.replace(TYPES, concurrently=" CONCURRENTLY")
# Another process may be migrating for longer; then a later command tries again.
_MIGRATION_WAIT: Final = 30.0
# A large table takes many minutes, and no call waits for it. To give up would restart it again and again.
_MIGRATING: Final = 6 * 3600.0
_ALONE: Final = "SELECT pg_backend_pid() FROM pg_advisory_xact_lock($1)"
# A number that no other program is likely to use: the letters "turnkeep"; the next one is for indexes.
_MIGRATION_LOCK: Final = int.from_bytes(b"turnkeep", "big")
# Returns a row if it gets the lock. A statement with arguments would keep its snapshot until the next one,
# and a statement that waits for the lock would have a snapshot, too.
_ALONE_WITH_INDEXES: Final = f"SELECT 1 WHERE pg_try_advisory_xact_lock({_MIGRATION_LOCK + 1})"
# All other users of a table wait behind a statement that waits for its lock.
_LOCK_TIMEOUT: Final = "SET LOCAL lock_timeout = '100ms'"
_LOCK_PAUSE: Final = 1.0
# The connection with the lock is idle while indexes are created over another one. At another isolation level
# it would have a snapshot, and an index waits for all older snapshots.
_BEGIN: Final = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL idle_in_transaction_session_timeout = 0"
_INDEX: Final = re.compile(r"CREATE INDEX CONCURRENTLY IF NOT EXISTS (\w+)")
# An unfinished index, and whether a process of the server still builds it, though its client has gone.
_UNFINISHED: Final = """SELECT EXISTS (
    SELECT FROM pg_stat_progress_create_index p WHERE p.index_relid = i.indexrelid
) FROM pg_index i WHERE i.indexrelid = to_regclass($1) AND NOT i.indisvalid"""
_INDEXED_ELSEWHERE: Final = 5.0
_INDEXING_AGAIN: Final = Backoff(5.0, 600.0)


async def _migrate(url: str, within: float) -> tuple[bool, bool]:
    """Migrates the tables; returns whether the connection is direct, and whether indexes are missing.

    It is not direct behind a pooler such as PgBouncer, which shows clients its own process number and may
    switch to another connection to the server.
    """
    connection = await _connect(url, within, command_timeout=within)
    try:
        process, unindexed = await _migrate_tables(connection)
        return process == int(connection.get_server_pid()), unindexed
    finally:
        connection.terminate()


async def _make_all_indexes(url: str, within: float) -> None:
    """Creates and drops indexes until none is pending; waits while another process does so."""
    failures = 0
    while True:
        try:
            if await _make_indexes(url, within):
                return
            pause = _INDEXED_ELSEWHERE
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
            failures += 1
            pause = _INDEXING_AGAIN.pause(failures)
            reason = getattr(error, "sqlstate", "") or type(error).__name__
            _log.warning("An index of the database cannot be made (%s); again in %.0f s", reason, pause)
        await asyncio.sleep(pause)


async def _make_indexes(url: str, within: float) -> bool:
    """Creates and drops the pending indexes; returns whether none is left.

    It is false while another process does so, or the server still builds one for a client that has gone.
    """
    with contextlib.ExitStack() as stack:
        lock = await _connect(url, within, command_timeout=_MIGRATION_WAIT)
        stack.callback(lock.terminate)
        await lock.execute(_BEGIN)
        if await lock.execute(_ALONE_WITH_INDEXES) != "SELECT 1":
            return False
        connection = await _connect(url, within, command_timeout=_MIGRATION_WAIT)
        stack.callback(connection.terminate)
        for migration in pending_migrations(await _applied(connection)):
            for statement in migration_statements(migration, _IN_USE):
                if index := _INDEX.match(statement):
                    unfinished = await connection.fetch(_UNFINISHED, index[1])
                    if any(is_going_on for (is_going_on,) in unfinished):
                        return False
                    if unfinished:
                        await connection.execute(f"DROP INDEX CONCURRENTLY {index[1]}", timeout=_MIGRATING)
                await connection.execute(statement, timeout=_MIGRATING)
            _log.info("The database's indexes are brought up to date: %s", migration.__name__)
        return True


async def _connect(url: str, within: float, *, command_timeout: float) -> Connection:
    return await asyncpg.connect(url, timeout=within, command_timeout=command_timeout, statement_cache_size=0)


async def _migrate_tables(connection: Connection) -> tuple[int, bool]:
    """Migrates the tables; returns the server's process id, and whether indexes are still missing."""
    while True:
        try:
            async with connection.transaction():
                process = await connection.fetchval(_ALONE, _MIGRATION_LOCK, timeout=_MIGRATION_WAIT)
                await connection.execute(LEDGER_TABLE, timeout=_MIGRATION_WAIT)
                applied = await _applied(connection)
                pending = pending_migrations(applied)
                # A new database gets all migrations at once, and one in use gets them one after the other.
                due = [one for one in pending if one not in INDEXING][:1] if applied else pending
                if applied and due:
                    await connection.execute(_LOCK_TIMEOUT)
                for migration in due:
                    for statement in migration_statements(migration, TYPES):
                        await connection.execute(statement, timeout=_MIGRATING)
        except asyncpg.LockNotAvailableError:
            await asyncio.sleep(_LOCK_PAUSE)
            raise
        if not due or not applied:
            return int(process), bool(applied and pending)


async def _applied(connection: Connection) -> list[str]:
    return [row["name"] for row in await connection.fetch(APPLIED, timeout=_MIGRATION_WAIT)]


# --- reads


class Reads:
    """Reads of a few rows by their keys; reads that wait for a connection together share one statement."""

    def __init__(self, pool: PostgresPool) -> None:
        self._pool = pool
        self._batch: _Batch = {}
        self._task: asyncio.Task[Mapping[Statement, Sequence[Rows]]] | None = None

    async def fetch(self, *steps: BoundStatement | Each, within: float | None = None) -> list[Any]:
        """Returns the rows of each step. Raises StoreError, after ``within`` seconds at the latest."""
        if self._task is None or self._task.done():
            self._batch = {}
            self._task = self._pool.begin(partial(self._carry_out, self._batch))
        places = []
        for step in steps:
            rows = self._batch.setdefault(step.statement, [])
            own = step.rows if isinstance(step, Each) else (step.arguments,)
            places.append(slice(len(rows), len(rows) + len(own)) if isinstance(step, Each) else len(rows))
            rows += own
        replies = await self._pool.result(self._task, within)
        return [replies[step.statement][place] for step, place in zip(steps, places, strict=True)]

    async def _carry_out(self, batch: _Batch, connection: Connection) -> Mapping[Statement, Sequence[Rows]]:
        self._task = None  # later reads are the next batch
        steps = [
            Each(statement, rows) if len(rows) > 1 else BoundStatement(statement, rows[0])
            for statement, rows in batch.items()
        ]
        replies = await fetch_all(connection, steps)
        return {
            step.statement: reply if isinstance(step, Each) else [reply]
            for step, reply in zip(steps, replies, strict=True)
        }


async def fetch_all(connection: Connection, steps: Sequence[BoundStatement | Each]) -> list[Any]:
    """Returns the rows of each step, which it reads in one round trip."""
    values = [value for step in steps for value in _values(step)]
    if len(steps) == 1:
        (step,) = steps
        sql = _for_each(step.statement) if isinstance(step, Each) else step.statement.numbered
        return [_reply(step, await connection.fetch(sql, *values))]
    # The rows of each step come as an array.
    sql = _combined(*((step.statement, isinstance(step, Each)) for step in steps))
    return [*map(_reply, steps, await connection.fetchrow(sql, *values))]


def _values(step: BoundStatement | Each) -> Sequence[Any]:
    """Returns the arguments in the order of their numbers; for several rows, a list for each argument."""
    if isinstance(step, Each):
        return [[row[name] for row in step.rows] for name in step.statement.order]
    return step.statement.in_order(step.arguments)


def _reply(step: BoundStatement | Each, rows: list[Any]) -> list[Any]:
    if not isinstance(step, Each):
        return rows
    replies: list[Rows] = [[] for _ in step.rows]
    for number, *row in rows:
        replies[number - 1].append(tuple(row))
    return replies


@lru_cache(maxsize=64)
def _for_each(statement: Statement) -> str:
    """Returns a statement for rows of arguments, passed as arrays; its rows begin with their row's number."""
    inner = NAMED.sub(r'a."\1"', statement.postgres)
    arrays = ", ".join(
        f"CAST(${number} AS {_ARRAYS[name]}[])" for number, name in enumerate(statement.order, 1)
    )
    names = ", ".join(f'"{name}"' for name in statement.order)
    return (
        f"SELECT a.number, one.* FROM unnest({arrays}) WITH ORDINALITY AS a ({names}, number),"
        f" LATERAL ({inner}) one"
    )


@lru_cache(maxsize=64)
def _combined(*statements: tuple[Statement, bool]) -> str:
    """Returns a statement that selects an array for each statement; the flag marks those for several rows."""
    arrays: list[str] = []
    offset = 0
    for statement, each in statements:
        text = _for_each(statement) if each else statement.numbered
        sql = _PARAMETER.sub(lambda found, by=offset: f"${int(found[1]) + by}", text)  # type: ignore[misc]
        arrays.append(f"ARRAY(SELECT ROW(one.*) FROM ({sql}) one)")
        offset += len(statement.order)
    return f"SELECT {', '.join(arrays)}"
