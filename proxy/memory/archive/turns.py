"""Turns in the archive: how they are read again, and given to their owners."""

import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from proxy.memory.archive import statements
from proxy.memory.archive.records import Turn, UserSession
from proxy.memory.archive.sql import (
    IndexRow,
    RowCodec,
    Steps,
    ensure_owner,
    fetch,
    fetch_value,
    find_owner,
)
from proxy.memory.archive.statements import json_array
from proxy.memory.session import UNREADABLE, Entry
from proxy.memory.speakers import other_users, session_of_entries
from proxy.memory.stores.sql import id_text, key_arguments
from proxy.memory.stores.store import Key, Owner


class UnownedTurn(NamedTuple):
    """A turn that is indexed under no owner yet: its row, as it was read, and whose it is."""

    row: Sequence[Any]
    entry: Entry
    guest: str | None


def unowned_turns(codec: RowCodec) -> Steps[tuple[int, list[UnownedTurn]] | None]:
    """The session of which turns are to be indexed under their owners, and these turns; ``None`` for none.

    Turns that cannot be read are left out.
    """
    talk = yield from fetch_value(statements.UNOWNED_SESSION, {})
    if talk is None:
        return None
    rows = yield from fetch(statements.TURNS_WITH_OWNERS, {"talk": talk})
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
    rows = yield from fetch(codec.dialect.texts[statements.TURN], {"ids": ids, "now": 0.0})
    current = {row[0]: bytes(row[3]) for row in rows}
    for row, entry, guest in turns:
        tenant, _, user, owner, item, place, at, blob, _ = row
        if current.get(item) != bytes(blob):
            continue
        name = Owner(id_text(tenant), id_text(user) if guest is None else guest)
        if guest is not None:
            owner = (yield from ensure_owner(name)) if guest else None
        if owner is None:
            yield from fetch(statements.DELETE_PASSAGE, {"kind": statements.TURN, "item": item})
        elif entry.role in {"user", "assistant"}:
            # Injected words would be shown as the user's.
            text = "" if entry.is_injected else entry.text
            yield from codec.index(name, owner, text, IndexRow(statements.TURN, item, at, talk, place))


def user_sessions(user: Owner, limit: int) -> Steps[list[UserSession]]:
    """The sessions in which a user spoke or was spoken to, the newest first."""
    owner = yield from find_owner(user)
    if owner is None:
        return []
    rows = yield from fetch(statements.OWNER_SESSIONS, {"owner": owner, "limit": limit})
    return [UserSession(id_text(session), at, count) for session, at, count in rows]


def user_turns(codec: RowCodec, user: Owner, after: int, limit: int) -> Steps[list[tuple[int, Turn]]]:
    """A page of a user's turns, each with its number."""
    owner = yield from find_owner(user)
    if owner is None:
        return []
    rows = yield from fetch(statements.USER_TURNS, {"owner": owner, "after": after, "limit": limit})
    return [(row[0], _turn(codec, user.tenant, row)) for row in rows]


def latest_turns(codec: RowCodec, user: Owner, limit: int) -> Steps[list[Turn]]:
    """The end of the session in which a user spoke last."""
    owner = yield from find_owner(user)
    talk = None if owner is None else (yield from fetch_value(statements.LATEST_SESSION, {"owner": owner}))
    if talk is None:
        return []
    rows = yield from fetch(statements.LATEST_TURNS, {"owner": owner, "talk": talk, "limit": limit})
    return [_turn(codec, user.tenant, row) for row in reversed(rows)]


def session_turns(codec: RowCodec, key: Key, start: int, limit: int) -> Steps[list[Turn]]:
    """A page of a session's turns."""
    rows = yield from fetch(statements.SESSION_TURNS, {**key_arguments(key), "start": start, "limit": limit})
    return [_turn(codec, key.tenant, row) for row in rows]


def _turn(codec: RowCodec, tenant: str, row: Sequence[Any]) -> Turn:
    _, session, created, at, _, blob = row
    name = id_text(session)
    return Turn(session=name, created=created, at=at, entry=codec.decode(Key(tenant, name), blob, Entry))
