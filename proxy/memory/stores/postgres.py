"""Sessions in PostgreSQL, which several processes can share."""

import math
import time
from collections.abc import Sequence
from functools import partial
from typing import Final, cast

from proxy.clock import wall_time
from proxy.memory.errors import SessionDeleted, StoreError
from proxy.memory.stores import sql
from proxy.memory.stores.postgres_pool import Connection, PostgresPool, Reads
from proxy.memory.stores.sql import (
    Arguments,
    BoundStatement,
    Rows,
    SqlStore,
    Statement,
    key_arguments,
    sweep_arguments,
    taken_sessions,
)
from proxy.memory.stores.store import (
    BACKGROUND_DEADLINE,
    BlobWrite,
    DueSession,
    Key,
    Store,
    StoredBlob,
    draw_version,
)

TIMEOUT: Final = 0.2
"""The time-out in seconds of a command, and of an attempt to connect."""
_CONNECTIONS: Final = 8
_FEW_CONNECTIONS: Final = 4
_SWEEP_EVERY: Final = 60.0
_SWEPT_AT_ONCE: Final = 50
# During a backup, the index keeps all former due times of sessions. So it is read from a minute before the
# last look on, as clocks may differ, and as a whole every five minutes, for rows that other versions wrote.
_DUE_BEFORE: Final = 60.0
_ALL_DUE_EVERY: Final = 300.0
_LOCKED: Final = Statement(f"{sql.READ.named} FOR UPDATE")
# Sessions that another process is sweeping are left to it.
_SWEEP: Final = Statement(
    f"DELETE FROM turnkeeper_sessions WHERE id IN ({sql.EXPIRED.named} FOR UPDATE SKIP LOCKED) RETURNING id"
)
# Sessions that another process is taking are left to it.
_TAKE_DUE: Final = Statement(
    sql.TAKE_DUE.named.replace(sql.DUE.named, f"{sql.DUE.named} FOR UPDATE SKIP LOCKED")
)


def _with_cold(change: Statement) -> Statement:
    """Returns one statement that changes the hot part and appends to the cold part."""
    return Statement(
        f"WITH changed AS ({change.named} RETURNING id, cold), appended AS ("
        "INSERT INTO turnkeeper_cold (session_id, position, blob)"
        " SELECT changed.id, changed.cold - :count::bigint + added.ordinality - 1, added.entry"
        " FROM changed, unnest(:entries::bytea[]) WITH ORDINALITY AS added (entry, ordinality)"
        ") SELECT id FROM changed"
    )


_CREATE: Final = _with_cold(sql.CREATE)
_REPLACE: Final = _with_cold(sql.REPLACE)


def open(url: str, *, deadline: float) -> Store:  # noqa: A001 - what every driver's entry is called
    """Returns the store at ``postgresql://…``; ``search_path`` sets its schema. Raises ValueError."""
    return PostgresStore(url, deadline=deadline)


