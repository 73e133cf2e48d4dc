"""Sessions in one SQLite file, without a server."""

import asyncio
import contextlib
import math
import secrets
import sqlite3
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from proxy.clock import wall_time
from proxy.memory.errors import SessionDeleted, StoreError
from proxy.memory.stores.sql import (
    APPEND,
    CLEAR,
    CREATE,
    DUE,
    EMPTY,
    EXPIRE,
    EXPIRE_COLD,
    EXPIRED,
    READ,
    REPLACE,
    STATE,
    SWEEP,
    TAKE_DUE,
    TOMBSTONE,
    Arguments,
    Rows,
    SqlStore,
    Statement,
    id_bytes,
    key_arguments,
    sweep_arguments,
    taken_sessions,
)
from proxy.memory.stores.sqlite_file import (
    GATHERING,
    PATIENCE,
    SHARED_GATHERING,
    DatabaseFile,
    FileConnection,
    FileWriter,
    Work,
)
from proxy.memory.stores.store import (
    BACKGROUND_DEADLINE,
    CLOCK_TOLERANCE,
    KEEP_EXPIRY,
    BlobWrite,
    DueSession,
    Key,
    Store,
    StoredBlob,
    draw_version,
)

T = TypeVar("T")

SLICE: Final = 500_000
"""The bytes of a cold part that one transaction writes or removes, rounded up to whole entries."""
_SWEPT_AT_ONCE: Final = 5
_STAGED_FOR: Final = 60.0
_NAME_BYTES: Final = 16
_ENTRIES_AT_ONCE: Final = 250
# The tenant of staged sessions, whose name no other tenant has.
_STAGED: Final = id_bytes("~staged")
_NEVER_DUE: Final = 1e300
# The archive may write the same file. No call waits for the writer, and a failed write has to be repeated.
_LOCK_WAIT: Final = 0.5


def open(  # noqa: A001 - what every driver's entry is called
    url: str, *, deadline: float, is_shared: bool = False
) -> Store:
    """Returns the store at ``sqlite:PATH``; the file is opened, and created if missing, at first use.

    ``is_shared`` is whether other processes serve the same calls. Raises ValueError for an invalid address.
    """
    path = url.removeprefix("sqlite:")
    if not path or path.startswith("//") or "\0" in path:
        raise ValueError("write sqlite:PATH, such as sqlite:turnkeeper.db or sqlite:/data/turnkeeper.db")
    if path == ":memory:":
        raise ValueError("for sessions that need not outlive the process, write memory:")
    return SqliteStore(Path(path), deadline=deadline, is_shared=is_shared)


class _State(msgspec.Struct, frozen=True, gc=False):
    """The version that a write must name, 0 without a session, its last deletion and its expiry.

    ``blob`` is the hot part of a write in flight.
    """

    version: int
    deleted: float
    expires: float
    blob: bytes = b""


_NO_STATE: Final = _State(0, -math.inf, -math.inf)


