"""Creates the tables on a PostgreSQL server, and migrates them while other servers use them.

Each migration is its own transaction, which gives up if it does not get a lock at once. Indexes are created
and dropped concurrently, by one process, once the tables can be used.
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

Connection = Any  # asyncpg has no type hints
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
_log: Final = logging.getLogger(__name__)


async def migrate(url: str, within: float) -> tuple[bool, bool]:
    """Migrates the tables; returns whether the connection is direct, and whether indexes are missing.

    It is not direct behind a pooler such as PgBouncer, which shows clients its own process number and may
    switch to another connection to the server.
    """
    connection = await _connect(url, within, command_timeout=within)
    try:
        process, unindexed = await _migrate(connection)
        return process == int(connection.get_server_pid()), unindexed
    finally:
        connection.terminate()


async def make_indexes(url: str, within: float) -> None:
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
