"""The common code of the SQLite and PostgreSQL drivers: statements, tables and migrations.

Ids are stored as bytes: any text is an id, with NUL and lone surrogates, and all databases sort alike.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

import msgspec

from proxy.clock import wall_time
from proxy.memory.errors import StoreError
from proxy.memory.stores.store import CLOCK_TOLERANCE, TOMBSTONE_SECONDS, DueSession, Key, ListedSession

Arguments = Mapping[str, object]
Rows = Sequence[Sequence[Any]]

LEDGER: Final = "turnkeeper_migrations"
LEDGER_TABLE: Final = f"CREATE TABLE IF NOT EXISTS {LEDGER} (name TEXT PRIMARY KEY)"
APPLIED: Final = f"SELECT name FROM {LEDGER}"

NAMED: Final = re.compile(r"(?<!:):([a-z]+)")
"""Matches a named parameter of a statement."""
# Above any real time, and below the infinite NEVER_DUE.
_NEVER: Final = "1e300"
_THIS: Final = "tenant = :tenant AND session = :session"
_UNCHANGED: Final = f"{_THIS} AND version = :version AND expires > :now"


class Statement:
    """SQL with parameters by name (``:name``) and by number (``?1`` for SQLite, ``$1`` for PostgreSQL).

    ``order`` has the names in the order of their numbers, and ``in_order`` returns the arguments for the
    numbered forms: for many rows, SQLite binds these in two thirds of the time. ``has_rows`` is whether it
    returns rows, and ``is_query`` whether it changes nothing. ``postgres`` is PostgreSQL's form of it.
    """

    __slots__ = (
        "has_rows", "in_order", "is_query", "named", "numbered", "numbered_for_sqlite", "order", "postgres",
    )  # fmt: skip

    def __init__(self, named: str, postgres: str = "") -> None:
        self.named = named
        self.postgres = postgres or named
        self.order = order = tuple(dict.fromkeys(NAMED.findall(named)))
        self.is_query = named.startswith("SELECT")
        self.has_rows = "SELECT" in named or "RETURNING" in named
        self.numbered = NAMED.sub(lambda match: f"${order.index(match[1]) + 1}", self.postgres)
        self.numbered_for_sqlite = NAMED.sub(lambda match: f"?{order.index(match[1]) + 1}", named)
        self.in_order: Callable[[Arguments], tuple[object, ...]] = (
            itemgetter(*order)
            if len(order) > 1
            else lambda arguments: tuple(arguments[name] for name in order)
        )


class BoundStatement(NamedTuple):
    """A statement with its arguments."""

    statement: Statement
    arguments: Arguments


class Each(NamedTuple):
    """A statement to run for each of several rows of arguments."""

    statement: Statement
    rows: Sequence[Arguments]


def id_bytes(text: str) -> bytes:
    """Encodes an id for a database; the bytes sort in the order of the texts."""
    return text.encode("utf-8", "surrogatepass")


def id_text(blob: bytes) -> str:
    """Decodes an id from a database."""
    return bytes(blob).decode("utf-8", "surrogatepass")


def key_arguments(key: Key) -> dict[str, object]:
    """Returns the arguments that identify a session."""
    return {"tenant": id_bytes(key.tenant), "session": id_bytes(key.session)}


def taken_sessions(rows: Iterable[Sequence[bytes]], until: float) -> list[DueSession]:
    """Returns due sessions, by tenant and session, with a lease until a time."""
    return [DueSession(Key(id_text(tenant), id_text(session)), repr(until)) for tenant, session in rows]


def sweep_arguments(limit: int) -> dict[str, object]:
    """Returns the arguments for deleting expired sessions and old tombstones."""
    now = wall_time()
    return {"now": now, "forgotten": now - TOMBSTONE_SECONDS, "limit": limit}


READ: Final = Statement(f"SELECT blob, version FROM turnkeeper_sessions WHERE {_THIS} AND expires > :now")
STATE: Final = Statement(
    "SELECT CASE WHEN expires > :now THEN version ELSE 0 END, deleted, expires"
    f" FROM turnkeeper_sessions WHERE {_THIS}"
)
REPLACE: Final = Statement(
    "UPDATE turnkeeper_sessions SET blob = :blob, version = :fresh, updated = :now, due = :due, expires ="
    " CASE WHEN CAST(:expires AS double precision) < 0 THEN expires ELSE :expires END,"
    f" cold = cold + :count WHERE {_UNCHANGED} AND (deleted < :at OR deleted - {CLOCK_TOLERANCE} > :now)"
)
CREATE: Final = Statement(
    "INSERT INTO turnkeeper_sessions (tenant, session, blob, version, updated, expires, cold, due)"
    " VALUES (:tenant, :session, :blob, :fresh, :now, :expires, :count, :due)"
    " ON CONFLICT (tenant, session) DO UPDATE SET blob = excluded.blob, version = excluded.version,"
    " updated = excluded.updated, expires = excluded.expires, cold = excluded.cold, due = excluded.due"
    " WHERE turnkeeper_sessions.expires <= :now AND turnkeeper_sessions.cold = 0"
    f" AND (turnkeeper_sessions.deleted < :at OR turnkeeper_sessions.deleted - {CLOCK_TOLERANCE} > :now)"
)
APPEND: Final = Statement(
    "INSERT INTO turnkeeper_cold (session_id, position, blob)"
    f" SELECT id, cold - :count + :index, :entry FROM turnkeeper_sessions WHERE {_THIS}"
)
# These two, in this order before REPLACE, remove the former cold part.
EMPTY: Final = Statement(f"UPDATE turnkeeper_sessions SET cold = 0 WHERE {_UNCHANGED}")
CLEAR: Final = Statement(
    f"DELETE FROM turnkeeper_cold WHERE session_id IN (SELECT id FROM turnkeeper_sessions WHERE {_UNCHANGED})"
)
ERASED_SINCE: Final = Statement(
    f"SELECT id FROM turnkeeper_sessions WHERE {_THIS} AND deleted >= :at"
    f" AND deleted - {CLOCK_TOLERANCE} <= :now"
)
# These two remove the cold part of an expired session, but not the time of an earlier deletion.
EXPIRE: Final = Statement(f"UPDATE turnkeeper_sessions SET cold = 0 WHERE {_THIS} AND expires <= :now")
EXPIRE_COLD: Final = Statement(
    "DELETE FROM turnkeeper_cold WHERE session_id IN"
    f" (SELECT id FROM turnkeeper_sessions WHERE {_THIS} AND expires <= :now)"
)
TOMBSTONE: Final = Statement(
    "INSERT INTO turnkeeper_sessions (tenant, session, blob, version, updated, expires, cold, deleted, due)"
    f" VALUES (:tenant, :session, :blob, 0, 0, 0, 0, :now, {_NEVER})"
    " ON CONFLICT (tenant, session) DO UPDATE SET blob = excluded.blob, version = 0, updated = 0,"
    " expires = 0, cold = 0, deleted = excluded.deleted, due = excluded.due"
)
COLD: Final = Statement(
    "SELECT turnkeeper_cold.blob FROM turnkeeper_cold"
    " JOIN turnkeeper_sessions ON turnkeeper_sessions.id = turnkeeper_cold.session_id"
    f" WHERE {_THIS} AND expires > :now AND position >= :start ORDER BY position LIMIT :limit"
)
LIST: Final = Statement(
    "SELECT session, updated, length(blob) FROM turnkeeper_sessions"
    " WHERE tenant = :tenant AND session > :after AND expires > :now ORDER BY session LIMIT :limit"
)
# Sessions without work are in no index: the last condition is that of the partial index.
DUE: Final = Statement(
    f"SELECT id FROM turnkeeper_sessions WHERE due >= :since AND due <= :now AND due < {_NEVER}"
    " ORDER BY due LIMIT :limit"
)
TAKE_DUE: Final = Statement(
    f"UPDATE turnkeeper_sessions SET due = :until WHERE id IN ({DUE.named}) RETURNING tenant, session"
)
SETTLE: Final = Statement(
    f"UPDATE turnkeeper_sessions SET due = :due WHERE {_THIS} AND due = :until RETURNING id"
)
ACQUIRE: Final = Statement(
    "INSERT INTO turnkeeper_leases (name, token, expires) VALUES (:name, :token, :expires)"
    " ON CONFLICT (name) DO UPDATE SET token = excluded.token, expires = excluded.expires"
    " WHERE turnkeeper_leases.expires <= :now OR turnkeeper_leases.token IN (:token, :former) RETURNING name"
)
HOLDER: Final = Statement("SELECT token FROM turnkeeper_leases WHERE name = :name")
RELEASE: Final = Statement("DELETE FROM turnkeeper_leases WHERE name = :name AND token = :token")
EXPIRED: Final = Statement(
    "SELECT id FROM turnkeeper_sessions WHERE expires <= :now AND deleted <= :forgotten"
    " ORDER BY expires LIMIT :limit"
)
SWEEP: Final = Statement(f"DELETE FROM turnkeeper_sessions WHERE id IN ({EXPIRED.named})")


class SqlStore:
    """The background operations that the SQLite and PostgreSQL drivers share."""

    async def fetch(self, statement: Statement, arguments: Arguments) -> Rows:
        """Returns the rows of a statement; the current time is added to its arguments as ``now``."""
        raise NotImplementedError

    async def cold(self, key: Key, *, start: int = 0, limit: int = 1000) -> list[bytes]:
        """Reads the cold part."""
        rows = await self.fetch(COLD, {**key_arguments(key), "start": start, "limit": limit})
        return [blob for (blob,) in rows]

    async def list(self, tenant: str, *, after: str = "", limit: int = 100) -> list[ListedSession]:
        """Lists a tenant's sessions in the order of code points, whatever the database's collation."""
        arguments = {"tenant": id_bytes(tenant), "after": id_bytes(after), "limit": limit}
        rows = await self.fetch(LIST, arguments)
        return [ListedSession(id_text(session), updated, size) for session, updated, size in rows]

    async def settle(self, session: DueSession, due: float) -> DueSession | None:
        """Sets when a session is due again."""
        due = max(due, wall_time())
        arguments = {**key_arguments(session.key), "due": due, "until": float(session.lease)}
        return DueSession(session.key, repr(due)) if await self.fetch(SETTLE, arguments) else None

    async def acquire(self, name: str, token: bytes, *, ttl: float, former: bytes = b"") -> bytes | None:
        """Takes or renews a lease."""
        arguments = {"name": name, "token": token, "former": former, "expires": wall_time() + ttl}
        if await self.fetch(ACQUIRE, arguments):
            return None
        rows = await self.fetch(HOLDER, arguments)
        return bytes(rows[0][0]) if rows else b""  # it was released since

    async def release(self, name: str, token: bytes) -> None:
        """Ends a lease."""
        await self.fetch(RELEASE, {"name": name, "token": token})


class Types(msgspec.Struct, frozen=True):
    """A database's names for types, and its own SQL for indexes."""

    identity: str
    """A numeric primary key that the database assigns."""
    number: str
    real: str
    blob: str
    index: tuple[str, ...] = ()
    """The statements that create the index of the words in ``turnkeeper_passages.terms``."""
    concurrently: str = ""
    """The keyword that creates or drops an index without blocking writers."""


