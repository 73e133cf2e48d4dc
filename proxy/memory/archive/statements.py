"""What the archive asks of either database, in words that both understand."""

import json
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from proxy.memory.stores.sql import Statement

TURN, FACT, DOCUMENT = 1, 2, 3
LEXICON: Final = 1
"""Which way of telling words apart an index is made in. Whoever changes the way counts on, and adds a
migration like ``m006_lexicon``, so that what is older is found."""
PERSON, SESSION, STRANGERS = 0, 1, 2
"""What a tombstone stands for."""
_TALKS_OF: Final = "SELECT id FROM turnkeeper_talks WHERE tenant = :tenant AND session = :session"
# Rows of the hot part: no cut parts a turn, so that a turn is hot or not.
_HOT: Final = "(life > :life OR (life = :life AND turn >= :turn))"
TOMBSTONE: Final = Statement(
    "SELECT at FROM turnkeeper_tombstones WHERE tenant = :tenant AND kind = :kind AND name = :name"
)
ENTOMB: Final = Statement(
    "INSERT INTO turnkeeper_tombstones (tenant, kind, name, at) VALUES (:tenant, :kind, :name, :at)"
    " ON CONFLICT (tenant, kind, name) DO UPDATE SET at = excluded.at"
)
UNEARTH: Final = Statement(
    "DELETE FROM turnkeeper_tombstones WHERE tenant = :tenant AND kind = :kind AND at < :before"
)
BURIED: Final = Statement(
    "SELECT kind, name, at FROM turnkeeper_tombstones"
    " WHERE tenant = :tenant AND at >= :since AND at <= :until"
)
PERSON_ID: Final = Statement("SELECT id FROM turnkeeper_people WHERE tenant = :tenant AND person = :person")
NEW_PERSON: Final = Statement(
    "INSERT INTO turnkeeper_people (tenant, person) VALUES (:tenant, :person)"
    " ON CONFLICT (tenant, person) DO UPDATE SET tenant = excluded.tenant RETURNING id"
)
NO_PERSON: Final = Statement("DELETE FROM turnkeeper_people WHERE id = :owner")
# In one statement, so that of two who keep one talk the second sees what the first has left.
TALK: Final = Statement(
    "INSERT INTO turnkeeper_talks AS k (tenant, session, created, mark, updated)"
    " VALUES (:tenant, :session, :created, :mark, :updated)"
    " ON CONFLICT (tenant, session, created) DO UPDATE SET updated = excluded.updated, mark ="
    " CASE WHEN k.mark > excluded.mark AND k.mark <= :ahead THEN k.mark ELSE excluded.mark END"
    " WHERE k.updated <= excluded.updated OR k.updated > :ahead RETURNING id"
)
MARKS: Final = Statement(
    "SELECT session, MAX(mark) FROM turnkeeper_talks WHERE tenant = :tenant GROUP BY session"
)
TALKS: Final = Statement(
    "SELECT session, MAX(mark) FROM turnkeeper_talks WHERE tenant = :tenant AND session > :after"
    " GROUP BY session ORDER BY session LIMIT :limit"
)
PUT_TURN: Final = Statement(
    "INSERT INTO turnkeeper_turns"
    " (talk, life, turn, role, position, place, owner, speaker, at, recorded, digest, blob) VALUES"
    " (:talk, :life, :turn, :role, :position, :place, :owner, :speaker, :at, :recorded, :digest, :blob)"
    " ON CONFLICT (talk, life, turn, role, position) DO UPDATE SET place = excluded.place,"
    " owner = excluded.owner, speaker = excluded.speaker, at = excluded.at, recorded = excluded.recorded,"
    " digest = excluded.digest, blob = excluded.blob RETURNING id"
)
NO_TURN: Final = Statement("DELETE FROM turnkeeper_turns WHERE id = :item")
NO_VECTOR: Final = Statement("DELETE FROM turnkeeper_vectors WHERE passage = :passage")
NO_PASSAGE: Final = Statement("DELETE FROM turnkeeper_passages WHERE kind = :kind AND item = :item")
OWNED: Final = Statement("SELECT COUNT(*) FROM turnkeeper_passages WHERE owner = :owner")
PASSAGE: Final = "p.id, p.kind, p.item, p.talk, p.place, p.at, p.terms"
_OF_ANYBODY: Final = (
    "SELECT p.id, p.kind, p.item, p.terms, o.tenant, o.person FROM turnkeeper_passages p"
    " JOIN turnkeeper_people o ON o.id = p.owner"
)
NOBODYS: Final = 0
"""The owner of passages of which it is still to be found out whose they are."""
OF_TALK: Final = Statement(
    "SELECT k.tenant, k.session, o.person, t.owner, t.id, t.place, t.at, t.blob"
    " FROM turnkeeper_turns t JOIN turnkeeper_talks k ON k.id = t.talk"
    " JOIN turnkeeper_people o ON o.id = t.owner WHERE t.talk = :talk ORDER BY t.place, t.id"
)
MEANT: Final = Statement(
    "UPDATE turnkeeper_passages SET meant = :model WHERE id = :passage AND terms = :terms RETURNING owner"
)
PUT_VECTOR: Final = Statement(
    "INSERT INTO turnkeeper_vectors (passage, owner, model, sign, blob)"
    " VALUES (:passage, :owner, :model, :sign, :blob)"
    " ON CONFLICT (passage) DO UPDATE SET owner = excluded.owner, model = excluded.model,"
    " sign = excluded.sign, blob = excluded.blob"
)
SIGNS: Final = Statement(
    "SELECT passage, sign FROM turnkeeper_vectors WHERE owner = :owner AND model = :model"
    " ORDER BY passage DESC LIMIT :limit"
)
_TURN: Final = (
    "t.id, k.session, k.created, t.at, t.turn, t.blob"
    " FROM turnkeeper_turns t JOIN turnkeeper_talks k ON k.id = t.talk"
)
# A turn that was kept last may have been said before; what says nothing stands in no index.
LAST_TALK: Final = Statement(
    "SELECT talk FROM (SELECT * FROM (SELECT talk, at FROM turnkeeper_passages"
    " WHERE owner = :owner AND kind = 1 ORDER BY at DESC LIMIT 1) p"
    " UNION ALL SELECT * FROM (SELECT talk, at FROM turnkeeper_turns"
    " WHERE owner = :owner ORDER BY id DESC LIMIT 1) o"
    " UNION ALL SELECT * FROM (SELECT talk, at FROM turnkeeper_turns"
    " WHERE speaker = :owner ORDER BY id DESC LIMIT 1) s) newest ORDER BY at DESC LIMIT 1"
)
_THEIRS: Final = "owner = :owner OR speaker = :owner"
FORGET_PASSAGES: Final = Statement("DELETE FROM turnkeeper_passages WHERE owner = :owner")
FORGET_FACTS: Final = Statement("DELETE FROM turnkeeper_facts WHERE owner = :owner RETURNING id")
FORGET_TALKS: Final = Statement(
    "DELETE FROM turnkeeper_talks WHERE tenant = :tenant"
    " AND NOT EXISTS (SELECT 1 FROM turnkeeper_turns t WHERE t.talk = turnkeeper_talks.id)"
)
_OLD: Final = "SELECT id FROM turnkeeper_turns WHERE recorded < :before ORDER BY recorded, id LIMIT :limit"
SWEEP_TALKS: Final = Statement(
    "DELETE FROM turnkeeper_talks WHERE mark < :before"
    " AND NOT EXISTS (SELECT 1 FROM turnkeeper_turns t WHERE t.talk = turnkeeper_talks.id)"
)
PUT_FACT: Final = Statement(
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
_FACT: Final = "name, category, created, expires, superseded, importance, blob FROM turnkeeper_facts"
NO_FACT: Final = Statement("DELETE FROM turnkeeper_facts WHERE owner = :owner AND name = :name RETURNING id")
EXPIRED: Final = "SELECT id FROM turnkeeper_facts WHERE expires <= :now ORDER BY expires, id LIMIT :limit"
PUT_CHUNK: Final = Statement(
    "INSERT INTO turnkeeper_documents (tenant, path, chunk, added, blob)"
    " VALUES (:tenant, :path, :chunk, :at, :blob) RETURNING id"
)
DOCUMENTS: Final = Statement(
    "SELECT DISTINCT path FROM turnkeeper_documents WHERE tenant = :tenant ORDER BY path"
)
NO_DOCUMENT_PASSAGES: Final = Statement(
    "DELETE FROM turnkeeper_passages WHERE kind = 3 AND item IN"
    " (SELECT id FROM turnkeeper_documents WHERE tenant = :tenant AND path = :path)"
)
NO_DOCUMENT: Final = Statement(
    "DELETE FROM turnkeeper_documents WHERE tenant = :tenant AND path = :path RETURNING id"
)
_NEAR: Final = 2
_VECTOR: Final = "array_to_tsvector(string_to_array(p.terms, ' '))"
_ASKED: Final = "CAST(CAST(:terms AS text) AS tsquery)"


_KEPT: Final = (
    f"SELECT id, life, turn, role, position, digest FROM turnkeeper_turns WHERE talk = :talk AND {_HOT}"
)


KEPT: Final = Statement(_KEPT)


KEPT_BETWEEN: Final = Statement(f"{_KEPT} AND (life < :until OR (life = :until AND turn < :before))")


REACH: Final = Statement(f"SELECT MAX(place) FROM turnkeeper_turns WHERE talk = :talk AND NOT {_HOT}")


PUT_PASSAGE: Final = Statement(
    "INSERT INTO turnkeeper_passages (owner, kind, item, talk, place, at, terms, lexicon)"
    f" VALUES (:owner, :kind, :item, :talk, :place, :at, :terms, {LEXICON})"
    " ON CONFLICT (kind, item) DO UPDATE SET owner = excluded.owner, talk = excluded.talk,"
    " place = excluded.place, at = excluded.at, terms = excluded.terms, lexicon = excluded.lexicon,"
    " meant = '' RETURNING id"
)


DURING: Final = Statement(
    f"SELECT {PASSAGE} FROM turnkeeper_passages p WHERE p.owner = :owner"
    " AND p.at >= :begin AND p.at < :end ORDER BY p.at DESC LIMIT :limit"
)


OUTDATED: Final = Statement(f"{_OF_ANYBODY} WHERE p.lexicon < {LEXICON} ORDER BY p.id LIMIT :limit")


UP_TO_DATE: Final = Statement(
    f"UPDATE turnkeeper_passages SET lexicon = {LEXICON} WHERE id = :passage AND terms = :terms"
)


INDEXED_ANEW: Final = Statement(
    f"UPDATE turnkeeper_passages SET terms = :anew, lexicon = {LEXICON}"
    " WHERE id = :passage AND terms = :terms"
)


UNPLACED: Final = Statement(
    f"SELECT talk FROM turnkeeper_passages WHERE owner = {NOBODYS} ORDER BY at DESC LIMIT 1"
)


NO_UNPLACED: Final = Statement(f"DELETE FROM turnkeeper_passages WHERE owner = {NOBODYS} AND talk = :talk")


UNMEANT: Final = Statement(f"{_OF_ANYBODY} WHERE p.meant < :model OR p.meant > :model LIMIT :limit")


TURNS: Final = Statement(
    f"SELECT {_TURN} WHERE (t.owner = :owner OR t.speaker = :owner) AND t.id > :after"
    " ORDER BY t.id LIMIT :limit"
)


TURNS_OF: Final = Statement(
    f"SELECT {_TURN} WHERE k.tenant = :tenant AND k.session = :session"
    " ORDER BY k.created, t.place, t.id LIMIT :limit OFFSET :start"
)


END: Final = Statement(
    f"SELECT {_TURN} WHERE t.talk = :talk AND (t.owner = :owner OR t.speaker = :owner)"
    " ORDER BY t.place DESC, t.id DESC LIMIT :limit"
)


FORGET_SPOKEN: Final = Statement(
    "DELETE FROM turnkeeper_passages WHERE kind = 1 AND item IN"
    f" (SELECT id FROM turnkeeper_turns WHERE {_THEIRS})"
)


FORGET_TURNS: Final = Statement(f"DELETE FROM turnkeeper_turns WHERE {_THEIRS} RETURNING id")


FORGET_SESSION_PASSAGES: Final = Statement(
    f"DELETE FROM turnkeeper_passages WHERE kind = 1 AND talk IN ({_TALKS_OF})"
)


FORGET_SESSION: Final = Statement(f"DELETE FROM turnkeeper_turns WHERE talk IN ({_TALKS_OF}) RETURNING id")


FORGET_STRANGERS: Final = Statement(
    f"DELETE FROM turnkeeper_turns WHERE owner IS NULL AND talk IN ({_TALKS_OF}) RETURNING id"
)


SWEEP_PASSAGES: Final = Statement(f"DELETE FROM turnkeeper_passages WHERE kind = 1 AND item IN ({_OLD})")


SWEEP_TURNS: Final = Statement(f"DELETE FROM turnkeeper_turns WHERE id IN ({_OLD}) RETURNING id")


_LASTING: Final = f"owner = ({PERSON_ID.named}) AND (expires IS NULL OR expires > :now)"


FACTS: Final = Statement(f"SELECT {_FACT} WHERE {_LASTING} AND superseded IS NULL ORDER BY created, id")


FACTS_EVER: Final = Statement(f"SELECT {_FACT} WHERE {_LASTING} ORDER BY created, id")


class Dialect(msgspec.Struct, frozen=True):
    """One database's own words."""

    any_of: Callable[[Iterable[str]], str]
    """What ``match`` is given as ``:terms``: a passage with any of these."""
    match: Statement
    """An owner's passages that hold a word, the likeliest first."""
    near: Statement
    """Passages that stand beside those of ``:ids``, and these themselves."""
    these: Statement
    """An owner's passages among those of ``:ids``."""
    vectors: Statement
    """The vectors of an owner's passages among those of ``:ids``."""
    texts: dict[int, Statement]
    """By kind, what is read of the items of ``:ids``."""
    expire: Statement
    """Removes a few facts that have expired, and says which; one that another changes is left to him."""
    unindex: Statement
    """Removes the passages of one kind that belong to the items of ``:ids``."""


_TEXTS: Final = {
    TURN: (
        "SELECT t.id, k.session, t.at, t.blob FROM turnkeeper_turns t"
        " JOIN turnkeeper_talks k ON k.id = t.talk WHERE t.id IN ({ids})"
    ),
    FACT: (
        "SELECT id, name, created, blob FROM turnkeeper_facts WHERE id IN ({ids})"
        " AND superseded IS NULL AND (expires IS NULL OR expires > :now)"
    ),
    DOCUMENT: "SELECT id, path, added, blob FROM turnkeeper_documents WHERE id IN ({ids})",
}


def json_array(ids: Iterable[int]) -> str:
    """Numbers as they are bound for ``:ids``."""
    return json.dumps(list(ids))


def _dialect(any_of: Callable[[Iterable[str]], str], match: str, ids: str, free: str = "") -> Dialect:
    near = (
        f"SELECT DISTINCT {PASSAGE} FROM turnkeeper_passages h JOIN turnkeeper_passages p ON p.talk = h.talk"
        f" AND p.owner = h.owner AND p.place BETWEEN h.place - {_NEAR} AND h.place + {_NEAR}"
        f" WHERE h.kind = 1 AND p.kind = 1 AND h.owner = :owner AND h.id IN ({ids})"
    )
    texts = {kind: Statement(text.replace("{ids}", ids)) for kind, text in _TEXTS.items()}
    these = f"SELECT {PASSAGE} FROM turnkeeper_passages p WHERE p.owner = :owner AND p.id IN ({ids})"
    vectors = (
        "SELECT passage, blob FROM turnkeeper_vectors"
        f" WHERE owner = :owner AND model = :model AND passage IN ({ids})"
    )
    expire = f"DELETE FROM turnkeeper_facts WHERE id IN ({EXPIRED}{free}) RETURNING id"
    unindex = f"DELETE FROM turnkeeper_passages WHERE kind = :kind AND item IN ({ids})"
    return Dialect(
        any_of=any_of,
        match=Statement(match),
        near=Statement(near),
        these=Statement(these),
        vectors=Statement(vectors),
        texts=texts,
        expire=Statement(expire),
        unindex=Statement(unindex),
    )


def _fts5_query(terms: Iterable[str]) -> str:
    """FTS5's own quoting: what stands in it is no syntax."""
    return " OR ".join('"' + term.replace('"', '""') + '"' for term in terms)


def _tsquery(terms: Iterable[str]) -> str:
    """A tsquery's own quoting."""
    return " | ".join("'" + term.replace("\\", "\\\\").replace("'", "''") + "'" for term in terms)


SQLITE: Final = _dialect(
    _fts5_query,
    f"SELECT {PASSAGE} FROM turnkeeper_index JOIN turnkeeper_passages p ON p.id = turnkeeper_index.rowid"
    " WHERE turnkeeper_index MATCH :terms AND p.owner = :owner"
    " ORDER BY turnkeeper_index.rank LIMIT :limit",
    "SELECT value FROM json_each(:ids)",
)


POSTGRES: Final = _dialect(
    _tsquery,
    f"SELECT {PASSAGE} FROM turnkeeper_passages p WHERE p.owner = :owner AND {_VECTOR} @@ {_ASKED}"
    f" ORDER BY ts_rank({_VECTOR}, {_ASKED}) DESC, p.id DESC LIMIT :limit",
    "SELECT CAST(e AS bigint) FROM json_array_elements_text(CAST(CAST(:ids AS text) AS json)) e",
    " FOR UPDATE SKIP LOCKED",
)
