"""Turns in the archive: which are admitted, how they are saved, and how they are read again."""

import contextlib
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from proxy.memory.archive.erasure import is_erased, tombstone, tombstone_keys
from proxy.memory.archive.records import Turn
from proxy.memory.archive.sql import (
    CHARACTERS_PER_ROW,
    PART,
    IndexRow,
    RowCodec,
    Rows,
    Steps,
    ensure_owner,
    fetch,
    fetch_each,
    fetch_value,
    find_owner,
)
from proxy.memory.archive.statements import (
    ANONYMOUS,
    COMPARISONS,
    DELETE_PASSAGE,
    DELETE_TURN,
    DELETE_UNOWNED,
    HOT_TURNS,
    LAST_COLD_PLACE,
    LATEST_SESSION,
    LATEST_TURNS,
    LIST_SESSIONS,
    SAVED_TIME,
    SESSION,
    SESSION_TURNS,
    SET_COMPARISONS,
    TURN,
    TURNS_BETWEEN,
    TURNS_WITH_OWNERS,
    UNOWNED_SESSION,
    UPSERT_SESSION,
    UPSERT_TURN,
    USER,
    USER_TURNS,
    json_array,
)
from proxy.memory.session import UNREADABLE, Entry, Session
from proxy.memory.speakers import NOBODY, other_users, session_of_entries
from proxy.memory.stores.sql import id_bytes, id_text, key_arguments
from proxy.memory.stores.store import CLOCK_TOLERANCE, Key, Owner

_ALL_SESSIONS: Final = Key("", "")


class _Admission(NamedTuple):
    """An entry that may be archived; ``guest`` owns it where that is not the session's user."""

    entry: Entry
    guest: str | None


class _SessionRow(NamedTuple):
    """The row of an archived session, and the row of its user."""

    id: int
    key: Key
    user: str | None
    owner: int | None


class Progress(NamedTuple):
    """How many of the entries are ``done``, ``None`` once all are; of those that moved so many are saved."""

    done: int | None
    moved: int = 0


def save_session(codec: RowCodec, key: Key, session: Session, done: int, *, as_of: float) -> Steps[Progress]:
    """Save some more of the hot part of a session, of which so many entries are done."""
    session = codec.redaction.session(session)
    admissions = yield from _admit(codec, key, session, session.entries)
    if session.entries and not any(admissions):
        return Progress(None, session.cold_count)
    # Without turns a user has no row: they may have been erased since.
    named = session if any(admissions) else msgspec.structs.replace(session, user=None)
    row = yield from _upsert_session(key, named, as_of)
    if row is None:
        return Progress(None, session.cold_count)
    hot = {"talk": row.id, **_hot_start(session)}
    stored = yield from fetch(HOT_TURNS, hot)
    left = yield from _replace_turns(codec, row, [*enumerate(admissions, session.cold_count)], stored, done)
    if left is not None:
        return Progress(left)
    last = yield from fetch_value(LAST_COLD_PLACE, hot)
    return Progress(None, 0 if last is None else min(int(last) + 1, session.cold_count))


def save_moved(  # noqa: PLR0913 - a page of a session, and how far it is saved
    codec: RowCodec, key: Key, session: Session, moved: Sequence[Entry], done: int, *, start: int
) -> Steps[Progress]:
    """Save some more of the entries that moved out of a session, the first of them at index ``start``."""
    moved = codec.redaction.entries(moved)
    admissions = yield from _admit(codec, key, session, moved)
    if not any(admissions):
        return Progress(None)
    row = yield from _upsert_session(key, session, session.updated)
    if row is None:
        return Progress(None)
    begin, end = moved[0], _hot_start(session)
    if start + len(moved) != session.cold_count:
        end = {"life": moved[-1].call, "turn": moved[-1].turn}
    between = {"life": begin.call, "turn": begin.turn, "until": end["life"], "before": end["turn"]}
    stored = yield from fetch(TURNS_BETWEEN, {"talk": row.id, **between})
    return Progress((yield from _replace_turns(codec, row, [*enumerate(admissions, start)], stored, done)))


def _admit(
    codec: RowCodec, key: Key, session: Session, entries: Sequence[Entry]
) -> Steps[list[_Admission | None]]:
    """The entries with their owners; ``None`` for entries of an erased user or session.

    An answer to an erased user stays in another user's session, and has no owner.
    """
    keys = yield from tombstone_keys(codec)
    names = {entry.speaker for entry in entries if entry.speaker}
    if session.user:
        names.add(session.user)
    users: dict[str, float] = {}
    for name in sorted(names):
        users[name] = yield from tombstone(keys, key.tenant, USER, name)
    whole = yield from tombstone(keys, key.tenant, SESSION, key.session)
    if session.user:
        own = users[session.user]
    else:
        own = yield from tombstone(keys, key.tenant, ANONYMOUS, key.session)
    if not (whole or own or any(users.values())):
        return [*map(_Admission, entries, other_users(session, entries))]
    admissions: list[_Admission | None] = []
    for entry, guest in zip(entries, other_users(session, entries), strict=True):
        stated_at = min(entry.recorded_at, entry.at)
        times = (users.get(entry.speaker or "", 0.0), whole, own)
        if any(at and is_erased(at, stated=stated_at, recorded=entry.recorded_at) for at in times):
            admissions.append(None)
        elif guest and is_erased(users.get(guest, 0.0), stated=stated_at, recorded=entry.recorded_at):
            admissions.append(_Admission(entry, NOBODY))
        else:
            admissions.append(_Admission(entry, guest))
    return admissions


