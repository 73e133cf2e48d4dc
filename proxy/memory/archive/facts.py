"""Facts in the archive."""

import msgspec

from proxy.memory.archive.archive import Fact
from proxy.memory.archive.oblivion import buried_at, refuses
from proxy.memory.archive.shelf import Line, Shelf
from proxy.memory.archive.statements import (
    FACT,
    FACTS,
    FACTS_EVER,
    NO_FACT,
    NO_PASSAGE,
    PERSON,
    PUT_FACT,
    SUPERSEDE,
)
from proxy.memory.archive.steps import Steps, asked, first, owner_for, owner_of, who
from proxy.memory.stores.sql import id_bytes
from proxy.memory.stores.store import Key, Owner


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
    replaced = {"owner": owner, "replaces": id_bytes(fact.replaces or ""), "created": fact.created}
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
        item = yield from first(NO_FACT, {"owner": owner, "name": id_bytes(name)})
    if item is not None:
        yield from asked(NO_PASSAGE, {"kind": FACT, "item": item})
    return item is not None


def _row(shelf: Shelf, person: Owner, fact: Fact) -> dict[str, object]:
    return {
        "name": id_bytes(fact.id),
        "category": fact.category,
        "created": fact.created,
        "expires": fact.expires,
        "superseded": fact.superseded,
        "importance": fact.importance,
        "blob": shelf.sealed(_key(person), fact),
    }


def _key(person: Owner) -> Key:
    return Key(person.tenant, person.person)
