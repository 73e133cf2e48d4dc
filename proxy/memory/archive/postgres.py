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
from proxy.memory.stores.postgres_pool import PostgresPool, Reads, Work, fetch_all
from proxy.memory.stores.postgres_tables import Connection
from proxy.memory.stores.sql import Arguments, BoundStatement, Each, Statement

T = TypeVar("T")
_Fetch = Callable[[Sequence[BoundStatement | Each]], Awaitable[list[Any]]]

# On a call, only a search waits for the archive, and gives up at its deadline.
_TIMEOUT: Final = 5.0
_CONNECTIONS: Final = 4
# A large table takes minutes, and no call waits for it.
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
    """Runs each work in one transaction, on a connection of the archive's own pool.

    What calls read goes with the reads of ``sessions``, where these are in the same database.
    """

    def __init__(self, url: str, sessions: PostgresStore | None = None) -> None:
        self._pool = PostgresPool(url, timeout=_TIMEOUT, size=_CONNECTIONS)
        self._calls = sessions.calls if sessions else Reads(self._pool)
        # One at a time, or repeated requests would take all connections.
        self._scrubbing = asyncio.Lock()

    async def write(self, work: Transaction[T]) -> T:
        """Run the steps in one transaction."""

        async def run(connection: Connection) -> T:
            async with connection.transaction():
                return await _run(work, partial(fetch_all, connection))

        return await self._pool.run(partial(_until_no_deadlock, run))

    async def read(self, work: Transaction[T]) -> T:
        """Run the steps outside of a transaction."""

        async def run(connection: Connection) -> T:
            return await _run(work, partial(fetch_all, connection))

        return await self._pool.run(partial(_until_no_deadlock, run))

    async def read_inline(self, work: Transaction[T]) -> T:
        """Run the steps with what else calls read; what fails there is read with the archive's patience."""

        async def fetch(steps: Sequence[BoundStatement | Each]) -> list[Any]:
            return await self._calls.fetch(*steps)

        with contextlib.suppress(StoreError):
            return await _run(work, fetch)
        return await self.read(work)

    def rows_nowait(self, statement: Statement, arguments: Arguments) -> None:
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


async def _run(work: Transaction[T], fetch: _Fetch) -> T:
    steps: Steps[T] = work()
    reply: Any = None
    try:
        while True:
            reply = await fetch(steps.send(reply))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