def _upsert_session(key: Key, session: Session, as_of: float) -> Steps[_SessionRow | None]:
    """The row of the session; ``None`` where a newer state of it is saved."""
    times = {"created": session.created, "updated": session.updated, "mark": as_of}
    ahead = time.time() + CLOCK_TOLERANCE
    id_ = yield from fetch_value(UPSERT_SESSION, {**key_arguments(key), **times, "ahead": ahead})
    if id_ is None:
        return None
    owner = None
    if session.user:
        owner = yield from ensure_owner(Owner(key.tenant, session.user))
    return _SessionRow(id_, key, session.user, owner)


def _hot_start(session: Session) -> dict[str, int]:
    """The turn from which on everything that is saved is in the session's hot part."""
    if not session.cold_count:
        return {"life": -1, "turn": 0}
    if not session.entries:
        return {"life": session.call + 1, "turn": 0}
    return {"life": session.entries[0].call, "turn": session.entries[0].turn}


def _replace_turns(
    codec: RowCodec,
    row: _SessionRow,
    entries: Sequence[tuple[int, _Admission | None]],
    stored: Rows,
    done: int,
) -> Steps[int | None]:
    """Put entries, by their places, in the place of the stored turns; stored turns beside them are deleted.

    One transaction does a part of it, behind the ``done`` entries; returns how many are done then, ``None``
    for all.
    """
    room = PART
    admitted = [(index, place, *each) for index, (place, each) in enumerate(entries) if each]
    # The other user who said a user's words, and the one who was answered.
    speakers = {e.speaker for _, _, e, _ in admitted if e.role == "user" and e.speaker != row.user}
    owners: dict[str | None, int] = {}
    for name in sorted(filter(None, speakers | {guest for *_, guest in admitted})):
        owners[name] = yield from ensure_owner(Owner(row.key.tenant, name))
    stale = {turn[1:5]: turn for turn in map(tuple, stored)}
    positions: Counter[tuple[int, int, str]] = Counter()
    for index, place, entry, guest in admitted:
        group = entry.call, entry.turn, entry.role
        position = positions[group]
        positions[group] += 1
        speaker = owners.get(entry.speaker) if entry.role == "user" and entry.speaker != row.user else None
        owner = row.owner if guest is None else owners.get(guest)
        # A guest may be the session's own user under another name.
        ownership = None if speaker is None and guest is None else (speaker, guest is not None and owner)
        digest = codec.digest(place, row.owner, ownership, entry)
        before = stale.pop((*group, position), None)
        if index < done or (before and bytes(before[5]) == digest):
            continue
        if room <= 0:
            return index
        room -= CHARACTERS_PER_ROW + len(entry.text)
        arguments = {
            "talk": row.id,
            "life": entry.call,
            "turn": entry.turn,
            "role": entry.role,
            "position": position,
            "place": place,
            "owner": row.owner,
            "speaker": speaker,
            "at": entry.at,
            "recorded": entry.recorded_at,
            "digest": digest,
            "blob": codec.encode(row.key, entry),
        }
        item = yield from fetch_value(UPSERT_TURN, arguments)
        if row.owner is not None:
            user = Owner(row.key.tenant, (row.user if guest is None else guest) or "")
            yield from _index_turn(codec, user, owner, entry, IndexRow(TURN, item, entry.at, row.id, place))
    for item, *_ in stale.values():
        if room <= 0:
            return len(entries)
        room -= CHARACTERS_PER_ROW
        yield from fetch(DELETE_PASSAGE, {"kind": TURN, "item": item})
        yield from fetch(DELETE_TURN, {"item": item})
    return None


def _index_turn(codec: RowCodec, user: Owner, owner: int | None, entry: Entry, row: IndexRow) -> Steps[None]:
    """Index what was spoken under its owner; a turn without an owner leaves the index."""
    if owner is None:
        yield from fetch(DELETE_PASSAGE, {"kind": row.kind, "item": row.item})
    elif entry.role in {"user", "assistant"}:
        # Injected words would be shown as the user's.
        yield from codec.index(user, owner, "" if entry.is_injected else entry.text, row)


