"""How the tables on a PostgreSQL server come to be, and are brought up to date beside servers that use them.

Each migration is a transaction of its own, which gives up a lock that it does not get at once. Indexes are
made and dropped concurrently, by one process, once the tables can be used.
"""

import asyncio
import contextlib
import logging
import re
from typing import Any, Final

import asyncpg
import msgspec

from proxy.circuit import Backoff
from proxy.memory.stores.sql import (
    APPLIED,
    INDEXING,
    LEDGER_TABLE,
    Types,
    migration_statements,
    pending_migrations,
)

Connection = Any  # asyncpg says nothing of its types
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
# Another process may be at it: then a later command tries again.
_MIGRATION_WAIT: Final = 30.0
# A large table takes many minutes, and no call waits for it: to give up would be to begin it anew for ever.
_MIGRATING: Final = 6 * 3600.0
_ALONE: Final = "SELECT pg_backend_pid() FROM pg_advisory_xact_lock($1)"
# Any number will do that no other program takes: the letters "turnkeep", and the next one.
_MIGRATION_LOCK: Final = int.from_bytes(b"turnkeep", "big")
# One row, or none. A statement with arguments would keep its snapshot up to the next one, and one that waits
# would have one, too.
_ALONE_WITH_INDEXES: Final = f"SELECT 1 WHERE pg_try_advisory_xact_lock({_MIGRATION_LOCK + 1})"
# All that use a table wait behind a statement that waits for its lock.
_LOCK_TIMEOUT: Final = "SET LOCAL lock_timeout = '100ms'"
_LOCK_PAUSE: Final = 1.0
# Nothing is said on the connection with the lock while indexes are made over another one.
# An index waits for all older snapshots, of which the connection would have one at another level.
_BEGIN: Final = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL idle_in_transaction_session_timeout = 0"
_INDEX: Final = re.compile(r"CREATE INDEX CONCURRENTLY IF NOT EXISTS (\w+)")
# An index that was not finished, and whether a process of the server's is at it, though its client has gone.
_UNFINISHED: Final = """SELECT EXISTS (
    SELECT FROM pg_stat_progress_create_index p WHERE p.index_relid = i.indexrelid
) FROM pg_index i WHERE i.indexrelid = to_regclass($1) AND NOT i.indisvalid"""
_INDEXED_ELSEWHERE: Final = 5.0
_INDEXING_AGAIN: Final = Backoff(5.0, 600.0)
_log: Final = logging.getLogger(__name__)


async def migrate(url: str, within: float) -> tuple[bool, bool]:
    """Makes the tables usable; whether the server is talked to itself, and whether indexes are missing.

    A pooler such as PgBouncer shows its clients a process number of its own, and may go on with another
    connection to the server.
    """
    connection = await _connect(url, within, command_timeout=within)
    try:
        process, unindexed = await _migrate(connection)
        return process == int(connection.get_server_pid()), unindexed
    finally:
        connection.terminate()


async def make_indexes(url: str, within: float) -> None:
    """Makes and drops indexes, unless another process does, until none is left to be made or dropped."""
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
    """Whether all are made that are to be made.

    Not so where another process is at it, or the server still makes one for a client that has gone.
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
            if migration not in INDEXING:
                continue
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


async def _migrate(connection: Connection) -> tuple[int, bool]:
    """The id of the server's process, and whether indexes are still to be made."""
    while True:
        try:
            async with connection.transaction():
                process = await connection.fetchval(_ALONE, _MIGRATION_LOCK, timeout=_MIGRATION_WAIT)
                await connection.execute(LEDGER_TABLE, timeout=_MIGRATION_WAIT)
                applied = await _applied(connection)
                pending = pending_migrations(applied)
                # All at once in a database that is not in use yet, and else one after the other.
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
