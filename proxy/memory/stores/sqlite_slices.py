"""Large cold parts in SQLite, written and removed in many transactions, with others in between."""

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Final

from proxy.memory.stores.sql import EXPIRED, Arguments, id_bytes

SLICE: Final = 500_000
"""The bytes of a cold part that one transaction writes or removes, rounded up to whole entries."""
_ENTRIES_AT_ONCE: Final = 250
# The tenant of staged sessions, whose name no other tenant has.
_TENANT: Final = id_bytes("~staged")
_NEVER_DUE: Final = 1e300

_BEGIN: Final = (
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


def slices(entries: Sequence[bytes]) -> Iterator[tuple[int, Sequence[bytes]]]:
    """Yields the entries of each transaction, with the position of the first."""
    start = size = 0
    for end, entry in enumerate(entries, 1):
        size += len(entry)
        if size >= SLICE or end == len(entries):
            yield start, entries[start:end]
            start, size = end, 0


def stage(name: bytes, until: float, connection: sqlite3.Connection) -> None:
    """Creates a staged session, which expires at ``until``; nothing reads it until it is put in place."""
    connection.execute(_BEGIN, _arguments(name) | {"until": until})


def write(name: bytes, start: int, entries: Sequence[bytes], connection: sqlite3.Connection) -> None:
    """Writes entries of a staged session, the first at the position ``start``."""
    own = _arguments(name)
    rows = ({**own, "position": start + index, "entry": entry} for index, entry in enumerate(entries))
    connection.executemany(_WRITE, rows)


def is_whole(name: bytes, entries: int, connection: sqlite3.Connection) -> bool:
    """Whether a staged session has this number of entries; its file may have been replaced meanwhile."""
    ((count,),) = connection.execute(_COUNT, _arguments(name)).fetchall()
    return bool(count == entries)


def put_in_place(name: bytes, entries: int, arguments: Arguments, connection: sqlite3.Connection) -> None:
    """Replaces the session that ``arguments`` name by a staged session with this number of entries.

    The session was just written without new entries; it is staged from now on, with its former cold part.
    """
    both = {**arguments, **_arguments(name), "entries": entries}
    ((lasting, deleted),) = connection.execute(
        "SELECT expires, deleted FROM turnkeeper_sessions WHERE tenant = :tenant AND session = :session", both
    ).fetchall()
    connection.execute(_PUT_ASIDE, both)
    connection.execute(_PUT_IN_PLACE, {**both, "lasting": lasting, "deleted": deleted})


def remove_staged(name: bytes, connection: sqlite3.Connection) -> bool:
    """Removes some entries that are staged under a name; returns whether there may be more."""
    if connection.execute(_REMOVE_STAGED, _arguments(name)).rowcount:
        return True
    connection.execute(
        "DELETE FROM turnkeeper_sessions WHERE tenant = :staged AND session IN (:name, :former)",
        _arguments(name),
    )
    return False


def remove_deleted(arguments: Arguments, connection: sqlite3.Connection) -> bool:
    """Removes some entries of a deleted session; returns whether there may be more."""
    return bool(connection.execute(_REMOVE_DELETED, arguments).rowcount)


def remove_expired(arguments: Arguments, connection: sqlite3.Connection) -> bool:
    """Removes some entries of the sessions that are swept next; returns whether there may be more."""
    return bool(connection.execute(_REMOVE_EXPIRED, arguments).rowcount)


def _arguments(name: bytes) -> dict[str, object]:
    return {"staged": _TENANT, "name": name, "former": name + b"~", "empty": b"", "never": _NEVER_DUE}