class PostgresStore(SqlStore):
    """A store with one round trip for each read and each write. Versions are random, as in ``SqliteStore``.

    Commands have a time-out of ``TIMEOUT`` seconds, or of the deadline if that is longer. Calls stop waiting
    for a read at the deadline, but not for a write. A store for background work has fewer connections.
    """

    def __init__(self, url: str, *, deadline: float) -> None:
        self._deadline = deadline
        size = _CONNECTIONS if deadline < BACKGROUND_DEADLINE else _FEW_CONNECTIONS
        self._pool = PostgresPool(url, timeout=max(TIMEOUT, deadline), size=size)
        self.calls = Reads(self._pool)
        """The reads of calls."""
        self._sweep_due = time.monotonic() + _SWEEP_EVERY
        self._due_since = 0.0
        self._all_due_at = 0.0

    async def read(self, key: Key, *, background: bool = False) -> StoredBlob | None:
        """Reads the hot part; a call stops waiting at the deadline."""
        step = BoundStatement(sql.READ, key_arguments(key) | {"now": wall_time()})
        (rows,) = await self.calls.fetch(step, within=None if background else self._deadline)
        return StoredBlob(*rows[0]) if rows else None

    async def write(self, key: Key, put: BlobWrite) -> bool:
        """Writes both parts; an expired session in the way costs further round trips."""
        arguments = _arguments(key, put)
        if time.monotonic() >= self._sweep_due:
            self._sweep_due = time.monotonic() + _SWEEP_EVERY
            self._pool.begin(_sweep)
        if await self.fetch(_REPLACE if put.version else _CREATE, arguments):
            return True
        if await self.fetch(sql.ERASED_SINCE, arguments):
            raise SessionDeleted("The session was deleted.")
        return put.version == 0 and await self._pool.run(partial(_create_anew, arguments))

    async def replace(self, key: Key, put: BlobWrite) -> bool:
        """Replaces both parts, in several round trips."""
        arguments = _arguments(key, put._replace(at=math.inf))
        if put.version == 0:
            return await self._pool.run(partial(_create_anew, arguments))

        async def work(connection: Connection) -> bool:
            return bool((await _execute(connection, arguments, sql.EMPTY, sql.CLEAR, _REPLACE))[-1])

        return await self._pool.run(work)

    async def delete(self, key: Key) -> bool:
        """Removes the session and leaves a tombstone, in several round trips; whether there was a session."""
        arguments = key_arguments(key) | {"blob": b""}

        async def work(connection: Connection) -> bool:
            rows, *_ = await _execute(connection, arguments, _LOCKED, sql.TOMBSTONE, sql.EXPIRE_COLD)
            return bool(rows)

        return await self._pool.run(work)

    async def deleted(self, key: Key) -> float | None:
        """Returns when the session was deleted last, in seconds since 1970; ``None`` without a tombstone."""
        rows = await self.fetch(sql.STATE, key_arguments(key))
        return float(rows[0][1]) if rows and rows[0][1] > 0 else None

    async def take_due(
        self,
        tenants: Sequence[str],  # noqa: ARG002 - the column's default makes rows of older versions due
        *,
        limit: int,
        lease: float,
    ) -> Sequence[DueSession]:
        """Takes sessions that are due, in one statement."""
        now, is_whole = wall_time(), time.monotonic() >= self._all_due_at
        if is_whole:
            self._all_due_at = time.monotonic() + _ALL_DUE_EVERY
        since = 0.0 if is_whole else min(self._due_since, now - _DUE_BEFORE)
        until = now + lease
        rows = await self.fetch(_TAKE_DUE, {"since": since, "limit": limit, "until": until})
        if len(rows) < limit:
            self._due_since = now - _DUE_BEFORE
        elif is_whole:
            self._all_due_at = 0.0
        return taken_sessions(rows, until)

    async def ping(self) -> None:
        """Returns if a turn could be written now. Raises StoreError for a standby or a read-only server."""

        async def reads_only(connection: Connection) -> bool:
            return cast("str", await connection.fetchval("SHOW transaction_read_only")) == "on"

        if await self._pool.run(reads_only):
            raise StoreError("The memory database accepts no writes: it is a standby, or read-only.")

    async def aclose(self) -> None:
        """Closes all connections."""
        await self._pool.aclose()

    async def fetch(self, statement: Statement, arguments: Arguments) -> Rows:
        """Returns the rows of a statement."""
        values = statement.in_order({**arguments, "now": wall_time()})

        async def work(connection: Connection) -> Rows:
            return cast("Rows", await connection.fetch(statement.numbered, *values))

        return await self._pool.run(work)


def _arguments(key: Key, put: BlobWrite) -> dict[str, object]:
    return key_arguments(key) | {
        "blob": put.blob,
        "version": put.version,
        "fresh": put.new_version or draw_version(),
        "expires": wall_time() + put.ttl,
        "count": len(put.cold),
        "entries": list(put.cold),
        "at": put.at,
        "due": max(put.due, wall_time()),
    }


async def _create_anew(arguments: Arguments, connection: Connection) -> bool:
    """Creates a session in the place of an expired one; false if there is one that has not expired."""
    return bool((await _execute(connection, arguments, sql.EXPIRE, sql.EXPIRE_COLD, _CREATE))[-1])


async def _execute(connection: Connection, arguments: Arguments, *statements: Statement) -> list[Rows]:
    """Executes statements in one transaction, and returns the rows of each."""
    values = {**arguments, "now": wall_time()}
    async with connection.transaction():
        return [await connection.fetch(each.numbered, *each.in_order(values)) for each in statements]


async def _sweep(connection: Connection) -> None:
    """Removes expired sessions, a few at a time."""
    while True:
        values = _SWEEP.in_order(sweep_arguments(_SWEPT_AT_ONCE))
        if len(await connection.fetch(_SWEEP.numbered, *values)) < _SWEPT_AT_ONCE:
            return
