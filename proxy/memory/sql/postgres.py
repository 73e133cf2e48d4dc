"""Sessions in PostgreSQL: for several processes that share them."""

import secrets
import time
from collections.abc import Sequence
from typing import Any, Final, cast

from proxy.memory.sql.pool import Connection, Pool
from proxy.memory.sql.statement import (
    CLEAR,
    COLD,
    CREATE,
    DELETE,
    DUE,
    EMPTY,
    EXPIRE,
    LIST,
    READ,
    REPLACE,
    Arguments,
    Statement,
    shown,
    stored,
    whose,
)
from proxy.memory.store import Held, Key, Listed, Store, StoreError

Rows = list[Any]

TIMEOUT: Final = 0.2
"""Seconds after which a command, or a connection that does not stand yet, is given up."""

_VERSION_BITS: Final = 53
_SWEEP_EVERY: Final = 60.0
_SWEPT_AT_ONCE: Final = 50


def _with_cold(change: Statement) -> Statement:
    """A change of the hot part that appends to the cold part as well, as one statement."""
    return Statement(
        f"WITH changed AS ({change.named} RETURNING id, cold), appended AS ("
        "INSERT INTO turnkeeper_cold (session_id, position, blob)"
        " SELECT changed.id, changed.cold - :count::bigint + added.ordinality - 1, added.entry"
        " FROM changed, unnest(:entries::bytea[]) WITH ORDINALITY AS added (entry, ordinality)"
        ") SELECT id FROM changed"
    )


_CREATE: Final = _with_cold(CREATE)
_REPLACE: Final = _with_cold(REPLACE)
# Whom another process is about to sweep is left to it.
_SWEEP: Final = Statement(
    f"DELETE FROM turnkeeper_sessions WHERE id IN ({DUE.named} FOR UPDATE SKIP LOCKED) RETURNING id"
)


def open(url: str, *, deadline: float) -> Store:  # noqa: A001 - what every driver's entry is called
    """The store at ``postgresql://…``; ``search_path`` among the address's options names another schema.

    Commands have ``TIMEOUT`` seconds, or the deadline where that is longer: a write may take its time, and
    whoever reads on a call's behalf leaves at the deadline.
    """
    return PostgresStore(url, timeout=max(TIMEOUT, deadline))


class PostgresStore:
    """One round trip for each read and each write. Versions are drawn at random, as SqliteStore's are."""

    def __init__(self, url: str, *, timeout: float = TIMEOUT) -> None:
        self._pool = Pool(url, timeout=timeout)
        self._sweep_due = time.monotonic() + _SWEEP_EVERY

    async def read(self, key: Key) -> Held | None:
        """As the protocol has it."""
        rows = await self._fetch(READ, whose(key))
        return Held(*rows[0]) if rows else None

    async def write(
        self, key: Key, blob: bytes, *, version: int, ttl: float, cold: Sequence[bytes] = ()
    ) -> bool:
        """As the protocol has it; what has expired is taken away first, in a round trip of its own."""
        arguments = _arguments(key, blob, version, ttl, cold)
        self._sweep()
        if version != 0:
            return bool(await self._fetch(_REPLACE, arguments))
        if await self._fetch(_CREATE, arguments):
            return True
        await self._fetch(EXPIRE, arguments)
        return bool(await self._fetch(_CREATE, arguments))

    async def replace(
        self, key: Key, blob: bytes, *, version: int, ttl: float, cold: Sequence[bytes]
    ) -> bool:
        """As the protocol has it, in several round trips."""
        if version == 0:
            return await self.write(key, blob, version=0, ttl=ttl, cold=cold)
        arguments = _arguments(key, blob, version, ttl, cold) | {"now": time.time()}

        async def work(connection: Connection) -> bool:
            async with connection.transaction():
                for statement in (EMPTY, CLEAR):
                    await connection.execute(statement.numbered, *statement.in_order(arguments))
                return bool(await connection.fetch(_REPLACE.numbered, *_REPLACE.in_order(arguments)))

        return await self._pool.run(work)

    async def cold(self, key: Key, *, start: int = 0, limit: int = 1000) -> list[bytes]:
        """As the protocol has it."""
        rows = await self._fetch(COLD, {**whose(key), "start": start, "limit": limit})
        return [row[0] for row in rows]

    async def delete(self, key: Key) -> bool:
        """As the protocol has it."""
        await self._fetch(EXPIRE, whose(key))
        return await self._count(DELETE, whose(key)) > 0

    async def list(self, tenant: str, *, after: str = "", limit: int = 100) -> list[Listed]:
        """As the protocol has it, in the order of code points, whatever the database's collation is."""
        rows = await self._fetch(LIST, {"tenant": stored(tenant), "after": stored(after), "limit": limit})
        return [Listed(shown(session), updated, size) for session, updated, size in rows]

    async def ping(self) -> None:
        """A standby, or a server set to read only, could not take a turn."""
        if await self._pool.run(_reads_only):
            raise StoreError("The memory database takes no writes: it is a standby, or set to read only.")

    async def aclose(self) -> None:
        """As the protocol has it."""
        await self._pool.aclose()

    async def _fetch(self, statement: Statement, arguments: Arguments) -> Rows:
        given = statement.in_order({**arguments, "now": time.time()})

        async def work(connection: Connection) -> Rows:
            return cast("Rows", await connection.fetch(statement.numbered, *given))

        return await self._pool.run(work)

    async def _count(self, statement: Statement, arguments: Arguments) -> int:
        """How many rows were changed."""

        async def work(connection: Connection) -> int:
            status = await connection.execute(statement.numbered, *statement.in_order(arguments))
            return int(status.split()[-1])

        return await self._pool.run(work)

    def _sweep(self) -> None:
        if time.monotonic() >= self._sweep_due:
            self._sweep_due = time.monotonic() + _SWEEP_EVERY
            self._pool.start(_swept)


def _arguments(key: Key, blob: bytes, version: int, ttl: float, cold: Sequence[bytes]) -> dict[str, object]:
    return whose(key) | {
        "blob": blob,
        "version": version,
        "fresh": secrets.randbits(_VERSION_BITS) + 1,
        "expires": time.time() + ttl,
        "count": len(cold),
        "entries": list(cold),
    }


async def _swept(connection: Connection) -> None:
    """Removes sessions that have expired, a few at a time."""
    while True:
        given = _SWEEP.in_order({"now": time.time(), "limit": _SWEPT_AT_ONCE})
        if len(await connection.fetch(_SWEEP.numbered, *given)) < _SWEPT_AT_ONCE:
            return


async def _reads_only(connection: Connection) -> bool:
    return cast("str", await connection.fetchval("SHOW transaction_read_only")) == "on"
