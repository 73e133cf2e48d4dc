"""How the tables came to be: a list that only ever grows, each step recorded where it has been taken."""

from collections.abc import Callable, Collection, Iterator
from typing import Final

import msgspec

from proxy.memory.faults import StoreError


class Types(msgspec.Struct, frozen=True):
    """What a database calls its types."""

    identity: str
    """A whole number that the database gives to each row, its primary key."""
    number: str
    real: str
    blob: str
    index: tuple[str, ...] = ()
    """The statements that make an index of the words in ``turnkeeper_passages.terms``."""


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


def m003_archive(types: Types) -> tuple[str, ...]:
    """Every turn as heard, under whose it is; facts, documents, and the words of all of them."""
    return (*_people(types), *_kept(types), *_known(types), *_passages(types), *types.index)


def _people(types: Types) -> tuple[str, ...]:
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
    return people, tombstones, talks


def _kept(types: Types) -> tuple[str, ...]:
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
    return turns, *indexes


def _known(types: Types) -> tuple[str, ...]:
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
    return facts, documents


def _passages(types: Types) -> tuple[str, ...]:
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
    return passages, by_time, by_place


def m004_vectors(types: Types) -> tuple[str, ...]:
    """What passages mean to a model; ``meant`` names the one that was asked last, empty where none was."""
    meant = "ALTER TABLE turnkeeper_passages ADD COLUMN meant TEXT NOT NULL DEFAULT ''"
    by_meant = "CREATE INDEX turnkeeper_passages_meant ON turnkeeper_passages (meant)"
    vectors = f"""CREATE TABLE turnkeeper_vectors (
        passage {types.number} PRIMARY KEY REFERENCES turnkeeper_passages (id) ON DELETE CASCADE,
        owner {types.number} NOT NULL,
        model TEXT NOT NULL,
        sign {types.blob} NOT NULL,
        blob {types.blob} NOT NULL
    )"""
    # It holds all that a look through an owner's signs reads.
    by_owner = (
        "CREATE INDEX turnkeeper_vectors_owner ON turnkeeper_vectors (owner, model, passage DESC, sign)"
    )
    return meant, by_meant, vectors, by_owner


def m005_expiry(types: Types) -> tuple[str, ...]:  # noqa: ARG001 - an index has none
    """Facts that expire are found by when they do."""
    return ("CREATE INDEX turnkeeper_facts_expires ON turnkeeper_facts (expires) WHERE expires IS NOT NULL",)


def m006_lexicon(types: Types) -> tuple[str, ...]:
    """Which way of telling words apart a passage was indexed in; those of an older one are found by it."""
    lexicon = f"ALTER TABLE turnkeeper_passages ADD COLUMN lexicon {types.number} NOT NULL DEFAULT 0"
    older = "CREATE INDEX turnkeeper_passages_lexicon ON turnkeeper_passages (id) WHERE lexicon < 1"
    return lexicon, older


def m007_talks(types: Types) -> tuple[str, ...]:
    """Which state of its session a talk was kept in last, by when that was updated; -1 is unknown."""
    return (f"ALTER TABLE turnkeeper_talks ADD COLUMN updated {types.real} NOT NULL DEFAULT -1",)


def m008_speakers(types: Types) -> tuple[str, ...]:  # noqa: ARG001 - an index has none
    """Where several spoke, all was indexed as one's: it is nobody's until it is found out whose it is."""
    spoken = "SELECT talk FROM turnkeeper_turns WHERE speaker IS NOT NULL"
    return (f"UPDATE turnkeeper_passages SET owner = 0 WHERE kind = 1 AND talk IN ({spoken})",)


MIGRATIONS: Final[tuple[Migration, ...]] = (
    m001_sessions,
    m002_deletions,
    m003_archive,
    m004_vectors,
    m005_expiry,
    m006_lexicon,
    m007_talks,
    m008_speakers,
)


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
