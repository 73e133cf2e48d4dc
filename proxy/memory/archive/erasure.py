"""What leaves the archive: a person, a session, and what is older than it may be."""

import time

from proxy.memory.archive.records import ErasureCount, Tombstones
from proxy.memory.archive.sql import RowCodec, Steps, fetch, fetch_value, find_owner
from proxy.memory.archive.statements import (
    BURIED,
    ENTOMB,
    FACT,
    FORGET_FACTS,
    FORGET_PASSAGES,
    FORGET_SESSION,
    FORGET_SESSION_PASSAGES,
    FORGET_SPOKEN,
    FORGET_STRANGERS,
    FORGET_TALKS,
    FORGET_TURNS,
    NO_PERSON,
    PERSON,
    SESSION,
    STRANGERS,
    SWEEP_PASSAGES,
    SWEEP_TALKS,
    SWEEP_TURNS,
    TOMBSTONE,
    UNEARTH,
    json_array,
)
from proxy.memory.stores.sql import id_bytes, id_text, key_arguments
from proxy.memory.stores.store import CLOCK_TOLERANCE, TOMBSTONE_SECONDS, Key, Owner


def forget(person: Owner, *, at: float) -> Steps[ErasureCount]:
    """As the archive's ``forget``."""
    tenant = {"tenant": id_bytes(person.tenant)}
    yield from fetch(ENTOMB, {**tenant, "kind": PERSON, "name": id_bytes(person.user), "at": at})
    owner = yield from find_owner(person)
    if owner is None:
        return ErasureCount()
    theirs = {"owner": owner}
    # A fact before its passage, as wherever facts change: of two who lock them crosswise one is refused.
    facts = yield from fetch(FORGET_FACTS, theirs)
    for statement in (FORGET_PASSAGES, FORGET_SPOKEN):
        yield from fetch(statement, theirs)
    turns = yield from fetch(FORGET_TURNS, theirs)
    yield from fetch(FORGET_TALKS, tenant)
    yield from fetch(NO_PERSON, theirs)
    return ErasureCount(turns=len(turns), facts=len(facts))


def forget_session(key: Key, *, at: float) -> Steps[int]:
    """As the archive's ``forget_session``."""
    tomb = {"tenant": id_bytes(key.tenant), "kind": SESSION, "name": id_bytes(key.session), "at": at}
    yield from fetch(ENTOMB, tomb)
    yield from fetch(FORGET_SESSION_PASSAGES, key_arguments(key))
    rows = yield from fetch(FORGET_SESSION, key_arguments(key))
    yield from fetch(FORGET_TALKS, key_arguments(key))
    return len(rows)


def forget_strangers(key: Key, *, at: float) -> Steps[int]:
    """As the archive's ``forget_strangers``; such turns have no words in the index."""
    tombs = {"tenant": id_bytes(key.tenant), "kind": STRANGERS}
    yield from fetch(UNEARTH, {**tombs, "before": at - TOMBSTONE_SECONDS})
    yield from fetch(ENTOMB, {**tombs, "name": id_bytes(key.session), "at": at})
    rows = yield from fetch(FORGET_STRANGERS, key_arguments(key))
    if rows:
        yield from fetch(FORGET_TALKS, key_arguments(key))
    return len(rows)


def tombstone_at(tenant: str, kind: int, name: str) -> Steps[float]:
    """When a person or a session was forgotten, in seconds since 1970; 0 is never."""
    at = yield from fetch_value(TOMBSTONE, {"tenant": id_bytes(tenant), "kind": kind, "name": id_bytes(name)})
    return 0.0 if at is None else float(at)


def refuses(forgotten: float, *, said: float, recorded: float) -> bool:
    """Whether what was said, and recorded, at these times was forgotten at this one.

    What lies ahead was written before a clock was set back, and says nothing of what came later.
    """
    ahead = time.time() + CLOCK_TOLERANCE
    return 0.0 < forgotten >= said and (forgotten <= ahead or recorded > ahead)


def tombstones(tenant: str, *, since: float, until: float) -> Steps[Tombstones]:
    """As the archive's ``buried``."""
    rows = yield from fetch(BURIED, {"tenant": id_bytes(tenant), "since": since, "until": until})
    of = {kind: {id_text(name): at for each, name, at in rows if each == kind} for kind in (PERSON, SESSION)}
    return Tombstones(of[PERSON], of[SESSION])


def sweep(*, before: float, limit: int) -> Steps[int]:
    """As the archive's ``sweep``."""
    old = {"before": before, "limit": limit}
    yield from fetch(SWEEP_PASSAGES, old)
    rows = yield from fetch(SWEEP_TURNS, old)
    if rows:
        yield from fetch(SWEEP_TALKS, old)
    return len(rows)


def expire(shelf: RowCodec, *, now: float, limit: int) -> Steps[int]:
    """As the archive's ``expire``: as few statements for many facts as for one."""
    rows = yield from fetch(shelf.dialect.expire, {"now": now, "limit": limit})
    if rows:
        gone = json_array(item for (item,) in rows)
        yield from fetch(shelf.dialect.unindex, {"kind": FACT, "ids": gone})
    return len(rows)