class SqliteStore(SqlStore):
    """Reads on the event loop and writes in batches; reads of this process see writes in flight.

    Versions are random and never repeat, so that a session that was deleted and created anew, or written by
    another process, is never mistaken for the one that was read.
    """

    def __init__(self, path: Path, *, deadline: float, is_shared: bool = False) -> None:
        self._file = DatabaseFile(path, wait=max(deadline, _LOCK_WAIT))
        gathering = SHARED_GATHERING if is_shared else GATHERING
        self._writer = FileWriter(self._file, chore=_sweep, gathering=gathering)
        self._reader = FileConnection(self._file)
        self._deadline = deadline
        self._pending: dict[Key, _State] = {}
        self._closed = False

    async def read(self, key: Key, *, background: bool = False) -> StoredBlob | None:
        """Reads the write in flight, else the file: one look-up by key, about 30 µs."""
        now = wall_time()
        if (pending := self._pending.get(key)) is not None:
            is_there = pending.version and pending.expires > now
            return StoredBlob(pending.blob, pending.version) if is_there else None
        within = BACKGROUND_DEADLINE if background else self._deadline
        if self._closed or self._file.identity is None:
            await self._opened(within)
        row = await self._reader.row(READ, {**key_arguments(key), "now": now}, within=within)
        return None if row is None else StoredBlob(*row)

    def write(self, key: Key, put: BlobWrite) -> Coroutine[Any, Any, bool]:
        """Waits for the commit, normally at most 0.1 s; longer for a large new session."""
        if put.cold and not put.version and _is_large(put):
            return self._write_in_slices(key, put)
        return self._swap(key, put, _append, PATIENCE)

    async def replace(self, key: Key, put: BlobWrite) -> bool:
        """Waits for the commit, which takes longer for a large session."""
        put = put._replace(at=math.inf)
        if _is_large(put):
            return await self._write_in_slices(key, put)
        return await self._swap(key, put, _replace, BACKGROUND_DEADLINE)

    async def delete(self, key: Key) -> bool:
        """Deletes the session after the writes in flight."""
        now = wall_time()
        arguments = key_arguments(key) | {"blob": b"", "now": now}
        deletion = partial(_delete, arguments)
        existed, has_more = await self._change(key, _State(0, now, 0.0), deletion, BACKGROUND_DEADLINE)
        if has_more:
            await self._work_on(partial(_remove, _REMOVE_DELETED, arguments))
        return existed

    async def deleted(self, key: Key) -> float | None:
        """Returns when the session was deleted last, including writes in flight."""
        state = await self._state(key)
        return state.deleted if state.deleted > 0 else None

    async def take_due(
        self,
        tenants: Sequence[str],  # noqa: ARG002 - the column's default has all that older versions wrote
        *,
        limit: int,
        lease: float,
    ) -> Sequence[DueSession]:
        """Takes due sessions; writes nothing if there are none."""
        arguments = {"since": 0.0, "limit": limit}
        if not await self.fetch(DUE, arguments):
            return []
        until = wall_time() + lease
        return taken_sessions(await self.fetch(TAKE_DUE, arguments | {"until": until}), until)

    async def fetch(self, statement: Statement, arguments: Arguments) -> Rows:
        """Runs a background statement and returns its rows; reads run in a thread."""
        arguments = {**arguments, "now": wall_time()}
        if not statement.is_query:
            return await self._work(lambda own: own.execute(statement.named, arguments).fetchall())
        await self._opened(BACKGROUND_DEADLINE)
        if self._pending:
            with contextlib.suppress(StoreError):  # a failed write is no longer in flight either
                await self._work(_no_operation)
        return await asyncio.to_thread(self._file.fetch, statement, arguments)

    async def ping(self) -> None:
        """Writes a row, because only a write detects a full disk."""
        await self._writer.run(_touch, PATIENCE)

    async def aclose(self) -> None:
        """Closes the connections, the writer's last, which checkpoints the log."""
        self._closed = True
        self._reader.close()
        await self._writer.aclose()

    async def _work(self, work: Work[T]) -> T:
        """Runs background work and returns its result."""
        return await self._writer.run(work, BACKGROUND_DEADLINE)

    async def _work_on(self, work: Work[bool]) -> None:
        """Repeats work, each time in a new transaction, until it returns false."""
        while await self._work(work):
            pass

    async def _write_in_slices(self, key: Key, put: BlobWrite) -> bool:
        """Replaces both parts, or creates the session, from a cold part that is staged in slices."""
        name = secrets.token_bytes(_NAME_BYTES)
        try:
            await self._work(partial(_stage, name, wall_time() + _STAGED_FOR))
            for start, entries in _slices(put.cold):
                await self._work(partial(_write_slice, name, start, entries))
            swap = partial(_put_in_place, name, len(put.cold))
            return await self._swap(key, put._replace(cold=()), swap, BACKGROUND_DEADLINE)
        finally:
            with contextlib.suppress(StoreError):  # the sweep removes the rest
                await self._work_on(partial(_remove_staged, name))

    async def _swap(
        self,
        key: Key,
        put: BlobWrite,
        work: Callable[[Arguments, Sequence[bytes], sqlite3.Connection], bool],
        within: float,
    ) -> bool:
        now, state = wall_time(), await self._state(key)
        # Reads must not see a write in flight that the commit will refuse.
        _check_not_deleted(state, put)
        if state.version != put.version:
            return False
        expires = state.expires if put.ttl == KEEP_EXPIRY else now + put.ttl
        version = put.new_version or draw_version()
        arguments = {
            **key_arguments(key),
            "blob": put.blob,
            "version": put.version,
            "fresh": version,
            "at": put.at,
            "count": len(put.cold),
            "now": now,
            "expires": expires,
            "due": put.due,
        }
        pending = _State(version, state.deleted, expires, put.blob)
        if await self._change(key, pending, partial(work, arguments, tuple(put.cold)), within):
            return True
        _check_not_deleted(await self._state(key), put)  # by another process, since the first look
        return False

    async def _change(self, key: Key, pending: _State, work: Work[T], within: float) -> T:
        """Runs work that writes the ``pending`` state of a session; returns its result."""
        outcome = self._writer.submit(work, partial(self._settle, key, pending))
        self._pending[key] = pending
        return await self._writer.result(outcome, within)

    def _settle(self, key: Key, pending: _State) -> None:
        """Ends a write in flight, so that reads use the file again."""
        if self._pending.get(key) is pending:
            del self._pending[key]

    async def _state(self, key: Key) -> _State:
        """Returns the state that a write must name."""
        await self._opened(PATIENCE)
        now = wall_time()
        row = await self._reader.row(STATE, {**key_arguments(key), "now": now}, within=PATIENCE)
        state = _NO_STATE if row is None else _State(*row)
        pending = self._pending.get(key)  # read last: it may have come during the read of the file
        if pending is None:
            return state
        version = pending.version if pending.expires > now else 0
        return _State(version, max(state.deleted, pending.deleted), pending.expires)

    async def _opened(self, within: float) -> None:
        """Opens the file, within ``within`` seconds. Raises StoreError, also if the store is closed."""
        if self._closed:
            raise StoreError("The memory has been closed.")
        if self._file.identity is None:
            await self._writer.run(_no_operation, within)


