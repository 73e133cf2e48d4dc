"""How the tables came to be: a list that only ever grows, each step recorded where it has been taken."""

from collections.abc import Callable, Collection, Iterator
from typing import Final

import msgspec

from proxy.memory.store import StoreError


class Types(msgspec.Struct, frozen=True):
    """What a database calls its types."""

    identity: str
    """A whole number that the database gives to each row, its primary key."""
    number: str
    real: str
    blob: str


Migration = Callable[[Types], tuple[str, ...]]

LEDGER: Final = "turnkeeper_migrations"
LEDGER_TABLE: Final = f"CREATE TABLE IF NOT EXISTS {LEDGER} (name TEXT PRIMARY KEY)"
TAKEN: Final = f"SELECT name FROM {LEDGER}"


def m001_sessions(types: Types) -> tuple[str, ...]:
    """A session's hot part is one row, its cold part as many as it has entries, counted in ``cold``."""
    sessions = f"""CREATE TABLE turnkeeper_sessions (
        id {types.identity},
        tenant {types.blob} NOT NULL,
        session {types.blob} NOT NULL,
        version {types.number} NOT NULL,
        updated {types.real} NOT NULL,
        expires {types.real} NOT NULL,
        cold {types.number} NOT NULL,
        blob {types.blob} NOT NULL,
        UNIQUE (tenant, session)
    )"""
    by_expiry = "CREATE INDEX turnkeeper_sessions_expires ON turnkeeper_sessions (expires)"
    cold = f"""CREATE TABLE turnkeeper_cold (
        session_id {types.number} NOT NULL REFERENCES turnkeeper_sessions (id) ON DELETE CASCADE,
        position {types.number} NOT NULL,
        blob {types.blob} NOT NULL,
        PRIMARY KEY (session_id, position)
    )"""
    return sessions, by_expiry, cold


def m002_deletions(types: Types) -> tuple[str, ...]:
    """A deleted session leaves an empty row that has expired and says when that was; -1 is never."""
    return (f"ALTER TABLE turnkeeper_sessions ADD COLUMN deleted {types.real} NOT NULL DEFAULT -1",)


MIGRATIONS: Final[tuple[Migration, ...]] = (m001_sessions, m002_deletions)


def ahead(taken: Collection[str], types: Types) -> Iterator[str]:
    """The statements that are still to be run, each step's record last.

    Raises StoreError for a database that has taken steps which nobody here knows.
    """
    known = {step.__name__: step for step in MIGRATIONS}
    if unknown := sorted(set(taken) - known.keys()):
        raise StoreError(
            f"The memory database was made by a newer Turnkeeper ({unknown[0]} is unknown here)."
            " Upgrade Turnkeeper, or set MEMORY_URL to another database."
        )
    return _statements([step for name, step in known.items() if name not in taken], types)


def _statements(steps: list[Migration], types: Types) -> Iterator[str]:
    for step in steps:
        yield from step(types)
        yield f"INSERT INTO {LEDGER} (name) VALUES ('{step.__name__}')"
