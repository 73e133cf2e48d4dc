"""The SQL of the archive for both databases, and the differences between these.

Names in the schema are older than those in the code: a row of ``talks`` is an archived session, a row of
``people`` is an owner, ``life`` is a call, and ``mark`` is the time as of which a session was saved.
"""

import json
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from proxy.memory.stores.sql import Statement

TURN, FACT, DOCUMENT = 1, 2, 3
LEXICON: Final = 4
"""The version of the lexicon. A change of how words become terms must raise it, and add a migration like
``m016_verbs``, so that older passages are indexed again."""
USER, SESSION, ANONYMOUS = 0, 1, 2
"""The kinds of tombstones: a user, a session, and the turns of a session that have no user."""

_SQLITE_IDS: Final = "SELECT value FROM json_each(:ids)"
_POSTGRES_IDS: Final = (
    "SELECT CAST(e AS bigint) FROM json_array_elements_text(CAST(CAST(:ids AS text) AS json)) e"
)


def json_array(ids: Iterable[int]) -> str:
    """Encodes ids as the argument ``:ids``."""
    return json.dumps(list(ids))


def _of_ids(text: str) -> Statement:
    """Returns a statement in which a query of the argument ``:ids`` replaces ``{ids}``."""
    return Statement(text.replace("{ids}", _SQLITE_IDS), text.replace("{ids}", _POSTGRES_IDS))


# --- owners and tombstones

OWNER_ID: Final = Statement("SELECT id FROM turnkeeper_people WHERE tenant = :tenant AND person = :person")
_OWNER: Final = f"({OWNER_ID.named})"
INSERT_OWNER: Final = Statement(
    "INSERT INTO turnkeeper_people (tenant, person) VALUES (:tenant, :person)"
    " ON CONFLICT (tenant, person) DO UPDATE SET tenant = excluded.tenant RETURNING id"
)
RENEW_OWNER: Final = Statement("UPDATE turnkeeper_people SET tenant = tenant WHERE id = :owner RETURNING id")
LIST_OWNERS: Final = Statement(
    "SELECT person FROM turnkeeper_people o WHERE tenant = :tenant AND person > :after AND"
    " (EXISTS (SELECT 1 FROM turnkeeper_facts WHERE owner = o.id)"
    " OR EXISTS (SELECT 1 FROM turnkeeper_turns WHERE owner = o.id)"
    " OR EXISTS (SELECT 1 FROM turnkeeper_turns WHERE speaker = o.id)) ORDER BY person LIMIT :limit"
)
OWNER_SESSIONS: Final = Statement(
    "SELECT k.session, MAX(t.at), COUNT(*) FROM turnkeeper_turns t JOIN turnkeeper_talks k ON k.id = t.talk"
    f" WHERE t.owner = {_OWNER} OR t.speaker = {_OWNER}"
    " GROUP BY k.session ORDER BY MAX(t.at) DESC LIMIT :limit"
)
DELETE_OWNER: Final = Statement("DELETE FROM turnkeeper_people WHERE id = :owner")
SECRETS: Final = Statement("SELECT blob FROM turnkeeper_secrets WHERE purpose = :purpose ORDER BY number")
INSERT_SECRET: Final = Statement(
    "INSERT INTO turnkeeper_secrets (purpose, number, blob) VALUES (:purpose, :number, :blob)"
    " ON CONFLICT (purpose, number) DO NOTHING"
)
UPDATE_SECRET: Final = Statement(
    "UPDATE turnkeeper_secrets SET blob = :blob WHERE purpose = :purpose AND blob = :stored"
)
TOMBSTONE: Final = Statement(
    "SELECT MAX(at) FROM turnkeeper_tombstones"
    " WHERE tenant = :tenant AND kind = :kind AND (name = :name OR name = :plain)"
)
TOMBSTONE_TIME: Final = Statement(
    "SELECT at FROM turnkeeper_tombstones WHERE tenant = :tenant AND kind = :kind AND name = :name"
)
TOMBSTONES: Final = Statement(
    "SELECT kind, name, at FROM turnkeeper_tombstones"
    " WHERE tenant = :tenant AND at >= :since AND at <= :until"
)
UPSERT_TOMBSTONE: Final = Statement(
    "INSERT INTO turnkeeper_tombstones (tenant, kind, name, at) VALUES (:tenant, :kind, :name, :at)"
    " ON CONFLICT (tenant, kind, name) DO UPDATE SET at = excluded.at"
)
NAMED_TOMBSTONES: Final = Statement(
    "SELECT tenant, kind, name, at FROM turnkeeper_tombstones WHERE name < :digests LIMIT :limit"
)
MOVE_TOMBSTONE: Final = Statement(
    "INSERT INTO turnkeeper_tombstones AS t (tenant, kind, name, at) VALUES (:tenant, :kind, :name, :at)"
    " ON CONFLICT (tenant, kind, name) DO UPDATE SET at = excluded.at WHERE t.at < excluded.at"
)
DELETE_TOMBSTONE: Final = Statement(
    "DELETE FROM turnkeeper_tombstones WHERE tenant = :tenant AND kind = :kind AND name = :name"
)
DELETE_OLD_TOMBSTONES: Final = Statement(
    "DELETE FROM turnkeeper_tombstones WHERE tenant = :tenant AND kind = :kind AND at < :before"
)

