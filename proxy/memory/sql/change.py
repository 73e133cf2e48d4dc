"""What the thread that writes to a database file does there, inside a transaction."""

import sqlite3
from collections.abc import Callable, Sequence
from typing import Final

from proxy.memory.faults import Deleted
from proxy.memory.sql.statement import (
    APPEND,
    BURY,
    CLEAR,
    CREATE,
    DUE,
    EMPTY,
    EXPIRE,
    EXPIRE_COLD,
    READ,
    REFUSED,
    REPLACE,
    SWEEP,
    Arguments,
    due,
)

Outcome = bool | Deleted
"""Whether anything was changed. A refusal is given back, not raised: the rest of the batch stands."""
Swap = Callable[[Arguments, Sequence[bytes], sqlite3.Connection], Outcome]

_SWEPT_AT_ONCE: Final = 5


def append(arguments: Arguments, cold: Sequence[bytes], connection: sqlite3.Connection) -> Outcome:
    """Replaces a hot part, or makes it, and appends to its cold part."""
    if arguments["version"] == 0:
        connection.execute(EXPIRE_COLD.named, arguments)
        connection.execute(EXPIRE.named, arguments)
        changed = connection.execute(CREATE.named, arguments).rowcount
    else:
        changed = connection.execute(REPLACE.named, arguments).rowcount
    if not changed and connection.execute(REFUSED.named, arguments).fetchall():
        return Deleted("The session was deleted.")
    if changed and cold:
        entries = ({**arguments, "index": index, "entry": entry} for index, entry in enumerate(cold))
        connection.executemany(APPEND.named, entries)
    return bool(changed)


def replace(arguments: Arguments, cold: Sequence[bytes], connection: sqlite3.Connection) -> Outcome:
    """Replaces both parts."""
    for statement in (EMPTY, CLEAR):
        connection.execute(statement.named, arguments)
    return append(arguments, cold, connection)


def delete(arguments: Arguments, connection: sqlite3.Connection) -> bool:
    """Leaves nothing but when it was; whether there was anything."""
    there = connection.execute(READ.named, arguments).fetchall()
    connection.execute(BURY.named, arguments)
    connection.execute(EXPIRE_COLD.named, arguments)
    return bool(there)


def sweep(connection: sqlite3.Connection) -> bool:
    """Removes a few sessions that have expired; a look is free, a transaction is not."""
    arguments = due(_SWEPT_AT_ONCE)
    found = connection.execute(DUE.named, arguments).fetchall()
    if found:
        connection.execute(SWEEP.named, arguments)
    return len(found) == _SWEPT_AT_ONCE


def touch(connection: sqlite3.Connection) -> None:
    """Writes what is there already."""
    connection.execute("UPDATE turnkeeper_migrations SET name = name")


def nothing(_connection: sqlite3.Connection) -> None:
    """Done when all before it is done."""