class UnownedTurn(NamedTuple):
    """A turn that is indexed under no owner yet: its row, as it was read, and whose it is."""

    row: Sequence[Any]
    entry: Entry
    guest: str | None


def unowned_turns(codec: RowCodec) -> Steps[tuple[int, list[UnownedTurn]] | None]:
    """The session of which turns are to be indexed under their owners, and these turns; ``None`` for none.

    Turns that cannot be read are left out.
    """
    talk = yield from fetch_value(UNOWNED_SESSION, {})
    if talk is None:
        return None
    rows = yield from fetch(TURNS_WITH_OWNERS, {"talk": talk})
    readable: list[Sequence[Any]] = []
    entries: list[Entry] = []
    for row in rows:
        with contextlib.suppress(*UNREADABLE):
            entries.append(codec.decode(Key(id_text(row[0]), id_text(row[1])), row[7], Entry))
            readable.append(row)
    session = session_of_entries(id_text(rows[0][2]) if rows else "", entries)
    turns = map(UnownedTurn, readable, entries, other_users(session, entries))
    return talk, [turn for turn in turns if turn.row[8]]


def assign_owners(codec: RowCodec, talk: int, turns: Sequence[UnownedTurn]) -> Steps[None]:
    """Index turns of a session under their owners, but for those that changed since they were read."""
    ids = json_array(turn.row[4] for turn in turns)
    rows = yield from fetch(codec.dialect.texts[TURN], {"ids": ids, "now": 0.0})
    current = {row[0]: bytes(row[3]) for row in rows}
    for row, entry, guest in turns:
        tenant, _, user, owner, item, place, at, blob, _ = row
        if current.get(item) != bytes(blob):
            continue
        name = Owner(id_text(tenant), id_text(user) if guest is None else guest)
        if guest is not None:
            owner = (yield from ensure_owner(name)) if guest else None
        yield from _index_turn(codec, name, owner, entry, IndexRow(TURN, item, at, talk, place))


def delete_unowned(talk: int, limit: int) -> Steps[int]:
    """Remove a few of a session's turns that have no owner from the index; how many."""
    return len((yield from fetch(DELETE_UNOWNED, {"talk": talk, "limit": limit})))


def saved_times(tenant: str, sessions: Sequence[str]) -> Steps[dict[str, float]]:
    """Of sessions that are saved, the newest time that each was saved as of."""
    rows = yield from fetch_each(SAVED_TIME, [key_arguments(Key(tenant, name)) for name in sessions])
    return {name: mark for name, [(mark,)] in zip(sessions, rows, strict=True) if mark is not None}


def comparisons() -> Steps[int]:
    """How often the sessions of the store have been compared with the archive."""
    count = yield from fetch_value(COMPARISONS, key_arguments(_ALL_SESSIONS))
    return int(count or 0)


def set_comparisons(count: int) -> Steps[None]:
    """Note how often they have been compared."""
    yield from fetch(SET_COMPARISONS, {**key_arguments(_ALL_SESSIONS), "mark": float(count)})


def list_sessions(tenant: str, after: str, limit: int) -> Steps[dict[str, float]]:
    """By session, the newest time that it was saved as of: a page in the order of the sessions' ids."""
    arguments = {"tenant": id_bytes(tenant), "after": id_bytes(after), "limit": limit}
    rows = yield from fetch(LIST_SESSIONS, arguments)
    return {id_text(session): mark for session, mark in rows}


def user_turns(codec: RowCodec, user: Owner, after: int, limit: int) -> Steps[list[tuple[int, Turn]]]:
    """A page of a user's turns, each with its number."""
    owner = yield from find_owner(user)
    if owner is None:
        return []
    rows = yield from fetch(USER_TURNS, {"owner": owner, "after": after, "limit": limit})
    return [(row[0], _turn(codec, user.tenant, row)) for row in rows]


def latest_turns(codec: RowCodec, user: Owner, limit: int) -> Steps[list[Turn]]:
    """The end of the session in which a user spoke last."""
    owner = yield from find_owner(user)
    talk = None if owner is None else (yield from fetch_value(LATEST_SESSION, {"owner": owner}))
    if talk is None:
        return []
    rows = yield from fetch(LATEST_TURNS, {"owner": owner, "talk": talk, "limit": limit})
    return [_turn(codec, user.tenant, row) for row in reversed(rows)]


def session_turns(codec: RowCodec, key: Key, start: int, limit: int) -> Steps[list[Turn]]:
    """A page of a session's turns."""
    rows = yield from fetch(SESSION_TURNS, {**key_arguments(key), "start": start, "limit": limit})
    return [_turn(codec, key.tenant, row) for row in rows]


def _turn(codec: RowCodec, tenant: str, row: Sequence[Any]) -> Turn:
    _, session, created, at, _, blob = row
    name = id_text(session)
    return Turn(session=name, created=created, at=at, entry=codec.decode(Key(tenant, name), blob, Entry))