# --- turns

# One statement, so that of two processes that save a session the second compares with the first one's row.
UPSERT_SESSION: Final = Statement(
    "INSERT INTO turnkeeper_talks AS k (tenant, session, created, mark, updated)"
    " VALUES (:tenant, :session, :created, :mark, :updated)"
    " ON CONFLICT (tenant, session, created) DO UPDATE SET updated = excluded.updated, mark ="
    " CASE WHEN k.mark > excluded.mark AND k.mark <= :ahead THEN k.mark ELSE excluded.mark END"
    " WHERE k.updated <= excluded.updated OR k.updated > :ahead RETURNING id"
)
_SESSION_HEAD: Final = (
    "SELECT id, {}, updated FROM turnkeeper_talks"
    " WHERE tenant = :tenant AND session = :session AND created = :created"
)
# In SQLite, a save changes the time or the number of turns, and an erasure reduces that number. An older
# state that only updates a turn changes neither, and is noticed once a turn is added.
SESSION_HEAD: Final = Statement(
    _SESSION_HEAD.format(
        "mark || '/' || (SELECT COUNT(*) FROM turnkeeper_turns t WHERE t.talk = turnkeeper_talks.id)"
    ),
    _SESSION_HEAD.format("xmin::text::bigint"),
)
"""Selects the id, the version and ``updated`` of a session's row."""
SAVED_TIME: Final = Statement(
    "SELECT MAX(mark) FROM turnkeeper_talks WHERE tenant = :tenant AND session = :session"
)
# A row that belongs to no tenant: its ``mark`` counts the comparisons of the session store with the archive.
COMPARISONS: Final = Statement(
    "SELECT mark FROM turnkeeper_talks WHERE tenant = :tenant AND session = :session AND created = 0"
)
SET_COMPARISONS: Final = Statement(
    "INSERT INTO turnkeeper_talks (tenant, session, created, mark) VALUES (:tenant, :session, 0, :mark)"
    " ON CONFLICT (tenant, session, created) DO UPDATE SET mark = excluded.mark"
)
LIST_SESSIONS: Final = Statement(
    "SELECT session, MAX(mark) FROM turnkeeper_talks WHERE tenant = :tenant AND session > :after"
    " GROUP BY session ORDER BY session LIMIT :limit"
)
_OF_SESSION: Final = (
    "FROM turnkeeper_talks k JOIN turnkeeper_turns t ON t.talk = k.id"
    " WHERE k.tenant = :tenant AND k.session = :session AND k.created = :created"
)
STORED_TURNS: Final = Statement(
    f"SELECT t.id, t.life, t.turn, t.role, t.position, t.digest, t.place {_OF_SESSION}"
    " AND (t.life, t.turn) >= (:life, :turn) AND (t.life, t.turn) < (:until, :end)"
)
LAST_PLACE_BEFORE: Final = Statement(
    f"SELECT MAX(t.place) {_OF_SESSION} AND (t.life, t.turn) < (:life, :turn)"
)
_TURN_TYPES: Final = {
    "life": "bigint",
    "turn": "bigint",
    "role": "text",
    "position": "bigint",
    "place": "bigint",
    "owner": "bigint",
    "speaker": "bigint",
    "at": "float8",
    "recorded": "float8",
    "digest": "bytea",
    "blob": "bytea",
}
TURN_COLUMNS: Final = tuple(_TURN_TYPES)
"""The columns of a turn except its session; the first four are its position in the session."""
# For SQLite, under its write lock: reading back the id of each inserted row would cost more than the row.
NEXT_TURN: Final = Statement("SELECT COALESCE(MAX(id), 0) + 1 FROM turnkeeper_turns")
INSERT_TURN: Final = Statement(
    f"INSERT INTO turnkeeper_turns (id, talk, {', '.join(TURN_COLUMNS)})"
    f" VALUES (:item, :talk, :{', :'.join(TURN_COLUMNS)})"
)
UPDATE_TURN: Final = Statement(
    f"UPDATE turnkeeper_turns SET {', '.join(f'{name} = :{name}' for name in TURN_COLUMNS[4:])}"
    " WHERE id = :item"
)
DELETE_TURN: Final = Statement("DELETE FROM turnkeeper_turns WHERE id = :item")
_TURN_COLUMNS: Final = (
    "t.id, k.session, k.created, t.at, t.blob"
    " FROM turnkeeper_turns t JOIN turnkeeper_talks k ON k.id = t.talk"
)
USER_TURNS: Final = Statement(
    f"SELECT {_TURN_COLUMNS} WHERE (t.owner = {_OWNER} OR t.speaker = {_OWNER}) AND t.id > :after"
    " ORDER BY t.id LIMIT :limit"
)
SESSION_TURNS: Final = Statement(
    f"SELECT {_TURN_COLUMNS} WHERE k.tenant = :tenant AND k.session = :session"
    " ORDER BY k.created, t.place, t.id LIMIT :limit OFFSET :start"
)
# The turn that was saved last may be older than others, and a turn without words has no passage.
_LATEST_SESSION: Final = (
    "SELECT talk FROM (SELECT * FROM (SELECT talk, at FROM turnkeeper_passages"
    f" WHERE owner = {_OWNER} AND kind = 1 ORDER BY at DESC LIMIT 1) p"
    " UNION ALL SELECT * FROM (SELECT talk, at FROM turnkeeper_turns"
    f" WHERE owner = {_OWNER} ORDER BY id DESC LIMIT 1) o"
    " UNION ALL SELECT * FROM (SELECT talk, at FROM turnkeeper_turns"
    f" WHERE speaker = {_OWNER} ORDER BY id DESC LIMIT 1) s) newest ORDER BY at DESC LIMIT 1"
)
LATEST_TURNS: Final = Statement(
    f"SELECT {_TURN_COLUMNS} WHERE t.talk = ({_LATEST_SESSION})"
    f" AND (t.owner = {_OWNER} OR t.speaker = {_OWNER}) ORDER BY t.place DESC, t.id DESC LIMIT :limit"
)

