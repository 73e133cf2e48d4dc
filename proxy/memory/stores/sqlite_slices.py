"""What is large in an SQLite file, written and removed in many transactions: others come in between."""

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Final

from proxy.memory.stores.sql import EXPIRED, Arguments, id_bytes

SLICE: Final = 500_000
"""How many bytes of a cold part are written or removed in one transaction."""
_ENTRIES_AT_ONCE: Final = 250
# A session is staged under a tenant whose name no other has.
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
# The size of a row stands in its head, so that what is large is not read for it.
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
    """Entries as they are written, one transaction each; each with the position of its first."""
    start = size = 0
    for end, entry in enumerate(entries, 1):
        size += len(entry)
        if size >= SLICE or end == len(entries):
            yield start, entries[start:end]
            start, size = end, 0


def stage(name: bytes, until: float, connection: sqlite3.Connection) -> None:
    """Begins a session that nothing reads until it is put in place, and that has expired by then."""
    connection.execute(_BEGIN, _arguments(name) | {"until": until})


def write(name: bytes, start: int, entries: Sequence[bytes], connection: sqlite3.Connection) -> None:
    """Writes entries of a staged session, the first of which has the position ``start``."""
    own = _arguments(name)
    rows = ({**own, "position": start + index, "entry": entry} for index, entry in enumerate(entries))
    connection.executemany(_WRITE, rows)


def is_whole(name: bytes, entries: int, connection: sqlite3.Connection) -> bool:
    """Whether a staged session has so many entries: its file may have been replaced meanwhile."""
    ((count,),) = connection.execute(_COUNT, _arguments(name)).fetchall()
    return bool(count == entries)


def put_in_place(name: bytes, entries: int, arguments: Arguments, connection: sqlite3.Connection) -> None:
    """Puts a staged session with so many entries in the place of the one that ``arguments`` name.

    That one was just written without a cold part of its own: what it had is staged from now on.
    """
    both = {**arguments, **_arguments(name), "entries": entries}
    ((lasting, deleted),) = connection.execute(
        "SELECT expires, deleted FROM turnkeeper_sessions WHERE tenant = :tenant AND session = :session", both
    ).fetchall()
    connection.execute(_PUT_ASIDE, both)
    connection.execute(_PUT_IN_PLACE, {**both, "lasting": lasting, "deleted": deleted})


def remove_staged(name: bytes, connection: sqlite3.Connection) -> bool:
    """Removes some of what is staged under a name; whether there is more."""
    if connection.execute(_REMOVE_STAGED, _arguments(name)).rowcount:
        return True
    connection.execute(
        "DELETE FROM turnkeeper_sessions WHERE tenant = :staged AND session IN (:name, :former)",
        _arguments(name),
    )
    return False


def remove_deleted(arguments: Arguments, connection: sqlite3.Connection) -> bool:
    """Removes some of the cold part of a session that was deleted; whether there is more."""
    return bool(connection.execute(_REMOVE_DELETED, arguments).rowcount)


def remove_expired(arguments: Arguments, connection: sqlite3.Connection) -> bool:
    """Removes some of the cold parts of sessions that are swept next; whether there is more."""
    return bool(connection.execute(_REMOVE_EXPIRED, arguments).rowcount)


def _arguments(name: bytes) -> dict[str, object]:
    return {"staged": _TENANT, "name": name, "former": name + b"~", "empty": b"", "never": _NEVER_DUE}
