"""The archive on a PostgreSQL server."""

import asyncio
import re
from functools import lru_cache, partial
from typing import Final, TypeVar

from proxy.memory.archive.sql import Batch, BoundStatement, Rows, Steps, Transaction
from proxy.memory.errors import StoreError
from proxy.memory.stores.postgres_pool import Connection, Pool
from proxy.memory.stores.sql import Statement

T = TypeVar("T")
_PARAMETER: Final = re.compile(r"\$(\d+)")

# Nobody waits for it on a call but whoever searches, and leaves at the deadline.
_TIMEOUT: Final = 5.0
_CONNECTIONS: Final = 4
# A large table takes minutes, and no call waits for it.
_VACUUM: Final = 1800.0
_TABLES: Final = ("sessions", "cold", "turns", "passages", "vectors", "facts", "talks", "people")


class PostgresDatabase:
    """Each work is one transaction on a connection of the archive's own pool."""

    def __init__(self, url: str) -> None:
        self._pool = Pool(url, timeout=_TIMEOUT, size=_CONNECTIONS)
        # One at a time, or those who ask again would take all connections.
        self._scrubbing = asyncio.Lock()

    async def write(self, work: Transaction[T]) -> T:
        """As the protocol has it."""

        async def carry_out(connection: Connection) -> T:
            async with connection.transaction():
                return await _carried_out(work, connection)

        return await self._pool.run(carry_out)

    async def read(self, work: Transaction[T]) -> T:
        """As the protocol has it."""

        async def carry_out(connection: Connection) -> T:
            return await _carried_out(work, connection)

        return await self._pool.run(carry_out)

    async def read_inline(self, work: Transaction[T]) -> T:
        """As any reading."""
        return await self.read(work)

    def read_nowait(self, work: Transaction[T]) -> None:
        """A server is always waited for."""

    async def scrub(self) -> None:
        """Dead rows go from the tables and from the index; the server's own log is beyond our reach.

        It takes as long as the tables are large.
        """
        async with self._scrubbing:
            for table in _TABLES:
                await self._pool.run(partial(_vacuum, table), within=_VACUUM)

    async def ping(self) -> None:
        """As the protocol has it."""
        if await self._pool.run(_reads_only):
            raise StoreError("The archive takes no writes: it is a standby, or set to read only.")

    async def aclose(self) -> None:
        """As the protocol has it."""
        await self._pool.aclose()


async def _carried_out(work: Transaction[T], connection: Connection) -> T:
    steps: Steps[T] = work()
    try:
        step = next(steps)
        while True:
            step = steps.send(await _reply(step, connection))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def _reply(step: BoundStatement | Batch, connection: Connection) -> Rows | list[Rows]:
    """What stands beside one another comes in one round trip, each as an array of its rows."""
    if isinstance(step, BoundStatement):
        rows: Rows = await connection.fetch(step.statement.numbered, *_given(step))
        return rows
    sql = _side_by_side(*(ask.statement for ask in step.asks))
    return list(await connection.fetchrow(sql, *(value for ask in step.asks for value in _given(ask))))


def _given(ask: BoundStatement) -> list[object]:
    return ask.statement.in_order(ask.arguments)


@lru_cache(maxsize=64)
def _side_by_side(*statements: Statement) -> str:
    arrays, taken = list[str](), 0
    for statement in statements:
        sql = _PARAMETER.sub(partial(_moved, taken), statement.numbered)
        arrays.append(f"ARRAY(SELECT ROW(one.*) FROM ({sql}) one)")
        taken += len(statement.order)
    return f"SELECT {', '.join(arrays)}"


def _moved(by: int, parameter: re.Match[str]) -> str:
    return f"${int(parameter[1]) + by}"


async def _vacuum(table: str, connection: Connection) -> None:
    await connection.execute(f"VACUUM turnkeeper_{table}", timeout=_VACUUM)


async def _reads_only(connection: Connection) -> bool:
    return bool(await connection.fetchval("SHOW transaction_read_only") == "on")