# --- erasure

_SOME: Final = "SELECT id, talk, length(blob) FROM turnkeeper_turns WHERE"
_SESSION_IDS: Final = "SELECT id FROM turnkeeper_talks WHERE tenant = :tenant AND session = :session"
_SESSION_LOCK: Final = (
    "SELECT 1 FROM pg_advisory_xact_lock{}("
    "hashtextextended(encode(:tenant, 'hex') || '/' || encode(:session, 'hex'), 0))"
)
# A session that is being erased may have no row to lock yet. SQLite's write transactions exclude each other.
LOCK_SESSION: Final = Statement("SELECT :tenant, :session", _SESSION_LOCK.format(""))
"""Locks a session; waits for transactions that save it for the first time, or erase it."""
SHARE_SESSION: Final = Statement("SELECT :tenant, :session", _SESSION_LOCK.format("_shared"))
"""Locks a session, shared with others that save it; waits for transactions that erase it."""
RENEW_SESSION: Final = Statement(
    "UPDATE turnkeeper_talks SET mark = mark WHERE tenant = :tenant AND session = :session"
)
SOME_OF_USER: Final = Statement(f"{_SOME} owner = :owner OR speaker = :owner LIMIT :limit")
SOME_OF_SESSION: Final = Statement(f"{_SOME} talk IN ({_SESSION_IDS}) LIMIT :limit")
SOME_OF_NOBODY: Final = Statement(f"{_SOME} owner IS NULL AND talk IN ({_SESSION_IDS}) LIMIT :limit")
SOME_FACTS: Final = Statement(
    "SELECT id, 0, length(blob) FROM turnkeeper_facts WHERE owner = :owner LIMIT :limit"
)
FORGET_PASSAGES: Final = Statement("DELETE FROM turnkeeper_passages WHERE owner = :owner")
FORGET_SESSION_PASSAGES: Final = Statement(
    f"DELETE FROM turnkeeper_passages WHERE kind = 1 AND talk IN ({_SESSION_IDS})"
)
_DELETE_IF_EMPTY: Final = (
    "DELETE FROM turnkeeper_talks WHERE id IN ({})"
    " AND NOT EXISTS (SELECT 1 FROM turnkeeper_turns t WHERE t.talk = turnkeeper_talks.id)"
)
DELETE_IF_EMPTY: Final = Statement(_DELETE_IF_EMPTY.format(_SESSION_IDS))
DELETE_EMPTY: Final = _of_ids(_DELETE_IF_EMPTY.format("{ids}"))
# A new version of the rows makes writers that are saving these sessions read them again.
RENEW_SESSIONS: Final = _of_ids("UPDATE turnkeeper_talks SET mark = mark WHERE id IN ({ids})")
DELETE_ITEMS: Final = {
    kind: _of_ids(f"DELETE FROM turnkeeper_{table} WHERE id IN ({{ids}})")
    for kind, table in ((TURN, "turns"), (FACT, "facts"))
}
_OLD_TURNS: Final = (
    "SELECT t.id, t.talk, length(t.blob), t.recorded"
    " FROM turnkeeper_turns t JOIN turnkeeper_talks k ON k.id = t.talk"
    " WHERE t.recorded >= :since AND t.recorded < :before ORDER BY t.recorded, t.id LIMIT :limit"
)
# Locks sessions before their turns, as every transaction does, and skips those that others are writing.
OLD_TURNS: Final = Statement(_OLD_TURNS, f"{_OLD_TURNS} FOR UPDATE OF k SKIP LOCKED")