Migration = Callable[[Types], tuple[str, ...]]


def m001_sessions(types: Types) -> tuple[str, ...]:
    """A session's hot part is one row; its cold part has a row per entry, counted in ``cold``."""
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
    """A deleted session leaves an empty, expired row with the time of the deletion; -1 is never."""
    return (f"ALTER TABLE turnkeeper_sessions ADD COLUMN deleted {types.real} NOT NULL DEFAULT -1",)


def m003_archive(types: Types) -> tuple[str, ...]:
    """The archive: turns as heard, by owner, facts, documents, and the index of their words."""
    people = f"""CREATE TABLE turnkeeper_people (
        id {types.identity},
        tenant {types.blob} NOT NULL,
        person {types.blob} NOT NULL,
        UNIQUE (tenant, person)
    )"""
    tombstones = f"""CREATE TABLE turnkeeper_tombstones (
        tenant {types.blob} NOT NULL,
        kind {types.number} NOT NULL,
        name {types.blob} NOT NULL,
        at {types.real} NOT NULL,
        PRIMARY KEY (tenant, kind, name)
    )"""
    talks = f"""CREATE TABLE turnkeeper_talks (
        id {types.identity},
        tenant {types.blob} NOT NULL,
        session {types.blob} NOT NULL,
        created {types.real} NOT NULL,
        mark {types.real} NOT NULL,
        UNIQUE (tenant, session, created)
    )"""
    turns = f"""CREATE TABLE turnkeeper_turns (
        id {types.identity},
        talk {types.number} NOT NULL REFERENCES turnkeeper_talks (id) ON DELETE CASCADE,
        life {types.number} NOT NULL,
        turn {types.number} NOT NULL,
        role TEXT NOT NULL,
        position {types.number} NOT NULL,
        place {types.number} NOT NULL,
        owner {types.number},
        speaker {types.number},
        at {types.real} NOT NULL,
        recorded {types.real} NOT NULL,
        digest {types.blob} NOT NULL,
        blob {types.blob} NOT NULL,
        UNIQUE (talk, life, turn, role, position)
    )"""
    indexes = [
        f"CREATE INDEX turnkeeper_turns_{column} ON turnkeeper_turns ({columns})"
        for column, columns in (
            ("place", "talk, place"),
            ("owner", "owner, id"),
            ("speaker", "speaker"),
            ("recorded", "recorded"),
        )
    ]
    facts = f"""CREATE TABLE turnkeeper_facts (
        id {types.identity},
        owner {types.number} NOT NULL,
        name {types.blob} NOT NULL,
        category TEXT NOT NULL,
        created {types.real} NOT NULL,
        expires {types.real},
        superseded {types.real},
        importance {types.real} NOT NULL,
        blob {types.blob} NOT NULL,
        UNIQUE (owner, name)
    )"""
    documents = f"""CREATE TABLE turnkeeper_documents (
        id {types.identity},
        tenant {types.blob} NOT NULL,
        path {types.blob} NOT NULL,
        chunk {types.number} NOT NULL,
        added {types.real} NOT NULL,
        blob {types.blob} NOT NULL,
        UNIQUE (tenant, path, chunk)
    )"""
    passages = f"""CREATE TABLE turnkeeper_passages (
        id {types.identity},
        owner {types.number} NOT NULL,
        kind {types.number} NOT NULL,
        item {types.number} NOT NULL,
        talk {types.number} NOT NULL,
        place {types.number} NOT NULL,
        at {types.real} NOT NULL,
        terms TEXT NOT NULL,
        UNIQUE (kind, item)
    )"""
    by_time = "CREATE INDEX turnkeeper_passages_at ON turnkeeper_passages (owner, at)"
    by_place = "CREATE INDEX turnkeeper_passages_place ON turnkeeper_passages (talk, place)"
    tables = people, tombstones, talks, turns, *indexes, facts, documents, passages
    return *tables, by_time, by_place, *types.index


