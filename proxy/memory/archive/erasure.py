"""What leaves the archive: erased users and sessions, and turns and facts past their time."""

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
"""What the secrets are for that are keys of tombstones."""


def forget(codec: RowCodec, user: Owner, *, at: float) -> Steps[ErasureCount]:
    """Leave a tombstone, and delete as much of a user as one transaction takes, until nothing is left."""
    yield from _leave_tombstone(codec, user.tenant, statements.USER, user.user, at)
    own = {"owner": (yield from locked_owner(user))}
    # Facts, sessions and turns before their passages, as everywhere: two transactions that lock them
    # crosswise would deadlock.
    facts = yield from _some(codec, statements.SOME_FACTS, own)
    yield from _delete(statements.FACT, facts)
    if facts:
        return ErasureCount(facts=len(facts))
    turns = yield from _some(codec, statements.SOME_OF_USER, own)
    yield from _delete_turns(turns)
    if not turns:
        yield from fetch(statements.FORGET_PASSAGES, own)
        yield from fetch(statements.DELETE_OWNER, own)
    return ErasureCount(turns=len(turns))


def forget_session(codec: RowCodec, key: Key, *, at: float) -> Steps[ErasureCount]:
    """Leave a tombstone, and delete as much of a session as one transaction takes."""
    yield from _leave_tombstone(codec, key.tenant, statements.SESSION, key.session, at)
    yield from fetch(statements.RENEW_SESSION, key_arguments(key))
    turns = yield from _some(codec, statements.SOME_OF_SESSION, key_arguments(key))
    yield from _delete_turns(turns)
    if not turns:
        yield from fetch(statements.FORGET_SESSION_PASSAGES, key_arguments(key))
        yield from fetch(statements.DELETE_IF_EMPTY, key_arguments(key))
    return ErasureCount(turns=len(turns))


def forget_anonymous(codec: RowCodec, key: Key, *, at: float) -> Steps[ErasureCount]:
    """Leave a tombstone, and delete some turns of a session that have no user, in the same way."""
    yield from _leave_tombstone(codec, key.tenant, statements.ANONYMOUS, key.session, at)
    kind = {"tenant": id_bytes(key.tenant), "kind": statements.ANONYMOUS}
    yield from fetch(statements.DELETE_OLD_TOMBSTONES, {**kind, "before": at - TOMBSTONE_SECONDS})
    yield from fetch(statements.RENEW_SESSION, key_arguments(key))
    turns = yield from _some(codec, statements.SOME_OF_NOBODY, key_arguments(key))
    yield from _delete_turns(turns)
    return ErasureCount(turns=len(turns))


def _some(codec: RowCodec, statement: Statement, arguments: Arguments) -> Steps[Rows]:
    """As many of a statement's rows, which have a size in their third column, as one transaction deletes."""
    batch = codec.dialect.batch
    rows = yield from fetch(statement, {"limit": batch // CHARACTERS_PER_ROW, **arguments})
    sizes = accumulate(CHARACTERS_PER_ROW + row[2] for row in rows)
    return [row for row, size in zip(rows, sizes, strict=True) if size <= batch] or rows[:1]


def _delete_turns(turns: Rows) -> Steps[None]:
    """Delete turns, by id and session, and sessions that have none left."""
    sessions = json_array({talk for _, talk, *_ in turns})
    if turns:
        yield from fetch(statements.RENEW_SESSIONS, {"ids": sessions})
        yield from _delete(statements.TURN, turns)
        yield from fetch(statements.DELETE_EMPTY, {"ids": sessions})


def _delete(kind: int, rows: Rows) -> Steps[None]:
    """Delete turns or facts, by id, and take them out of the index."""
    if rows:
        ids = json_array(row[0] for row in rows)
        yield from fetch(statements.DELETE_ITEMS[kind], {"ids": ids})
        yield from fetch(statements.DELETE_PASSAGES, {"kind": kind, "ids": ids})


def tombstone(keys: TombstoneKeys, tenant: str, kind: int, name: str) -> Steps[float]:
    """When a user or a session was erased, in seconds since 1970; 0 where it was not."""
    last = 0.0
    for digest in keys.digests(tenant, kind, name):
        # Older versions, which may still run, name whom they erase.
        names = {"name": digest, "plain": id_bytes(name)}
        at = yield from fetch_value(statements.TOMBSTONE, {"tenant": id_bytes(tenant), "kind": kind, **names})
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
    yield from fetch(statements.DELETE_TOMBSTONE, {**row, "name": id_bytes(name)})
    yield from fetch(
        statements.UPSERT_TOMBSTONE, {**row, "name": keys.digests(tenant, kind, name)[0], "at": at}
    )


def rename_tombstones(codec: RowCodec, limit: int) -> Steps[int]:
    """Put digests in the place of a few names that an older version has left in tombstones; how many."""
    keys = yield from tombstone_keys(codec)
    rows = yield from fetch(statements.NAMED_TOMBSTONES, {"digests": DIGEST_MARK, "limit": limit})
    for tenant, kind, name, at in rows:
        row = {"tenant": tenant, "kind": kind}
        digest = keys.digests(id_text(tenant), kind, id_text(name))[0]
        yield from fetch(statements.MOVE_TOMBSTONE, {**row, "name": digest, "at": at})
        yield from fetch(statements.DELETE_TOMBSTONE, {**row, "name": name})
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
    secrets, rows = yield from gather(stored_secrets(PURPOSE), fetch(statements.TOMBSTONES, between))
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
    between = {"since": since, "before": before} | ({"limit": limit} if limit else {})
    turns = yield from _some(codec, statements.OLD_TURNS, between)
    # The first turn that stays has what it followed in its vector; of users and sessions nothing stays.
    yield from unembed(row[0] for row in turns)
    yield from _delete_turns(turns)
    return len(turns), float(turns[-1][3]) if turns else 0.0


def expire(*, now: float, limit: int) -> Steps[int]:
    """Delete a few expired facts; how many."""
    rows = yield from fetch(statements.EXPIRE_FACTS, {"now": now, "limit": limit})
    if rows:
        ids = json_array(item for (item,) in rows)
        yield from fetch(statements.DELETE_PASSAGES, {"kind": statements.FACT, "ids": ids})
    return len(rows)
