"""Connections to a PostgreSQL server that may be down, slow or empty, and reads that share a statement."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final, NoReturn, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg

from proxy.hostname import ADVICE, is_host_name
from proxy.memory.errors import StoreError
from proxy.memory.stores.postgres_tables import Connection, make_indexes, migrate
from proxy.memory.stores.sql import NAMED, Arguments, BoundStatement, Each, Statement
from proxy.memory.tasks import Tasks, retrieve_exception, wait_until_done

T = TypeVar("T")
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
_HOST: Final = re.compile(
    r"/.*|(?:\[[0-9A-Fa-f:.]+(?:%\w+)?\]|(?P<name>[^\s:\[\]@/]+))(?::(?P<port>[0-9]{1,5}))?"
)
_MAX_PORT: Final = 65535
_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_HOW: Final = (
    "write postgresql://user:password@host:port/database, and in a password %40 for '@', %3A for ':',"
    " %2F for '/', %3F for '?', %23 for '#', %5B for '[' and %25 for '%'"
)
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


class PostgresPool:
    """A few connections, opened when they are needed, and reopened after the server was unreachable.

    No command takes longer than ``timeout`` seconds. A caller may stop waiting earlier, and its command
    continues until it ends or times out. Raises ValueError for an address that cannot be parsed.
    """

    def __init__(self, url: str, *, timeout: float, size: int) -> None:
        self._url = checked_address(url)
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
            async with pool.acquire(timeout=self._timeout) as connection:
                return await work(connection)
        except FAILURES as error:
            raise _failure(error) from error

    async def _open(self) -> Any:
        """Brings the tables up to date, and returns asyncpg's pool."""
        try:
            direct, unindexed = await migrate(self._url, self._timeout)
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
            self._indexing = asyncio.create_task(make_indexes(self._url, self._timeout))
            self._indexing.add_done_callback(retrieve_exception)
        return pool


async def _keep_state(_connection: Connection) -> None:
    """Does nothing, which saves the round trip of asyncpg's own reset."""


def _succeeded(task: asyncio.Task[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _failure(error: BaseException) -> StoreError:
    """Returns an error without the address, which may contain a password."""
    if isinstance(error, TimeoutError):
        return StoreError("The memory database is too slow.")
    if isinstance(error, asyncpg.PostgresError):
        return StoreError(f"The memory database says: {error.sqlstate} {type(error).__name__}.")
    return StoreError(f"The memory database cannot be reached ({type(error).__name__}).")


def checked_address(url: str) -> str:
    """Returns an address if the driver can parse it; the driver would check it only when it connects.

    Raises ValueError, without the address, which may contain a password.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        _refuse(_HOW)
    before, at, hosts = parts.netloc.partition("@")
    if "@" in hosts or parts.fragment or (not at and "@" in parts.path + parts.query):
        _refuse(_HOW)
    _check_hosts(hosts if at else before)
    try:
        options = parse_qs(parts.query, strict_parsing=bool(parts.query))
    except ValueError:
        _refuse("its options are written name=value, with & between two")
    _check_hosts(options.get("host", [""])[-1])
    if not all(map(_is_port, options.get("port", ["5432"])[-1].split(","))):
        _refuse(f"a port is a number from 1 to {_MAX_PORT}")
    if options.get("sslmode", ["prefer"])[-1] not in _MODES:
        _refuse(f"sslmode is one of {', '.join(_MODES)}")
    return url


def _check_hosts(text: str) -> None:
    for host in text.split(",") if text else ():
        match = _HOST.fullmatch(host)
        if not match or not _is_port(match["port"] or "5432"):
            _refuse(_HOW)
        name = unquote(match["name"] or "/")  # a socket's path may be given as the host
        if not name.startswith("/") and not is_host_name(name):
            _refuse(ADVICE)


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < int(text[:6]) <= _MAX_PORT


def _refuse(why: str) -> NoReturn:
    raise ValueError(f"the address of PostgreSQL cannot be understood: {why}") from None


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
