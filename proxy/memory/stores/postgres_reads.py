"""Reads of PostgreSQL in few statements: several at once, and those of several readers."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final

from proxy.memory.stores.postgres_pool import Pool
from proxy.memory.stores.postgres_tables import Connection
from proxy.memory.stores.sql import NAMED, Arguments, BoundStatement, Each, Statement

Rows = list[tuple[Any, ...]]
_PARAMETER: Final = re.compile(r"\$(\d+)")
# The types of arguments that come in arrays.
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
_Batch = dict[Statement, list[Arguments]]


class Reads:
    """Reads of a few rows by their keys; those that wait for a connection together are one statement."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._batch: _Batch = {}
        self._task: asyncio.Task[Mapping[Statement, Sequence[Rows]]] | None = None

    async def fetch(self, *steps: BoundStatement | Each, within: float | None = None) -> list[Any]:
        """What each step gets. Raises StoreError, after ``within`` seconds at the latest if given."""
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
        self._task = None  # what is read from now on is none of it
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
    """What each step gets, in one round trip."""
    values = [value for step in steps for value in _values(step)]
    if len(steps) == 1:
        (step,) = steps
        sql = _for_each(step.statement) if isinstance(step, Each) else step.statement.numbered
        return [_reply(step, await connection.fetch(sql, *values))]
    # The rows of each come as an array.
    sql = _combined(*((step.statement, isinstance(step, Each)) for step in steps))
    return [*map(_reply, steps, await connection.fetchrow(sql, *values))]


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
