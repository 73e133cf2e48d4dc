"""What leaves the archive: erased users and sessions, and turns and facts past their time."""

import time

from proxy.memory.archive.records import ErasureCount, Tombstones
from proxy.memory.archive.sql import RowCodec, Steps, fetch, fetch_value, find_owner
from proxy.memory.archive.statements import (
    ANONYMOUS,
    DELETE_EMPTY_SESSIONS,
    DELETE_OLD_TOMBSTONES,
    DELETE_OWNER,
    FACT,
    FORGET_ANONYMOUS,
    FORGET_FACTS,
    FORGET_PASSAGES,
    FORGET_SESSION,
    FORGET_SESSION_PASSAGES,
    FORGET_TURN_PASSAGES,
    FORGET_TURNS,
    SESSION,
    SWEEP_PASSAGES,
    SWEEP_SESSIONS,
    SWEEP_TURNS,
    TOMBSTONE,
    TOMBSTONES,
    UPSERT_TOMBSTONE,
    USER,
    json_array,
)
from proxy.memory.stores.sql import id_bytes, id_text, key_arguments
from proxy.memory.stores.store import CLOCK_TOLERANCE, TOMBSTONE_SECONDS, Key, Owner


def forget(user: Owner, *, at: float) -> Steps[ErasureCount]:
    """Delete everything of a user and leave a tombstone."""
    tenant = {"tenant": id_bytes(user.tenant)}
    yield from fetch(UPSERT_TOMBSTONE, {**tenant, "kind": USER, "name": id_bytes(user.user), "at": at})
    owner = yield from find_owner(user)
    if owner is None:
        return ErasureCount()
    own = {"owner": owner}
    # Facts before their passages, as everywhere: two transactions that lock them crosswise would deadlock.
    facts = yield from fetch(FORGET_FACTS, own)
    yield from fetch(FORGET_PASSAGES, own)
    yield from fetch(FORGET_TURN_PASSAGES, own)
    turns = yield from fetch(FORGET_TURNS, own)
    yield from fetch(DELETE_EMPTY_SESSIONS, tenant)
    yield from fetch(DELETE_OWNER, own)
    return ErasureCount(turns=len(turns), facts=len(facts))


def forget_session(key: Key, *, at: float) -> Steps[int]:
    """Delete a session and leave a tombstone; how many turns it had."""
    name = {"tenant": id_bytes(key.tenant), "kind": SESSION, "name": id_bytes(key.session)}
    yield from fetch(UPSERT_TOMBSTONE, {**name, "at": at})
    yield from fetch(FORGET_SESSION_PASSAGES, key_arguments(key))
    rows = yield from fetch(FORGET_SESSION, key_arguments(key))
    yield from fetch(DELETE_EMPTY_SESSIONS, key_arguments(key))
    return len(rows)


def forget_anonymous(key: Key, *, at: float) -> Steps[int]:
    """Delete the turns of a session that have no user, and leave a tombstone; how many there were."""
    kind = {"tenant": id_bytes(key.tenant), "kind": ANONYMOUS}
    yield from fetch(DELETE_OLD_TOMBSTONES, {**kind, "before": at - TOMBSTONE_SECONDS})
    yield from fetch(UPSERT_TOMBSTONE, {**kind, "name": id_bytes(key.session), "at": at})
    rows = yield from fetch(FORGET_ANONYMOUS, key_arguments(key))
    if rows:
        yield from fetch(DELETE_EMPTY_SESSIONS, key_arguments(key))
    return len(rows)


def tombstone(tenant: str, kind: int, name: str) -> Steps[float]:
    """When a user or a session was erased, in seconds since 1970; 0 where it was not."""
    at = yield from fetch_value(TOMBSTONE, {"tenant": id_bytes(tenant), "kind": kind, "name": id_bytes(name)})
    return 0.0 if at is None else float(at)


def is_erased(erased_at: float, *, stated: float, recorded: float) -> bool:
    """Whether words that were stated and recorded at these times are covered by a tombstone.

    A tombstone that lies ahead was left before a clock was set back: it orders nothing that came later.
    """
    if not 0.0 < erased_at >= stated:
        return False
    ahead = time.time() + CLOCK_TOLERANCE
    return erased_at <= ahead or recorded > ahead


def tombstones(tenant: str, *, since: float, until: float) -> Steps[Tombstones]:
    """The tombstones that were left between two times."""
    rows = yield from fetch(TOMBSTONES, {"tenant": id_bytes(tenant), "since": since, "until": until})
    times: dict[int, dict[str, float]] = {USER: {}, SESSION: {}}
    for kind, name, at in rows:
        times.setdefault(kind, {})[id_text(name)] = at
    return Tombstones(times[USER], times[SESSION])


def sweep(*, before: float, limit: int) -> Steps[int]:
    """Delete a few turns that were recorded before a time; how many."""
    arguments = {"before": before, "limit": limit}
    yield from fetch(SWEEP_PASSAGES, arguments)
    rows = yield from fetch(SWEEP_TURNS, arguments)
    if rows:
        yield from fetch(SWEEP_SESSIONS, arguments)
    return len(rows)


def expire(codec: RowCodec, *, now: float, limit: int) -> Steps[int]:
    """Delete a few expired facts; how many."""
    rows = yield from fetch(codec.dialect.expire, {"now": now, "limit": limit})
    if rows:
        ids = json_array(item for (item,) in rows)
        yield from fetch(codec.dialect.unindex, {"kind": FACT, "ids": ids})
    return len(rows)
