"""Deletes from the archive: erased users and sessions, and turns and facts past their retention time."""

from itertools import accumulate
from typing import Final

from proxy.clock import wall_time
from proxy.memory.archive import statements
from proxy.memory.archive.records import DIGEST_MARK, ErasureCount, TombstoneKeys, Tombstones
from proxy.memory.archive.sql import (
    CHARACTERS_PER_ROW,
    RowCodec,
    Rows,
    Steps,
    ensure_secrets,
    fetch,
    fetch_value,
    gather,
    locked_owner,
    readable_secrets,
    stored_secrets,
    unembed,
)
from proxy.memory.archive.statements import json_array
from proxy.memory.stores.sql import Arguments, Statement, id_bytes, id_text, key_arguments
from proxy.memory.stores.store import CLOCK_TOLERANCE, TOMBSTONE_SECONDS, Key, Owner

PURPOSE: Final = "tombstones"
"""The purpose of the secrets that key the digests of tombstones."""


def forget(codec: RowCodec, user: Owner, *, at: float) -> Steps[ErasureCount]:
    """Leaves a tombstone, and deletes as much of a user as fits in one transaction."""
    yield from _leave_tombstone(codec, user.tenant, statements.USER, user.user, at)
    arguments = {"owner": (yield from locked_owner(user))}
    # All transactions lock facts, sessions and turns before their passages: another order could deadlock.
    facts = yield from _some(codec, statements.SOME_FACTS, arguments)
    yield from _delete(statements.FACT, facts)
    if facts:
        return ErasureCount(facts=len(facts))
    turns = yield from _some(codec, statements.SOME_OF_USER, arguments)
    yield from _delete_turns(turns)
    if not turns:
        yield from fetch(statements.FORGET_PASSAGES, arguments)
        yield from fetch(statements.DELETE_OWNER, arguments)
    return ErasureCount(turns=len(turns))


def forget_session(codec: RowCodec, key: Key, *, at: float) -> Steps[ErasureCount]:
    """Leaves a tombstone, and deletes as much of a session as fits in one transaction."""
    yield from _leave_tombstone(codec, key.tenant, statements.SESSION, key.session, at)
    yield from fetch(statements.LOCK_SESSION, key_arguments(key))
    yield from fetch(statements.RENEW_SESSION, key_arguments(key))
    turns = yield from _some(codec, statements.SOME_OF_SESSION, key_arguments(key))
    yield from _delete_turns(turns)
    if not turns:
        yield from fetch(statements.FORGET_SESSION_PASSAGES, key_arguments(key))
        yield from fetch(statements.DELETE_IF_EMPTY, key_arguments(key))
    return ErasureCount(turns=len(turns))


def forget_anonymous(codec: RowCodec, key: Key, *, at: float) -> Steps[ErasureCount]:
    """Leaves a tombstone, and deletes as many turns without a user as fit in one transaction."""
    yield from _leave_tombstone(codec, key.tenant, statements.ANONYMOUS, key.session, at)
    kind = {"tenant": id_bytes(key.tenant), "kind": statements.ANONYMOUS}
    yield from fetch(statements.DELETE_OLD_TOMBSTONES, {**kind, "before": at - TOMBSTONE_SECONDS})
    yield from fetch(statements.LOCK_SESSION, key_arguments(key))
    yield from fetch(statements.RENEW_SESSION, key_arguments(key))
    turns = yield from _some(codec, statements.SOME_OF_NOBODY, key_arguments(key))
    yield from _delete_turns(turns)
    return ErasureCount(turns=len(turns))