def m004_vectors(types: Types) -> tuple[str, ...]:
    """Vectors of passages; ``meant`` is the model that was used last, empty before the first."""
    meant = "ALTER TABLE turnkeeper_passages ADD COLUMN meant TEXT NOT NULL DEFAULT ''"
    by_meant = "CREATE INDEX turnkeeper_passages_meant ON turnkeeper_passages (meant)"
    vectors = f"""CREATE TABLE turnkeeper_vectors (
        passage {types.number} PRIMARY KEY REFERENCES turnkeeper_passages (id) ON DELETE CASCADE,
        owner {types.number} NOT NULL,
        model TEXT NOT NULL,
        sign {types.blob} NOT NULL,
        blob {types.blob} NOT NULL
    )"""
    # A covering index for the scan of an owner's signs.
    by_owner = (
        "CREATE INDEX turnkeeper_vectors_owner ON turnkeeper_vectors (owner, model, passage DESC, sign)"
    )
    return meant, by_meant, vectors, by_owner


def m005_expiry(types: Types) -> tuple[str, ...]:  # noqa: ARG001 - an index has none
    """An index of facts by expiry."""
    return ("CREATE INDEX turnkeeper_facts_expires ON turnkeeper_facts (expires) WHERE expires IS NOT NULL",)


def m006_lexicon(types: Types) -> tuple[str, ...]:
    """The version of the lexicon of each passage, and an index of passages with an older one."""
    lexicon = f"ALTER TABLE turnkeeper_passages ADD COLUMN lexicon {types.number} NOT NULL DEFAULT 0"
    older = "CREATE INDEX turnkeeper_passages_lexicon ON turnkeeper_passages (id) WHERE lexicon < 1"
    return lexicon, older


