"""Facts and documents in the archive."""

from collections.abc import Sequence

import msgspec

from proxy.memory.archive.archive import Chunk, Fact
from proxy.memory.archive.oblivion import buried_at, refuses
from proxy.memory.archive.shelf import Line, Shelf
from proxy.memory.archive.statements import (
    DOCUMENT,
    DOCUMENTS,
    FACT,
    FACTS,
    FACTS_EVER,
    NO_DOCUMENT,
    NO_DOCUMENT_PASSAGES,
    NO_FACT,
    NO_PASSAGE,
    PERSON,
    PUT_CHUNK,
    PUT_FACT,
    SUPERSEDE,
)
from proxy.memory.archive.steps import Steps, asked, first, owner_for, owner_of, who
from proxy.memory.owner import Owner
from proxy.memory.sql.statement import shown, stored
from proxy.memory.store import Key


def add_fact(shelf: Shelf, person: Owner, fact: Fact) -> Steps[None]:
    """As the archive's ``add_fact``; what was known before its person was forgotten is refused."""
    forgotten = yield from buried_at(person.tenant, PERSON, person.person)
    if refuses(forgotten, said=fact.created, recorded=fact.created):
        return
    fact = msgspec.structs.replace(fact, text=shelf.redaction.text(fact.text))
    owner = yield from owner_for(person)
    item = yield from first(PUT_FACT, _row(shelf, person, fact) | {"owner": owner})
    if fact.superseded is None:
        yield from shelf.indexed(person, owner, fact.text, Line(FACT, item, fact.created))
    else:
        yield from asked(NO_PASSAGE, {"kind": FACT, "item": item})
    if fact.replaces is not None:
        yield from _supersede(owner, fact)


def _supersede(owner: int, fact: Fact) -> Steps[None]:
    replaced = {"owner": owner, "replaces": stored(fact.replaces or ""), "created": fact.created}
    item = yield from first(SUPERSEDE, replaced)
    if item is not None:
        yield from asked(NO_PASSAGE, {"kind": FACT, "item": item})


def facts(shelf: Shelf, person: Owner, *, now: float, superseded: bool) -> Steps[list[Fact]]:
    """As the archive's ``facts``."""
    rows = yield from asked(FACTS_EVER if superseded else FACTS, who(person) | {"now": now})
    # When it was superseded is told by the row: nobody opens a sealed fact to put it there.
    return [
        msgspec.structs.replace(shelf.opened(_key(person), row[6], Fact), superseded=row[4]) for row in rows
    ]


def remove_fact(person: Owner, name: str) -> Steps[bool]:
    """As the archive's ``remove_fact``."""
    owner = yield from owner_of(person)
    item = None
    if owner is not None:
        item = yield from first(NO_FACT, {"owner": owner, "name": stored(name)})
    if item is not None:
        yield from asked(NO_PASSAGE, {"kind": FACT, "item": item})
    return item is not None


def add_document(shelf: Shelf, tenant: str, path: str, chunks: Sequence[Chunk], *, at: float) -> Steps[None]:
    """As the archive's ``add_document``."""
    yield from remove_document(tenant, path)
    whose = Owner(tenant)
    owner = yield from owner_for(whose)
    place = {"tenant": stored(tenant), "path": stored(path)}
    for number, chunk in enumerate(chunks):
        blob = shelf.sealed(Key(tenant, path), chunk)
        item = yield from first(PUT_CHUNK, {**place, "chunk": number, "at": at, "blob": blob})
        text = f"{chunk.title}\n{chunk.text}"
        yield from shelf.indexed(whose, owner, text, Line(DOCUMENT, item, at))


def documents(tenant: str) -> Steps[list[str]]:
    """As the archive's ``documents``."""
    rows = yield from asked(DOCUMENTS, {"tenant": stored(tenant)})
    return [shown(path) for (path,) in rows]


def remove_document(tenant: str, path: str) -> Steps[bool]:
    """As the archive's ``remove_document``."""
    place = {"tenant": stored(tenant), "path": stored(path)}
    yield from asked(NO_DOCUMENT_PASSAGES, place)
    rows = yield from asked(NO_DOCUMENT, place)
    return bool(rows)


def _row(shelf: Shelf, person: Owner, fact: Fact) -> dict[str, object]:
    return {
        "name": stored(fact.id),
        "category": fact.category,
        "created": fact.created,
        "expires": fact.expires,
        "superseded": fact.superseded,
        "importance": fact.importance,
        "blob": shelf.sealed(_key(person), fact),
    }


def _key(person: Owner) -> Key:
    return Key(person.tenant, person.person)