# --- facts and documents

UPSERT_FACT: Final = Statement(
    "INSERT INTO turnkeeper_facts (owner, name, category, created, expires, superseded, importance, blob)"
    " VALUES (:owner, :name, :category, :created, :expires, :superseded, :importance, :blob)"
    " ON CONFLICT (owner, name) DO UPDATE SET category = excluded.category, created = excluded.created,"
    " expires = excluded.expires, superseded = excluded.superseded, importance = excluded.importance,"
    " blob = excluded.blob RETURNING id"
)
SUPERSEDE: Final = Statement(
    "UPDATE turnkeeper_facts SET superseded = :created"
    " WHERE owner = :owner AND name = :replaces AND superseded IS NULL RETURNING id"
)
_FACTS: Final = (
    f"SELECT superseded, blob FROM turnkeeper_facts WHERE owner = {_OWNER}"
    " AND (expires IS NULL OR expires > :now){} ORDER BY created, id"
)
FACTS: Final = Statement(_FACTS.format(" AND superseded IS NULL"))
ALL_FACTS: Final = Statement(_FACTS.format(""))
DELETE_FACT: Final = Statement(
    f"DELETE FROM turnkeeper_facts WHERE owner = {_OWNER} AND name = :name RETURNING id"
)
_EXPIRE_FACTS: Final = (
    "DELETE FROM turnkeeper_facts WHERE id IN (SELECT id FROM turnkeeper_facts"
    " WHERE expires <= :now ORDER BY expires, id LIMIT :limit{}) RETURNING id"
)
EXPIRE_FACTS: Final = Statement(_EXPIRE_FACTS.format(""), _EXPIRE_FACTS.format(" FOR UPDATE SKIP LOCKED"))
INSERT_CHUNK: Final = Statement(
    "INSERT INTO turnkeeper_documents (tenant, path, chunk, added, blob)"
    " VALUES (:tenant, :path, :chunk, :at, :blob) RETURNING id"
)
DOCUMENTS: Final = Statement(
    "SELECT DISTINCT path FROM turnkeeper_documents WHERE tenant = :tenant ORDER BY path"
)
DELETE_DOCUMENT_PASSAGES: Final = Statement(
    "DELETE FROM turnkeeper_passages WHERE kind = 3 AND item IN"
    " (SELECT id FROM turnkeeper_documents WHERE tenant = :tenant AND path = :path)"
)
DELETE_DOCUMENT: Final = Statement(
    "DELETE FROM turnkeeper_documents WHERE tenant = :tenant AND path = :path RETURNING id"
)

