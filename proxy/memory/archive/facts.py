"""Facts in the archive, and a cache of those that were read last."""

import time
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from proxy.memory.archive.erasure import is_erased, tombstone, tombstone_keys
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
    ALL_FACTS,
    DELETE_FACT,
    DELETE_PASSAGE,
    FACT,
    FACTS,
    SUPERSEDE,
    UPSERT_FACT,
    USER,
)
from proxy.memory.stores.sql import id_bytes
from proxy.memory.stores.sqlite_file import ForeignCommits
from proxy.memory.stores.store import Key, Owner

_MOST_USERS: Final = 32
_CACHED_FOR: Final = 60.0


def add_fact(codec: RowCodec, user: Owner, fact: Fact) -> Steps[None]:
    """Add or update a fact and supersede the one it replaces; facts older than a tombstone are dropped."""
    keys = yield from tombstone_keys(codec)
    erased_at = yield from tombstone(keys, user.tenant, USER, user.user)
    if is_erased(erased_at, stated=fact.created, recorded=fact.created):
        return
    fact = msgspec.structs.replace(fact, text=codec.redaction.text(fact.text))
    owner = yield from ensure_owner(user)
    arguments = {
        "owner": owner,
        "name": id_bytes(fact.id),
        "category": fact.category,
        "created": fact.created,
        "expires": fact.expires,
        "superseded": fact.superseded,
        "importance": fact.importance,
        "blob": codec.encode(Key(user.tenant, user.user), fact),
    }
    item = yield from fetch_value(UPSERT_FACT, arguments)
    if fact.superseded is None:
        yield from codec.index(user, owner, fact.text, IndexRow(FACT, item, fact.created))
    else:
        yield from fetch(DELETE_PASSAGE, {"kind": FACT, "item": item})
    if fact.replaces is not None:
        former = {"owner": owner, "replaces": id_bytes(fact.replaces), "created": fact.created}
        superseded = yield from fetch_value(SUPERSEDE, former)
        if superseded is not None:
            yield from fetch(DELETE_PASSAGE, {"kind": FACT, "item": superseded})


def facts(codec: RowCodec, user: Owner, *, now: float, superseded: bool) -> Steps[list[Fact]]:
    """A user's facts that have not expired, the oldest first."""
    rows = yield from fetch(ALL_FACTS if superseded else FACTS, owner_arguments(user) | {"now": now})
    key = Key(user.tenant, user.user)
    # Superseding a fact changes its row alone, not its encoded form.
    return [msgspec.structs.replace(codec.decode(key, row[6], Fact), superseded=row[4]) for row in rows]


def remove_fact(user: Owner, fact_id: str) -> Steps[bool]:
    """Remove a fact; whether there was one."""
    owner = yield from find_owner(user)
    item = None
    if owner is not None:
        item = yield from fetch_value(DELETE_FACT, {"owner": owner, "name": id_bytes(fact_id)})
    if item is not None:
        yield from fetch(DELETE_PASSAGE, {"kind": FACT, "item": item})
    return item is not None


class _CachedFacts(NamedTuple):
    facts: list[Fact]
    commits: int
    at: float


class FactCache:
    """Facts of the users who were read last, valid for a minute while no other process writes the file."""

    def __init__(self, foreign: ForeignCommits | None = None) -> None:
        self._foreign = foreign
        self._cached: dict[Owner, _CachedFacts] = {}

    def get(self, user: Owner, read: Callable[[], list[Fact] | None], *, now: float) -> list[Fact] | None:
        """A user's facts, cached or as ``read`` returns them; ``None`` where they cannot be read."""
        commits = self._foreign.count_if_certain() if self._foreign else None
        if commits is None:
            return read()
        cached = self._cached.pop(user, None)
        if cached and cached.commits == commits and time.monotonic() - cached.at < _CACHED_FOR:
            self._cached[user] = cached
            return cached.facts and [
                fact for fact in cached.facts if fact.expires is None or fact.expires > now
            ]
        facts = read()
        if facts is not None:
            self._cached[user] = _CachedFacts(facts, commits, time.monotonic())
            if len(self._cached) > _MOST_USERS:
                del self._cached[next(iter(self._cached))]
        return facts

    def clear(self) -> None:
        """Forget everything, because facts were written."""
        self._cached.clear()