def _some(codec: RowCodec, statement: Statement, arguments: Arguments) -> Steps[Rows]:
    """Reads as many rows as one transaction can delete; their third column is a size."""
    batch = codec.dialect.batch
    rows = yield from fetch(statement, {"limit": batch // CHARACTERS_PER_ROW, **arguments})
    sizes = accumulate(CHARACTERS_PER_ROW + row[2] for row in rows)
    return [row for row, size in zip(rows, sizes, strict=True) if size <= batch] or rows[:1]


def _delete_turns(turns: Rows) -> Steps[None]:
    """Deletes turns, by id and session, and sessions that become empty."""
    sessions = json_array({talk for _, talk, *_ in turns})
    if turns:
        yield from fetch(statements.RENEW_SESSIONS, {"ids": sessions})
        yield from _delete(statements.TURN, turns)
        yield from fetch(statements.DELETE_EMPTY, {"ids": sessions})


def _delete(kind: int, rows: Rows) -> Steps[None]:
    """Deletes turns or facts, by id, and removes them from the index."""
    if rows:
        ids = json_array(row[0] for row in rows)
        yield from fetch(statements.DELETE_ITEMS[kind], {"ids": ids})
        yield from fetch(statements.DELETE_PASSAGES, {"kind": kind, "ids": ids})


def tombstone(keys: TombstoneKeys, tenant: str, kind: int, name: str) -> Steps[float]:
    """Reads when a user or a session was erased, in seconds since 1970; 0 if it was not."""
    last = 0.0
    for digest in keys.digests(tenant, kind, name):
        # Older versions, which may still run, store the plain name.
        names = {"name": digest, "plain": id_bytes(name)}
        at = yield from fetch_value(statements.TOMBSTONE, {"tenant": id_bytes(tenant), "kind": kind, **names})
        last = max(last, at or 0.0)
    return last


def tombstone_keys(codec: RowCodec) -> Steps[TombstoneKeys]:
    """Reads the keys of tombstones' digests, or creates one. Must come first in a transaction."""
    return TombstoneKeys((yield from ensure_secrets(codec.codec, PURPOSE)).readable)


def _leave_tombstone(codec: RowCodec, tenant: str, kind: int, name: str, at: float) -> Steps[None]:
    keys = yield from tombstone_keys(codec)
    row = {"tenant": id_bytes(tenant), "kind": kind}
    yield from fetch(statements.DELETE_TOMBSTONE, {**row, "name": id_bytes(name)})
    yield from fetch(
        statements.UPSERT_TOMBSTONE, {**row, "name": keys.digests(tenant, kind, name)[0], "at": at}
    )


def rename_tombstones(codec: RowCodec, limit: int) -> Steps[int]:
    """Replaces a few plain names, which older versions left in tombstones, by digests; returns how many."""
    keys = yield from tombstone_keys(codec)
    rows = yield from fetch(statements.NAMED_TOMBSTONES, {"digests": DIGEST_MARK, "limit": limit})
    for tenant, kind, name, at in rows:
        row = {"tenant": tenant, "kind": kind}
        digest = keys.digests(id_text(tenant), kind, id_text(name))[0]
        yield from fetch(statements.MOVE_TOMBSTONE, {**row, "name": digest, "at": at})
        yield from fetch(statements.DELETE_TOMBSTONE, {**row, "name": name})
    return len(rows)


def is_erased(erased_at: float, *, stated: float, recorded: float) -> bool:
    """Whether a tombstone covers words that were stated and recorded at these times.

    A tombstone with a time in the future is from before a clock was set back, and covers nothing later.
    """
    if not 0.0 < erased_at >= stated:
        return False
    ahead = wall_time() + CLOCK_TOLERANCE
    return erased_at <= ahead or recorded > ahead


def tombstones(codec: RowCodec, tenant: str, *, since: float, until: float) -> Steps[Tombstones]:
    """Reads the tombstones that were left between two times."""
    between = {"tenant": id_bytes(tenant), "since": since, "until": until}
    secrets, rows = yield from gather(stored_secrets(PURPOSE), fetch(statements.TOMBSTONES, between))
    # Without a key there are only plain names, from older versions.
    keys = TombstoneKeys(readable_secrets(codec.codec, secrets) or (b"",))
    times: dict[bytes, float] = {}
    for kind, name, at in rows:
        digest = bytes(name)
        if not digest.startswith(DIGEST_MARK):
            digest = keys.digests(tenant, kind, id_text(name))[0]
        times[digest] = max(at, times.get(digest, 0.0))
    return Tombstones(tenant, keys, times)


def sweep(codec: RowCodec, *, since: float, before: float, limit: int) -> Steps[tuple[int, float]]:
    """Deletes a few turns that were recorded between two times; returns how many, and the last one's time."""
    between = {"since": since, "before": before} | ({"limit": limit} if limit else {})
    turns = yield from _some(codec, statements.OLD_TURNS, between)
    # The vector of the first remaining turn includes the turns before it, so it has to be removed.
    yield from unembed(row[0] for row in turns)
    yield from _delete_turns(turns)
    return len(turns), float(turns[-1][3]) if turns else 0.0


def expire(*, now: float, limit: int) -> Steps[int]:
    """Deletes a few expired facts; returns how many."""
    rows = yield from fetch(statements.EXPIRE_FACTS, {"now": now, "limit": limit})
    if rows:
        ids = json_array(item for (item,) in rows)
        yield from fetch(statements.DELETE_PASSAGES, {"kind": statements.FACT, "ids": ids})
    return len(rows)
