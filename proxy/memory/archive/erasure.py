"""What leaves the archive: erased users and sessions, and turns and facts past their time."""

from typing import Final

from proxy.clock import wall_time
from proxy.memory.archive.records import DIGEST_MARK, ErasureCount, TombstoneKeys, Tombstones
from proxy.memory.archive.shared_secrets import ensure_secrets, readable_secrets, stored_secrets
from proxy.memory.archive.sql import RowCodec, Rows, Steps, fetch, fetch_value, find_owner, gather
from proxy.memory.archive.statements import (
    ANONYMOUS,
    DELETE_IF_EMPTY,
    DELETE_OLD_TOMBSTONES,
    DELETE_OWNER,
    DELETE_TOMBSTONE,
    FACT,
    FORGET_ANONYMOUS,
    FORGET_FACTS,
    FORGET_PASSAGES,
    FORGET_SESSION,
    FORGET_SESSION_PASSAGES,
    FORGET_TURNS,
    MOVE_TOMBSTONE,
    NAMED_TOMBSTONES,
    RENEW_SESSION,
    RENEW_SESSIONS_OF,
    SESSION,
    TOMBSTONE,
    TOMBSTONES,
    TURN,
    UPSERT_TOMBSTONE,
    USER,
    json_array,
)
from proxy.memory.stores.sql import id_bytes, id_text, key_arguments
from proxy.memory.stores.store import CLOCK_TOLERANCE, TOMBSTONE_SECONDS, Key, Owner

PURPOSE: Final = "tombstones"
"""What the secrets are for that are keys of tombstones."""


def forget(codec: RowCodec, user: Owner, *, at: float) -> Steps[ErasureCount]:
    """Delete everything of a user and leave a tombstone."""
    yield from _leave_tombstone(codec, user.tenant, USER, user.user, at)
    owner = yield from find_owner(user)
    if owner is None:
        return ErasureCount()
    own = {"owner": owner}
    # Facts, sessions and turns before their passages, as everywhere: two transactions that lock them
    # crosswise would deadlock.
    facts = yield from fetch(FORGET_FACTS, own)
    yield from fetch(RENEW_SESSIONS_OF, own)
    turns = yield from fetch(FORGET_TURNS, own)
    yield from fetch(FORGET_PASSAGES, own)
    yield from _unindex(codec, turns)
    yield from fetch(DELETE_OWNER, own)
    return ErasureCount(turns=len(turns), facts=len(facts))


def forget_session(codec: RowCodec, key: Key, *, at: float) -> Steps[int]:
    """Delete a session and leave a tombstone; how many turns it had."""
    yield from _leave_tombstone(codec, key.tenant, SESSION, key.session, at)
    yield from fetch(RENEW_SESSION, key_arguments(key))
    turns = yield from fetch(FORGET_SESSION, key_arguments(key))
    yield from fetch(FORGET_SESSION_PASSAGES, key_arguments(key))
    yield from fetch(DELETE_IF_EMPTY, key_arguments(key))
    return len(turns)


def forget_anonymous(codec: RowCodec, key: Key, *, at: float) -> Steps[int]:
    """Delete the turns of a session that have no user, and leave a tombstone; how many there were."""
    yield from _leave_tombstone(codec, key.tenant, ANONYMOUS, key.session, at)
    kind = {"tenant": id_bytes(key.tenant), "kind": ANONYMOUS}
    yield from fetch(DELETE_OLD_TOMBSTONES, {**kind, "before": at - TOMBSTONE_SECONDS})
    yield from fetch(RENEW_SESSION, key_arguments(key))
    turns = yield from fetch(FORGET_ANONYMOUS, key_arguments(key))
    if turns:
        yield from fetch(DELETE_IF_EMPTY, key_arguments(key))
    return len(turns)


def _unindex(codec: RowCodec, turns: Rows) -> Steps[None]:
    """Take deleted turns, by id and session, out of the index, and delete sessions that have none left."""
    if turns:
        yield from fetch(codec.dialect.unindex, {"kind": TURN, "ids": json_array(item for item, _ in turns)})
        sessions = json_array({talk for _, talk in turns})
        yield from fetch(codec.dialect.delete_empty, {"ids": sessions})