def m007_talks(types: Types) -> tuple[str, ...]:
    """The ``updated`` time of a session's saved state; -1 is unknown."""
    return (f"ALTER TABLE turnkeeper_talks ADD COLUMN updated {types.real} NOT NULL DEFAULT -1",)


def m008_speakers(types: Types) -> tuple[str, ...]:  # noqa: ARG001 - an index has none
    """Removes the owner of calls of several speakers that were indexed as one user's, to hide them."""
    spoken = "SELECT talk FROM turnkeeper_turns WHERE speaker IS NOT NULL"
    return (f"UPDATE turnkeeper_passages SET owner = 0 WHERE kind = 1 AND talk IN ({spoken})",)


def m009_secrets(types: Types) -> tuple[str, ...]:
    """Secrets that all processes share; for each purpose the first readable one is used."""
    secrets = f"""CREATE TABLE turnkeeper_secrets (
        purpose TEXT NOT NULL,
        number {types.number} NOT NULL,
        blob {types.blob} NOT NULL,
        PRIMARY KEY (purpose, number)
    )"""
    return (secrets,)


def m010_due(types: Types) -> tuple[str, ...]:
    """When a session's background work is due; sessions written by older versions are due at once."""
    column = f"ALTER TABLE turnkeeper_sessions ADD COLUMN due {types.real} NOT NULL DEFAULT 0"
    leases = f"""CREATE TABLE turnkeeper_leases (
        name TEXT PRIMARY KEY,
        token {types.blob} NOT NULL,
        expires {types.real} NOT NULL
    )"""
    return column, leases


