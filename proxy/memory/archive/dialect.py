"""Where the two databases differ for the archive: how words are looked up, and how a list is bound."""

import json
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from proxy.memory.archive.statements import DOCUMENT, EXPIRED, FACT, PASSAGE, TURN
from proxy.memory.stores.sql import Statement


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


_NEAR: Final = 2
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


def listed(ids: Iterable[int]) -> str:
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


def _phrases(terms: Iterable[str]) -> str:
    """FTS5's own quoting: what stands in it is no syntax."""
    return " OR ".join('"' + term.replace('"', '""') + '"' for term in terms)


def _lexemes(terms: Iterable[str]) -> str:
    """A tsquery's own quoting."""
    return " | ".join("'" + term.replace("\\", "\\\\").replace("'", "''") + "'" for term in terms)


_VECTOR: Final = "array_to_tsvector(string_to_array(p.terms, ' '))"
_ASKED: Final = "CAST(CAST(:terms AS text) AS tsquery)"

SQLITE: Final = _dialect(
    _phrases,
    f"SELECT {PASSAGE} FROM turnkeeper_index JOIN turnkeeper_passages p ON p.id = turnkeeper_index.rowid"
    " WHERE turnkeeper_index MATCH :terms AND p.owner = :owner"
    " ORDER BY turnkeeper_index.rank LIMIT :limit",
    "SELECT value FROM json_each(:ids)",
)
POSTGRES: Final = _dialect(
    _lexemes,
    f"SELECT {PASSAGE} FROM turnkeeper_passages p WHERE p.owner = :owner AND {_VECTOR} @@ {_ASKED}"
    f" ORDER BY ts_rank({_VECTOR}, {_ASKED}) DESC, p.id DESC LIMIT :limit",
    "SELECT CAST(e AS bigint) FROM json_array_elements_text(CAST(CAST(:ids AS text) AS json)) e",
    " FOR UPDATE SKIP LOCKED",
)