def _check_not_deleted(state: _State, put: BlobWrite) -> None:
    """Raises SessionDeleted if the session was deleted after the written turn arrived."""
    if put.at <= state.deleted <= wall_time() + CLOCK_TOLERANCE:
        raise SessionDeleted("The session was deleted.")


def _is_large(put: BlobWrite) -> bool:
    return sum(map(len, put.cold)) > SLICE


# --- work of the writer's thread, inside a transaction


def _append(arguments: Arguments, cold: Sequence[bytes], connection: sqlite3.Connection) -> bool:
    """Replaces or creates a hot part, and appends to its cold part."""
    if arguments["version"] == 0:
        connection.execute(EXPIRE_COLD.named, arguments)
        connection.execute(EXPIRE.named, arguments)
        changed = connection.execute(CREATE.named, arguments).rowcount
    else:
        changed = connection.execute(REPLACE.named, arguments).rowcount
    if changed and cold:
        entries = ({**arguments, "index": index, "entry": entry} for index, entry in enumerate(cold))
        connection.executemany(APPEND.named, entries)
    return bool(changed)


def _replace(arguments: Arguments, cold: Sequence[bytes], connection: sqlite3.Connection) -> bool:
    """Replaces both parts."""
    for statement in (EMPTY, CLEAR):
        connection.execute(statement.named, arguments)
    return _append(arguments, cold, connection)


def _delete(arguments: Arguments, connection: sqlite3.Connection) -> tuple[bool, bool]:
    """Leaves a tombstone; returns whether there was a session, and whether some of its cold part is left."""
    rows = connection.execute(READ.named, arguments).fetchall()
    connection.execute(TOMBSTONE.named, arguments)
    return bool(rows), _remove(_REMOVE_DELETED, arguments, connection)


def _sweep(connection: sqlite3.Connection) -> bool:
    """Removes a few expired sessions, and writes only if there are any; returns whether there may be more."""
    arguments = sweep_arguments(_SWEPT_AT_ONCE)
    rows = connection.execute(EXPIRED.named, arguments).fetchall()
    if rows and _remove(_REMOVE_EXPIRED, arguments, connection):
        return True
    if rows:
        connection.execute(SWEEP.named, arguments)
    return len(rows) == _SWEPT_AT_ONCE


def _touch(connection: sqlite3.Connection) -> None:
    """Writes existing values."""
    connection.execute("UPDATE turnkeeper_migrations SET name = name")


def _no_operation(_connection: sqlite3.Connection) -> None:
    """Does nothing, after all earlier work."""


# --- large cold parts, written and removed in many transactions, with others in between