def m011_stems(types: Types) -> tuple[str, ...]:
    """Stems by language. ``m016_verbs`` replaces its index."""
    return (_no_index(types, "turnkeeper_passages_lexicon"),)


def m012_turns(types: Types) -> tuple[str, ...]:
    """Fewer index writes per turn: few turns have a speaker, and the unique key has their order."""
    return (
        _index(types, "turnkeeper_turns_guest", "turnkeeper_turns (speaker) WHERE speaker IS NOT NULL"),
        _no_index(types, "turnkeeper_turns_speaker"),
        _no_index(types, "turnkeeper_turns_place"),
    )


def m013_due(types: Types) -> tuple[str, ...]:
    """An index of sessions with background work by when it is due."""
    return (_index(types, "turnkeeper_sessions_due", f"turnkeeper_sessions (due) WHERE due < {_NEVER}"),)


def m014_vectors(types: Types) -> tuple[str, ...]:
    """An index of an owner's vectors without a copy of their bytes."""
    return (
        _index(types, "turnkeeper_vectors_newest", "turnkeeper_vectors (owner, model, passage DESC)"),
        _no_index(types, "turnkeeper_vectors_owner"),
    )


def m015_numbers(types: Types) -> tuple[str, ...]:
    """Terms for the ends of long numbers. ``m016_verbs`` replaces its index."""
    return (_no_index(types, "turnkeeper_passages_stems"),)


def m016_verbs(types: Types) -> tuple[str, ...]:
    """``lives`` and ``leaves`` are verbs; an index finds passages of an older lexicon."""
    return (
        _index(types, "turnkeeper_passages_verbs", "turnkeeper_passages (id) WHERE lexicon < 4"),
        _no_index(types, "turnkeeper_passages_numbers"),
    )


def _index(types: Types, name: str, columns: str) -> str:
    return f"CREATE INDEX{types.concurrently} IF NOT EXISTS {name} ON {columns}"


def _no_index(types: Types, name: str) -> str:
    return f"DROP INDEX{types.concurrently} IF EXISTS {name}"


MIGRATIONS: Final[tuple[Migration, ...]] = (
    m001_sessions,
    m002_deletions,
    m003_archive,
    m004_vectors,
    m005_expiry,
    m006_lexicon,
    m007_talks,
    m008_speakers,
    m009_secrets,
    m010_due,
    m011_stems,
    m012_turns,
    m013_due,
    m014_vectors,
    m015_numbers,
    m016_verbs,
)
INDEXING: Final = frozenset({m011_stems, m012_turns, m013_due, m014_vectors, m015_numbers, m016_verbs})
"""Migrations of indexes only, which may run again, and on which no statement depends."""


def pending_migrations(applied: Collection[str]) -> list[Migration]:
    """Returns the migrations that are still to be run, in order.

    Raises StoreError for a database with unknown migrations.
    """
    migrations = {migration.__name__: migration for migration in MIGRATIONS}
    if unknown := sorted(set(applied) - migrations.keys()):
        raise StoreError(
            f"The memory database was made by a newer Turnkeeper ({unknown[0]} is unknown here)."
            " Upgrade Turnkeeper, or set MEMORY_URL to another database."
        )
    return [migration for name, migration in migrations.items() if name not in applied]


def migration_statements(migration: Migration, types: Types) -> tuple[str, ...]:
    """The statements of a migration, the last of which is its record."""
    return (*migration(types), f"INSERT INTO {LEDGER} (name) VALUES ('{migration.__name__}')")