def tombstone(keys: TombstoneKeys, tenant: str, kind: int, name: str) -> Steps[float]:
    """When a user or a session was erased, in seconds since 1970; 0 where it was not."""
    last = 0.0
    for digest in keys.digests(tenant, kind, name):
        # Older versions, which may still run, name whom they erase.
        names = {"name": digest, "plain": id_bytes(name)}
        at = yield from fetch_value(TOMBSTONE, {"tenant": id_bytes(tenant), "kind": kind, **names})
        last = max(last, at or 0.0)
    return last


def tombstone_keys(codec: RowCodec) -> Steps[TombstoneKeys]:
    """The keys of tombstones' digests; one is made where none can be read. A transaction begins with it."""
    return TombstoneKeys((yield from ensure_secrets(codec.codec, PURPOSE)))


def tombstone_key_numbers() -> Steps[list[int]]:
    """The numbers of all keys of tombstones."""
    return [number for number, _ in (yield from stored_secrets(PURPOSE))]


def _leave_tombstone(codec: RowCodec, tenant: str, kind: int, name: str, at: float) -> Steps[None]:
    keys = yield from tombstone_keys(codec)
    row = {"tenant": id_bytes(tenant), "kind": kind}
    yield from fetch(DELETE_TOMBSTONE, {**row, "name": id_bytes(name)})
    yield from fetch(UPSERT_TOMBSTONE, {**row, "name": keys.digests(tenant, kind, name)[0], "at": at})


def rename_tombstones(codec: RowCodec, limit: int) -> Steps[int]:
    """Put digests in the place of a few names that an older version has left in tombstones; how many."""
    keys = yield from tombstone_keys(codec)
    rows = yield from fetch(NAMED_TOMBSTONES, {"digests": DIGEST_MARK, "limit": limit})
    for tenant, kind, name, at in rows:
        row = {"tenant": tenant, "kind": kind}
        digest = keys.digests(id_text(tenant), kind, id_text(name))[0]
        yield from fetch(MOVE_TOMBSTONE, {**row, "name": digest, "at": at})
        yield from fetch(DELETE_TOMBSTONE, {**row, "name": name})
    return len(rows)


def is_erased(erased_at: float, *, stated: float, recorded: float) -> bool:
    """Whether words that were stated and recorded at these times are covered by a tombstone.

    A tombstone that lies ahead was left before a clock was set back: it orders nothing that came later.
    """
    if not 0.0 < erased_at >= stated:
        return False
    ahead = wall_time() + CLOCK_TOLERANCE
    return erased_at <= ahead or recorded > ahead


def tombstones(codec: RowCodec, tenant: str, *, since: float, until: float) -> Steps[Tombstones]:
    """The tombstones that were left between two times."""
    between = {"tenant": id_bytes(tenant), "since": since, "until": until}
    secrets, rows = yield from gather(stored_secrets(PURPOSE), fetch(TOMBSTONES, between))
    # Without a key there are only names, which older versions have left.
    keys = TombstoneKeys(readable_secrets(codec.codec, secrets) or (b"",))
    times: dict[bytes, float] = {}
    for kind, name, at in rows:
        digest = bytes(name)
        if not digest.startswith(DIGEST_MARK):
            digest = keys.digests(tenant, kind, id_text(name))[0]
        times[digest] = max(at, times.get(digest, 0.0))
    return Tombstones(tenant, keys, times)


def sweep(codec: RowCodec, *, since: float, before: float, limit: int) -> Steps[tuple[int, float]]:
    """Delete a few turns that were recorded in a time; how many, and when the last of them was recorded."""
    rows = yield from fetch(codec.dialect.old_turns, {"since": since, "before": before, "limit": limit})
    if not rows:
        return 0, 0.0
    turns = [(item, talk) for item, talk, _ in rows]
    yield from fetch(codec.dialect.delete_turns, {"ids": json_array(item for item, _ in turns)})
    yield from _unindex(codec, turns)
    return len(turns), float(rows[-1][2])


def expire(codec: RowCodec, *, now: float, limit: int) -> Steps[int]:
    """Delete a few expired facts; how many."""
    rows = yield from fetch(codec.dialect.expire, {"now": now, "limit": limit})
    if rows:
        ids = json_array(item for (item,) in rows)
        yield from fetch(codec.dialect.unindex, {"kind": FACT, "ids": ids})
    return len(rows)