# --- the index and its vectors

PASSAGE_COLUMNS: Final = "p.id, p.kind, p.item, p.talk, p.place, p.at, p.terms"
# An unchanged passage keeps its vector.
_RENEW_PASSAGE: Final = (
    "ON CONFLICT (kind, item) DO UPDATE SET owner = excluded.owner, talk = excluded.talk,"
    " place = excluded.place, at = excluded.at, terms = excluded.terms, lexicon = excluded.lexicon,"
    " meant = '' WHERE p.owner <> excluded.owner OR p.talk <> excluded.talk OR p.place <> excluded.place"
    " OR p.at <> excluded.at OR p.terms <> excluded.terms OR p.lexicon <> excluded.lexicon RETURNING id"
)
UPSERT_PASSAGE: Final = Statement(
    "INSERT INTO turnkeeper_passages AS p (owner, kind, item, talk, place, at, terms, lexicon)"
    f" VALUES (:owner, :kind, :item, :talk, :place, :at, :terms, {LEXICON}) {_RENEW_PASSAGE}"
)
# These two insert all passages with one statement: at the beginning of every statement, SQLite writes the
# terms that the index has collected.
INSERT_PASSAGES: Final = Statement(
    "INSERT INTO turnkeeper_passages (owner, kind, item, talk, place, at, terms, lexicon)"
    f" SELECT t.owner, 1, t.id, t.talk, t.place, t.at, r.value, {LEXICON}"
    " FROM json_each(:terms) r CROSS JOIN turnkeeper_turns t WHERE t.id = :first + r.key AND r.value <> ''"
)
UPSERT_PASSAGES: Final = Statement(
    "INSERT INTO turnkeeper_passages AS p (owner, kind, item, talk, place, at, terms, lexicon)"
    " SELECT json_extract(r.value, '$[0]'), 1, t.id, t.talk, t.place, t.at, json_extract(r.value, '$[2]'),"
    f" {LEXICON} FROM json_each(:rows) r CROSS JOIN turnkeeper_turns t"
    f" WHERE t.id = json_extract(r.value, '$[1]') {_RENEW_PASSAGE}, item"
)
DELETE_PASSAGE: Final = Statement("DELETE FROM turnkeeper_passages WHERE kind = :kind AND item = :item")
DELETE_PASSAGES: Final = _of_ids("DELETE FROM turnkeeper_passages WHERE kind = :kind AND item IN ({ids})")
OWNER_SIZE: Final = Statement(
    "SELECT id, (SELECT COUNT(*) FROM turnkeeper_passages p WHERE p.owner = o.id) FROM turnkeeper_people o"
    " WHERE tenant = :tenant AND person = :person"
)
PASSAGES_IN_RANGE: Final = Statement(
    f"SELECT {PASSAGE_COLUMNS} FROM turnkeeper_passages p WHERE p.owner = :owner"
    " AND p.at >= :begin AND p.at < :end ORDER BY p.at DESC LIMIT :limit"
)
_VECTOR: Final = "array_to_tsvector(string_to_array(p.terms, ' '))"
_TSQUERY: Final = "CAST(CAST(:terms AS text) AS tsquery)"
_FTS5_MATCH: Final = (
    f"SELECT {PASSAGE_COLUMNS} FROM turnkeeper_index CROSS JOIN turnkeeper_passages p"
    " WHERE turnkeeper_index MATCH :terms AND p.id = turnkeeper_index.rowid AND +p.owner = :owner"
)
_TSQUERY_MATCH: Final = (
    f"SELECT {PASSAGE_COLUMNS} FROM turnkeeper_passages p WHERE p.owner = :owner AND {_VECTOR} @@ {_TSQUERY}"
)
MATCH_ALL: Final = Statement(f"{_FTS5_MATCH} LIMIT :limit", f"{_TSQUERY_MATCH} LIMIT :limit")
"""Selects an owner's passages with any of the terms, in no order."""
MATCH_BEST: Final = Statement(
    f"{_FTS5_MATCH} ORDER BY turnkeeper_index.rank LIMIT :limit",
    f"{_TSQUERY_MATCH} ORDER BY ts_rank({_VECTOR}, {_TSQUERY}) DESC, p.id DESC LIMIT :limit",
)
"""Selects the best of these passages, the best first."""
# The plus keeps SQLite from using the owner's index: it starts with the ids, and reads only their rows.
PASSAGES_BY_ID: Final = _of_ids(
    f"SELECT {PASSAGE_COLUMNS} FROM turnkeeper_passages p WHERE +p.owner = :owner AND p.id IN ({{ids}})"
)
_NEAR: Final = 2
PASSAGES_NEAR: Final = _of_ids(
    f"SELECT {PASSAGE_COLUMNS} FROM turnkeeper_passages h CROSS JOIN turnkeeper_passages p"
    f" WHERE h.id IN ({{ids}}) AND +h.owner = :owner AND +h.kind = 1 AND p.talk = h.talk"
    f" AND p.place BETWEEN h.place - {_NEAR} AND h.place + {_NEAR} AND p.owner = h.owner AND p.kind = 1"
)
"""Selects an owner's turns among the passages ``:ids``, with their neighbours in the session."""
TEXTS: Final = {
    TURN: _of_ids(
        "SELECT t.id, k.session, t.at, t.blob FROM turnkeeper_turns t"
        " JOIN turnkeeper_talks k ON k.id = t.talk WHERE t.id IN ({ids})"
    ),
    FACT: _of_ids(
        "SELECT id, name, created, blob FROM turnkeeper_facts WHERE id IN ({ids})"
        " AND superseded IS NULL AND (expires IS NULL OR expires > :now)"
    ),
    DOCUMENT: _of_ids("SELECT id, path, added, blob FROM turnkeeper_documents WHERE id IN ({ids})"),
}
"""By kind, the statement that selects the items ``:ids``: id, name, time and blob."""
# A turn, and the turns before and after it.
_BESIDE: Final = "n.talk = p.talk AND n.place BETWEEN p.place - 1 AND p.place + 1 AND n.kind = 1"
_WITH_OWNER: Final = (
    "SELECT p.id, p.kind, p.item, p.terms, o.tenant, o.person FROM turnkeeper_passages p"
    " JOIN turnkeeper_people o ON o.id = p.owner"
)
OUTDATED_PASSAGES: Final = Statement(f"{_WITH_OWNER} WHERE p.lexicon < {LEXICON} ORDER BY p.id LIMIT :limit")
MARK_UP_TO_DATE: Final = Statement(
    f"UPDATE turnkeeper_passages SET lexicon = {LEXICON} WHERE id = :passage AND terms = :terms"
)
REINDEX_PASSAGE: Final = Statement(
    f"UPDATE turnkeeper_passages SET terms = :anew, lexicon = {LEXICON}"
    " WHERE id = :passage AND terms = :terms"
)
# A turn from after :until is left out until another one follows it.
UNEMBEDDED: Final = Statement(
    f"{_WITH_OWNER} WHERE (p.meant < :model OR p.meant > :model) AND (p.kind <> 1 OR p.at <= :until"
    " OR EXISTS (SELECT 1 FROM turnkeeper_passages n WHERE n.talk = p.talk AND n.place > p.place"
    " AND n.owner = p.owner AND n.kind = 1)) LIMIT :limit"
)
MARK_EMBEDDED: Final = Statement(
    "UPDATE turnkeeper_passages SET meant = :model WHERE id = :passage AND terms = :terms RETURNING owner"
)
MARK_DUE: Final = Statement("UPDATE turnkeeper_passages SET meant = '' WHERE id = :passage")
UPSERT_VECTOR: Final = Statement(
    "INSERT INTO turnkeeper_vectors (passage, owner, model, sign, blob)"
    " VALUES (:passage, :owner, :model, :sign, :blob)"
    " ON CONFLICT (passage) DO UPDATE SET owner = excluded.owner, model = excluded.model,"
    " sign = excluded.sign, blob = excluded.blob"
)
DELETE_VECTOR: Final = Statement("DELETE FROM turnkeeper_vectors WHERE passage = :passage")
DELETE_VECTORS: Final = _of_ids("DELETE FROM turnkeeper_vectors WHERE passage IN ({ids})")
SIGN_BITS: Final = Statement(
    "SELECT passage, sign FROM turnkeeper_vectors WHERE owner = :owner AND model = :model"
    " ORDER BY passage DESC LIMIT :limit"
)

