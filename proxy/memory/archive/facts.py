"""Facts in the archive."""

import time
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from proxy.memory.archive.erasure import refuses, tombstone_at
from proxy.memory.archive.records import Fact
from proxy.memory.archive.sql import (
    IndexRow,
    RowCodec,
    Steps,
    ensure_owner,
    fetch,
    fetch_value,
    find_owner,
    owner_arguments,
)
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
from proxy.memory.stores.sql import id_bytes
from proxy.memory.stores.sqlite_file import ForeignCommits
from proxy.memory.stores.store import Key, Owner

_MOST_USERS: Final = 32
_CACHED_FOR: Final = 60.0


def add_fact(shelf: RowCodec, person: Owner, fact: Fact) -> Steps[None]:
    """As the archive's ``add_fact``; what was known before its person was forgotten is refused."""
    forgotten = yield from tombstone_at(person.tenant, PERSON, person.user)
    if refuses(forgotten, said=fact.created, recorded=fact.created):
        return
    fact = msgspec.structs.replace(fact, text=shelf.redaction.text(fact.text))
    owner = yield from ensure_owner(person)
    item = yield from fetch_value(PUT_FACT, _row(shelf, person, fact) | {"owner": owner})
    if fact.superseded is None:
        yield from shelf.index(person, owner, fact.text, IndexRow(FACT, item, fact.created))
    else:
        yield from fetch(NO_PASSAGE, {"kind": FACT, "item": item})
    if fact.replaces is not None:
        yield from _supersede(owner, fact)


def _supersede(owner: int, fact: Fact) -> Steps[None]:
    replaced = {"owner": owner, "replaces": id_bytes(fact.replaces or ""), "created": fact.created}
    item = yield from fetch_value(SUPERSEDE, replaced)
    if item is not None:
        yield from fetch(NO_PASSAGE, {"kind": FACT, "item": item})


def facts(shelf: RowCodec, person: Owner, *, now: float, superseded: bool) -> Steps[list[Fact]]:
    """As the archive's ``facts``."""
    rows = yield from fetch(FACTS_EVER if superseded else FACTS, owner_arguments(person) | {"now": now})
    # When it was superseded is told by the row: nobody opens a sealed fact to put it there.
    return [
        msgspec.structs.replace(shelf.decode(_key(person), row[6], Fact), superseded=row[4]) for row in rows
    ]


def remove_fact(person: Owner, name: str) -> Steps[bool]:
    """As the archive's ``remove_fact``."""
    owner = yield from find_owner(person)
    item = None
    if owner is not None:
        item = yield from fetch_value(NO_FACT, {"owner": owner, "name": id_bytes(name)})
    if item is not None:
        yield from fetch(NO_PASSAGE, {"kind": FACT, "item": item})
    return item is not None


def _row(shelf: RowCodec, person: Owner, fact: Fact) -> dict[str, object]:
    return {
        "name": id_bytes(fact.id),
        "category": fact.category,
        "created": fact.created,
        "expires": fact.expires,
        "superseded": fact.superseded,
        "importance": fact.importance,
        "blob": shelf.encode(_key(person), fact),
    }


def _key(person: Owner) -> Key:
    return Key(person.tenant, person.user)


class _CachedFacts(NamedTuple):
    facts: list[Fact]
    elsewhere: int
    at: float

    def is_good(self, count: int) -> bool:
        return self.elsewhere == count and time.monotonic() - self.at < _CACHED_FOR


class FactCache:
    """The facts of the few persons who were asked for last, for a minute at the most."""

    def __init__(self, elsewhere: ForeignCommits | None = None) -> None:
        self._elsewhere = elsewhere
        self._looked: dict[Owner, _CachedFacts] = {}

    def get(self, person: Owner, look: Callable[[], list[Fact] | None], *, now: float) -> list[Fact] | None:
        """What a look at the file finds, or found when it said the same; ``None`` where it cannot be read."""
        count = self._elsewhere.count_if_certain() if self._elsewhere else None
        if count is None:
            return look()
        looked = self._looked.get(person)
        if looked is None or not looked.is_good(count):
            return self._kept(person, look(), count)
        return [fact for fact in looked.facts if fact.expires is None or fact.expires > now]

    def clear(self) -> None:
        """To be told when facts have been written."""
        self._looked.clear()

    def _kept(self, person: Owner, facts: list[Fact] | None, count: int) -> list[Fact] | None:
        self._looked.pop(person, None)
        if facts is not None:
            self._looked[person] = _CachedFacts(facts, count, time.monotonic())
            if len(self._looked) > _MOST_USERS:
                del self._looked[next(iter(self._looked))]
        return facts
