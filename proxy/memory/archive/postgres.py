"""The archive's database on a PostgreSQL server."""

import asyncio
import contextlib
import re
from functools import lru_cache, partial
from typing import Any, Final, TypeVar

import asyncpg

from proxy.memory.archive.sql import Batch, BoundStatement, Each, Rows, Steps, Transaction
from proxy.memory.errors import StoreError
from proxy.memory.stores.postgres_pool import Pool, Work
from proxy.memory.stores.postgres_tables import Connection
from proxy.memory.stores.sql import NAMED, Statement

T = TypeVar("T")
_PARAMETER: Final = re.compile(r"\$(\d+)")

# On a call, only a search waits for the archive, and gives up at its deadline.
_TIMEOUT: Final = 5.0
_CONNECTIONS: Final = 4
# A large table takes minutes, and no call waits for it.
_VACUUM: Final = 1800.0
_DEADLOCKS: Final = 3
# The types of arguments that come in arrays.
_ARRAYS: Final = {
    "tenant": "bytea",
    "session": "bytea",
    "person": "bytea",
    "name": "bytea",
    "created": "double precision",
    "kind": "bigint",
    "life": "bigint",
    "turn": "bigint",
    "until": "bigint",
    "end": "bigint",
}
_TABLES: Final = (
    "sessions",
    "cold",
    "turns",
    "passages",
    "vectors",
    "facts",
    "talks",
    "people",
    "tombstones",
    "secrets",
)


class PostgresDatabase:
    """Runs each work in one transaction, on a connection of the archive's own pool."""

    def __init__(self, url: str) -> None:
        self._pool = Pool(url, timeout=_TIMEOUT, size=_CONNECTIONS)
        # One at a time, or repeated requests would take all connections.
        self._scrubbing = asyncio.Lock()

    async def write(self, work: Transaction[T]) -> T:
        """Run the steps in one transaction."""

        async def run(connection: Connection) -> T:
            async with connection.transaction():
                return await _run(work, connection)

        return await self._pool.run(partial(_until_no_deadlock, run))

    async def read(self, work: Transaction[T]) -> T:
        """Run the steps outside of a transaction."""

        async def run(connection: Connection) -> T:
            return await _run(work, connection)

        return await self._pool.run(partial(_until_no_deadlock, run))

    async def read_inline(self, work: Transaction[T]) -> T:
        """Run the steps like any others."""
        return await self.read(work)

    def read_nowait(self, work: Transaction[T]) -> None:
        """Return ``None``: a server is always waited for."""

    async def scrub(self) -> None:
        """Remove dead rows from tables and indexes, which takes as long as the tables are large.

        The server's own log is out of reach.
        """
        async with self._scrubbing:
            for table in _TABLES:

                async def vacuum(connection: Connection, table: str = table) -> None:
                    await connection.execute(f"VACUUM turnkeeper_{table}", timeout=_VACUUM)

                await self._pool.run(vacuum, within=_VACUUM)

    async def ping(self) -> None:
        """Return if a write would succeed now."""

        async def is_read_only(connection: Connection) -> bool:
            return bool(await connection.fetchval("SHOW transaction_read_only") == "on")

        if await self._pool.run(is_read_only):
            raise StoreError("The archive takes no writes: it is a standby, or set to read only.")

    async def aclose(self) -> None:
        """Close the pool."""
        await self._pool.aclose()


async def _until_no_deadlock(run: Work[T], connection: Connection) -> T:
    """The result of ``run``, which begins again where the server has ended it in favour of another."""
    for _ in range(_DEADLOCKS):
        with contextlib.suppress(asyncpg.DeadlockDetectedError):
            return await run(connection)
    return await run(connection)


async def _run(work: Transaction[T], connection: Connection) -> T:
    steps: Steps[T] = work()
    reply: list[Any] | None = None
    try:
        while True:
            step = steps.send(reply)
            if isinstance(step, Batch):
                # One round trip: each statement's rows come as an array.
                sql = _combined(*((one.statement, isinstance(one, Each)) for one in step.statements))
                values = [value for one in step.statements for value in _values(one)]
                arrays = await connection.fetchrow(sql, *values)
                reply = [*map(_reply, step.statements, arrays)]
            else:
                sql = _for_each(step.statement) if isinstance(step, Each) else step.statement.numbered
                reply = _reply(step, await connection.fetch(sql, *_values(step)))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def _values(step: BoundStatement | Each) -> list[Any]:
    """The arguments in the order of their numbers; of several rows a list for each."""
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
    """One statement for all rows of arguments, which come as arrays; its rows begin with their number."""
    inner = NAMED.sub(r'a."\1"', statement.named)
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
    """One statement that selects the rows of each as an array; with it whether it is for several rows."""
    arrays: list[str] = []
    offset = 0
    for statement, each in statements:
        text = _for_each(statement) if each else statement.numbered
        sql = _PARAMETER.sub(lambda found, by=offset: f"${int(found[1]) + by}", text)  # type: ignore[misc]
        arrays.append(f"ARRAY(SELECT ROW(one.*) FROM ({sql}) one)")
        offset += len(statement.order)
    return f"SELECT {', '.join(arrays)}"