BESIDE: Final = _of_ids(
    "SELECT p.id, n.place - p.place, n.item, n.terms FROM turnkeeper_passages p"
    f" CROSS JOIN turnkeeper_passages n WHERE p.id IN ({{ids}}) AND p.kind = 1 AND {_BESIDE}"
    " AND n.owner = p.owner ORDER BY p.id, n.place"
)
"""Selects each turn among the passages ``:ids`` and its owner's turns beside it.

The columns are the passage, and the distance, item and terms of the turn beside it."""


def _mark_beside(passages: str, but: str = "") -> str:
    """Returns SQL that has turns and those beside them embedded again, whoever owns these.

    The owner of the ``passages`` may just have changed.
    """
    return (
        "UPDATE turnkeeper_passages SET meant = '' FROM (SELECT DISTINCT n.id FROM turnkeeper_passages p"
        f" CROSS JOIN turnkeeper_passages n WHERE {passages} AND p.kind = 1 AND {_BESIDE}{but}) AS b"
        " WHERE turnkeeper_passages.id = b.id RETURNING turnkeeper_passages.id"
    )


MARK_BESIDE: Final = _of_ids(_mark_beside("p.item IN ({ids})"))
"""Has the turns ``:ids``, and those beside them, embedded again; returns the ids of their passages."""

