"""Facts in the archive."""

import msgspec

from proxy.memory.archive import statements
from proxy.memory.archive.erasure import is_erased, tombstone, tombstone_keys
from proxy.memory.archive.records import Fact, TombstoneKeys
from proxy.memory.archive.sql import (
    RowCodec,
    Rows,
    Steps,
    fetch,
    fetch_value,
    find_owner,
    locked_owner,
    owner_arguments,
)
from proxy.memory.stores.sql import id_bytes
from proxy.memory.stores.store import Key, Owner


class ErasedMeanwhile(Exception):
    """The user was erased while the transaction waited, which is undone."""


def add_fact(codec: RowCodec, user: Owner, fact: Fact) -> Steps[None]:
    """Add or update a fact and supersede the one it replaces; facts older than a tombstone are dropped."""
    keys = yield from tombstone_keys(codec)
    if (yield from _is_refused(keys, user, fact)):
        return
    fact = msgspec.structs.replace(fact, text=codec.redaction.text(fact.text))
    owner = yield from locked_owner(user)
    if (yield from _is_refused(keys, user, fact)):
        raise ErasedMeanwhile
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
    item = yield from fetch_value(statements.UPSERT_FACT, arguments)
    if fact.superseded is None:
        row = {"owner": owner, "kind": statements.FACT, "item": item, "at": fact.created}
        yield from codec.index(user, fact.text, row)
    else:
        yield from fetch(statements.DELETE_PASSAGE, {"kind": statements.FACT, "item": item})
    if fact.replaces is not None:
        former = {"owner": owner, "replaces": id_bytes(fact.replaces), "created": fact.created}
        superseded = yield from fetch_value(statements.SUPERSEDE, former)
        if superseded is not None:
            yield from fetch(statements.DELETE_PASSAGE, {"kind": statements.FACT, "item": superseded})


def _is_refused(keys: TombstoneKeys, user: Owner, fact: Fact) -> Steps[bool]:
    erased_at = yield from tombstone(keys, user.tenant, statements.USER, user.user)
    return is_erased(erased_at, stated=fact.created, recorded=fact.created)


def facts(codec: RowCodec, user: Owner, *, now: float, superseded: bool) -> Steps[list[Fact]]:
    """A user's facts that have not expired, the oldest first."""
    statement = statements.ALL_FACTS if superseded else statements.FACTS
    rows = yield from fetch(statement, owner_arguments(user) | {"now": now})
    return decoded(codec, user, rows)


def decoded(codec: RowCodec, user: Owner, rows: Rows) -> list[Fact]:
    """A user's facts in rows of the statements that select them."""
    key = Key(user.tenant, user.user)
    # Superseding a fact changes its row alone, not its encoded form.
    return [msgspec.structs.replace(codec.decode(key, row[6], Fact), superseded=row[4]) for row in rows]


def remove_fact(user: Owner, fact_id: str) -> Steps[bool]:
    """Remove a fact; whether there was one."""
    owner = yield from find_owner(user)
    item = None
    if owner is not None:
        item = yield from fetch_value(statements.DELETE_FACT, {"owner": owner, "name": id_bytes(fact_id)})
    if item is not None:
        yield from fetch(statements.DELETE_PASSAGE, {"kind": statements.FACT, "item": item})
    return item is not None