_STAGE: Final = (
    "INSERT INTO turnkeeper_sessions (tenant, session, blob, version, updated, expires, cold, due)"
    " VALUES (:staged, :name, :empty, 0, 0, :until, 0, :never)"
)
_WRITE: Final = (
    "INSERT INTO turnkeeper_cold (session_id, position, blob)"
    " SELECT id, :position, :entry FROM turnkeeper_sessions WHERE tenant = :staged AND session = :name"
)
_COUNT: Final = (
    "SELECT count(*) FROM turnkeeper_cold JOIN turnkeeper_sessions ON id = session_id"
    " WHERE tenant = :staged AND session = :name"
)
_PUT_ASIDE: Final = (
    "UPDATE turnkeeper_sessions SET tenant = :staged, session = :former, blob = :empty, expires = 0,"
    " deleted = -1, due = :never WHERE tenant = :tenant AND session = :session"
)
_PUT_IN_PLACE: Final = (
    "UPDATE turnkeeper_sessions SET tenant = :tenant, session = :session, blob = :blob, version = :fresh,"
    " updated = :now, expires = :lasting, deleted = :deleted, due = :due, cold = :entries"
    " WHERE tenant = :staged AND session = :name"
)
# SQLite stores a row's size in its header, so that large blobs are not read to sum their sizes.
_REMOVE: Final = (
    "DELETE FROM turnkeeper_cold WHERE rowid IN (SELECT entry FROM (SELECT entry,"
    " sum(size) OVER (ROWS UNBOUNDED PRECEDING) - size AS before FROM"
    " (SELECT turnkeeper_cold.rowid AS entry, length(turnkeeper_cold.blob) AS size FROM turnkeeper_cold"
    f" JOIN turnkeeper_sessions ON id = session_id WHERE %s LIMIT {_ENTRIES_AT_ONCE}))"
    f" WHERE before < {SLICE})"
)
_REMOVE_STAGED: Final = _REMOVE % "tenant = :staged AND session IN (:name, :former)"
_REMOVE_DELETED: Final = _REMOVE % "tenant = :tenant AND session = :session AND expires <= :now"
_REMOVE_EXPIRED: Final = _REMOVE % f"id IN ({EXPIRED.named})"


def _slices(entries: Sequence[bytes]) -> Iterator[tuple[int, Sequence[bytes]]]:
    """Yields the entries of each transaction, with the position of the first."""
    start = size = 0
    for end, entry in enumerate(entries, 1):
        size += len(entry)
        if size >= SLICE or end == len(entries):
            yield start, entries[start:end]
            start, size = end, 0


def _stage(name: bytes, until: float, connection: sqlite3.Connection) -> None:
    """Creates a staged session, which expires at ``until``; nothing reads it until it is put in place."""
    connection.execute(_STAGE, _staged_arguments(name) | {"until": until})


def _write_slice(name: bytes, start: int, entries: Sequence[bytes], connection: sqlite3.Connection) -> None:
    """Writes entries of a staged session, the first at the position ``start``."""
    own = _staged_arguments(name)
    rows = ({**own, "position": start + index, "entry": entry} for index, entry in enumerate(entries))
    connection.executemany(_WRITE, rows)


def _put_in_place(
    name: bytes, entries: int, arguments: Arguments, cold: Sequence[bytes], connection: sqlite3.Connection
) -> bool:
    """Replaces both parts by a hot part and a staged cold part with this number of entries."""
    both = {**arguments, **_staged_arguments(name), "entries": entries}
    ((count,),) = connection.execute(_COUNT, both).fetchall()
    if count != entries:  # the file was replaced meanwhile
        return False
    # The session is written without new entries, and then staged in its turn, with its former cold part.
    changed = _append(arguments, cold, connection)
    if changed:
        ((lasting, deleted),) = connection.execute(
            "SELECT expires, deleted FROM turnkeeper_sessions WHERE tenant = :tenant AND session = :session",
            both,
        ).fetchall()
        connection.execute(_PUT_ASIDE, both)
        connection.execute(_PUT_IN_PLACE, {**both, "lasting": lasting, "deleted": deleted})
    return changed


def _remove_staged(name: bytes, connection: sqlite3.Connection) -> bool:
    """Removes some entries that are staged under a name; returns whether there may be more."""
    arguments = _staged_arguments(name)
    if _remove(_REMOVE_STAGED, arguments, connection):
        return True
    connection.execute(
        "DELETE FROM turnkeeper_sessions WHERE tenant = :staged AND session IN (:name, :former)", arguments
    )
    return False


def _remove(statement: str, arguments: Arguments, connection: sqlite3.Connection) -> bool:
    """Removes some entries; returns whether there may be more."""
    return bool(connection.execute(statement, arguments).rowcount)


def _staged_arguments(name: bytes) -> dict[str, object]:
    return {"staged": _STAGED, "name": name, "former": name + b"~", "empty": b"", "never": _NEVER_DUE}