# --- many sessions in one statement, only in PostgreSQL


def _turn_rows(prefix: str, *more: str) -> str:
    """Returns SQL that selects turns from arrays, one per column, with the ids of their sessions.

    ``reader`` is the owner of the passage.
    """
    others = {"reader": "bigint", "terms": "text", **dict.fromkeys(more, "bigint")}
    columns = {"n": "bigint", **_TURN_TYPES, **others}
    arrays = ", ".join(f":{prefix}{name}::{kind}[]" for name, kind in columns.items())
    return (
        f"SELECT k.id AS talk, r.* FROM unnest({arrays}) AS r ({', '.join(columns)}) JOIN saved k USING (n)"
    )


# The version of a session's row is the transaction that wrote it. A session is skipped if its row has changed
# since it was read. Nothing is written if tombstones or their keys have changed, or if a user was removed:
# the lock on the users' rows makes a write and an erasure wait for each other.
_SAVED: Final = """WITH people AS (
    SELECT id FROM turnkeeper_people WHERE id = ANY(:people::bigint[]) ORDER BY id FOR SHARE
), s AS (
    SELECT * FROM unnest(
        :talks::bigint[], :versions::bigint[], :tenants::bytea[], :sessions::bytea[], :createds::float8[],
        :marks::float8[], :updateds::float8[]
    ) WITH ORDINALITY AS s (talk, version, tenant, session, created, mark, updated, n)
    WHERE :erased::float8[] = ARRAY(
        SELECT t.at FROM unnest(:graveyards::bytea[], :gravekinds::bigint[], :graves::bytea[])
            AS g (tenant, kind, name) JOIN turnkeeper_tombstones t USING (tenant, kind, name) ORDER BY t.at
    ) AND :keys::bytea[] = ARRAY(
        SELECT blob FROM turnkeeper_secrets WHERE purpose = :purpose ORDER BY number
    ) AND cardinality(:people::bigint[]) = (SELECT COUNT(*) FROM people)
), renewed AS (
    UPDATE turnkeeper_talks k SET updated = s.updated, mark =
        CASE WHEN k.mark > s.mark AND k.mark <= :ahead THEN k.mark ELSE s.mark END
    FROM s WHERE k.id = s.talk AND k.xmin::text::bigint = s.version RETURNING k.id, s.n
), made AS (
    INSERT INTO turnkeeper_talks (tenant, session, created, mark, updated)
    SELECT tenant, session, created, mark, updated FROM s WHERE talk IS NULL
    ON CONFLICT DO NOTHING RETURNING id, tenant, session, created
), saved AS (
    SELECT id, n FROM renewed
    UNION ALL SELECT m.id, s.n FROM made m JOIN s USING (tenant, session, created)
), fresh AS (
    {added}
), added AS (
    INSERT INTO turnkeeper_turns
        (talk, life, turn, role, position, place, owner, speaker, at, recorded, digest, blob)
    SELECT talk, life, turn, role, position, place, owner, speaker, at, recorded, digest, blob FROM fresh
    RETURNING id, talk, life, turn, role, position
), indexed AS (
    INSERT INTO turnkeeper_passages (owner, kind, item, talk, place, at, terms, lexicon)
    SELECT f.reader, 1, a.id, f.talk, f.place, f.at, f.terms, {lexicon}
    FROM fresh f JOIN added a USING (talk, life, turn, role, position) WHERE f.terms IS NOT NULL
)"""
_REVISED: Final = """, revised AS (
    {changed}
), rewritten AS (
    UPDATE turnkeeper_turns t SET place = r.place, owner = r.owner, speaker = r.speaker, at = r.at,
        recorded = r.recorded, digest = r.digest, blob = r.blob
    FROM revised r WHERE t.id = r.item
), dropped AS (
    DELETE FROM turnkeeper_turns t USING unnest(:droppedn::bigint[], :dropped::bigint[]) AS d (n, item)
        JOIN saved USING (n) WHERE t.id = d.item
), unindexed AS (
    DELETE FROM turnkeeper_passages p USING unnest(:unreadn::bigint[], :unread::bigint[]) AS u (n, item)
        JOIN saved USING (n) WHERE p.kind = 1 AND p.item = u.item
), reindexed AS (
    INSERT INTO turnkeeper_passages AS p (owner, kind, item, talk, place, at, terms, lexicon)
    SELECT reader, 1, item, talk, place, at, terms, {lexicon} FROM revised WHERE terms IS NOT NULL {renew}
), altered AS (
    SELECT id FROM reindexed
    UNION ALL SELECT p.id FROM unnest(:unreadn::bigint[], :unread::bigint[]) AS u (n, item)
        JOIN saved USING (n) JOIN turnkeeper_passages p ON p.kind = 1 AND p.item = u.item
), beside AS (
    {beside}
), unembedded AS (
    DELETE FROM turnkeeper_vectors v USING (SELECT id FROM reindexed UNION ALL SELECT id FROM beside) r
    WHERE v.passage = r.id
)"""
_WRITTEN: Final = """ SELECT k.n, k.id, txid_current() % 4294967296, ARRAY(
    SELECT ROW(a.id, a.life, a.turn, a.role, a.position) FROM added a WHERE a.talk = k.id
) FROM saved k"""


