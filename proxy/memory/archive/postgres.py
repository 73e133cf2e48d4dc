"""The archive's database on a PostgreSQL server."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import asyncpg

from proxy.memory.archive.sql import Steps, Transaction
from proxy.memory.errors import StoreError
from proxy.memory.stores.postgres import PostgresStore
from proxy.memory.stores.postgres_pool import Connection, PostgresPool, Reads, Work, fetch_all
from proxy.memory.stores.sql import Arguments, BoundStatement, Each, Statement

T = TypeVar("T")
_Fetch = Callable[[Sequence[BoundStatement | Each]], Awaitable[list[Any]]]

# During a call only a search waits for the archive, until its own deadline.
_TIMEOUT: Final = 5.0
_CONNECTIONS: Final = 4
# Vacuuming a large table takes minutes; no call waits for it.
_VACUUM: Final = 1800.0
_DEADLOCKS: Final = 3
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
    """Runs work on connections of the archive's own pool; each write is one transaction.

    Reads of calls are batched with those of ``sessions``, if that is in the same database.
    """

    def __init__(self, url: str, sessions: PostgresStore | None = None) -> None:
        self._pool = PostgresPool(url, timeout=_TIMEOUT, size=_CONNECTIONS)
        self._calls = sessions.calls if sessions else Reads(self._pool)
        # One at a time, or repeated requests would take all connections.
        self._scrubbing = asyncio.Lock()

    async def write(self, work: Transaction[T]) -> T:
        """Runs the steps in one transaction, and again after a deadlock."""

        async def run(connection: Connection) -> T:
            async with connection.transaction():
                return await _run(work, partial(fetch_all, connection))

        return await self._pool.run(partial(_until_no_deadlock, run))

    async def read(self, work: Transaction[T]) -> T:
        """Runs the steps outside of a transaction."""

        async def run(connection: Connection) -> T:
            return await _run(work, partial(fetch_all, connection))

        return await self._pool.run(partial(_until_no_deadlock, run))

    async def read_inline(self, work: Transaction[T]) -> T:
        """Runs the steps together with other reads of calls; on failure, like ``read``."""

        async def fetch(steps: Sequence[BoundStatement | Each]) -> list[Any]:
            return await self._calls.fetch(*steps)

        with contextlib.suppress(StoreError):
            return await _run(work, fetch)
        return await self.read(work)

    def rows_nowait(self, statement: Statement, arguments: Arguments) -> None:
        """Returns ``None``, because reading from a server always waits."""

    async def scrub(self) -> None:
        """Removes dead rows from tables and indexes, in a time that grows with the tables.

        The server's write-ahead log cannot be cleared.
        """
        async with self._scrubbing:
            for table in _TABLES:

                async def vacuum(connection: Connection, table: str = table) -> None:
                    await connection.execute(f"VACUUM turnkeeper_{table}", timeout=_VACUUM)

                await self._pool.run(vacuum, within=_VACUUM)

    async def ping(self) -> None:
        """Returns if a write would succeed now; else raises StoreError."""

        async def is_read_only(connection: Connection) -> bool:
            return bool(await connection.fetchval("SHOW transaction_read_only") == "on")

        if await self._pool.run(is_read_only):
            raise StoreError("The archive accepts no writes: it is a standby, or read-only.")

    async def aclose(self) -> None:
        """Closes the pool."""
        await self._pool.aclose()


async def _until_no_deadlock(run: Work[T], connection: Connection) -> T:
    """Returns the result of ``run``, which is repeated up to three times after a deadlock."""
    for _ in range(_DEADLOCKS):
        with contextlib.suppress(asyncpg.DeadlockDetectedError):
            return await run(connection)
    return await run(connection)


async def _run(work: Transaction[T], fetch: _Fetch) -> T:
    steps: Steps[T] = work()
    reply: Any = None
    try:
        while True:
            reply = await fetch(steps.send(reply))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