def _saving(text: str) -> Statement:
    return Statement(
        text.format(
            added=_turn_rows("added"),
            changed=_turn_rows("changed", "item"),
            lexicon=LEXICON,
            renew=_RENEW_PASSAGE,
            beside=_mark_beside(
                "p.id IN (SELECT id FROM altered)", " AND n.id NOT IN (SELECT id FROM altered)"
            ),
        )
    )


ADD_TURNS: Final = _saving(_SAVED + _WRITTEN)
"""Adds turns to sessions, and to the index."""
CHANGE_TURNS: Final = _saving(_SAVED + _REVISED + _WRITTEN)
"""Adds, changes and deletes turns, with their passages and vectors."""

# --- other differences between the databases


class Dialect(NamedTuple):
    """The query syntax of one database, and the size of its transactions."""

    any_term: Callable[[Iterable[str]], str]
    """Returns the argument ``:terms`` that matches passages with any of these terms."""
    batch: int
    """How many characters one transaction writes or deletes; each row adds some to its text."""


def _fts5_query(terms: Iterable[str]) -> str:
    """Returns an FTS5 query for any of the terms."""
    return " OR ".join('"' + term.replace('"', '""') + '"' for term in terms)


def _tsquery(terms: Iterable[str]) -> str:
    """Returns a tsquery for any of the terms."""
    return " | ".join("'" + term.replace("\\", "\\\\").replace("'", "''") + "'" for term in terms)


SQLITE: Final = Dialect(_fts5_query, batch=80_000)
POSTGRES: Final = Dialect(_tsquery, batch=500_000)
