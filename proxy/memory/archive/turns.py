"""Entries at the archive's door: whose each is, and what is refused."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from proxy.memory.archive.erasure import refuses, tombstone_at
from proxy.memory.archive.records import Turn
from proxy.memory.archive.sql import (
    IndexRow,
    RowCodec,
    Rows,
    Steps,
    ensure_owner,
    fetch,
    fetch_value,
    find_owner,
)
from proxy.memory.archive.statements import (
    END,
    KEPT,
    KEPT_BETWEEN,
    LAST_TALK,
    MARKS,
    NO_PASSAGE,
    NO_TURN,
    NO_UNPLACED,
    OF_TALK,
    PERSON,
    PUT_TURN,
    REACH,
    SESSION,
    STRANGERS,
    TALK,
    TALKS,
    TURN,
    TURNS,
    TURNS_OF,
    UNPLACED,
)
from proxy.memory.session import UNREADABLE, Entry, Session
from proxy.memory.speakers import NOBODY, guests, supposed
from proxy.memory.stores.sql import id_bytes, id_text, key_arguments
from proxy.memory.stores.store import CLOCK_TOLERANCE, Key, Owner

_SPOKEN = ("user", "assistant")
DecodedRow = tuple[Sequence[Any], Entry]


class Share(NamedTuple):
    """An entry, and whose it is to find, where that is another than the session's person."""

    entry: Entry
    guest: str | None


def admitted(key: Key, session: Session, entries: Sequence[Entry]) -> Steps[list[Share | None]]:
    """The entries with ``None`` for those of a forgotten person or session; each turn is whole."""
    names = {entry.speaker for entry in entries if entry.speaker} | (
        {session.user} if session.user else set()
    )
    buried = {}
    for name in sorted(names):
        buried[name] = yield from tombstone_at(key.tenant, PERSON, name)
    whole = yield from tombstone_at(key.tenant, SESSION, key.session)
    if session.user:
        owners = buried[session.user]
    else:
        owners = yield from tombstone_at(key.tenant, STRANGERS, key.session)
    parts = map(Share, entries, guests(session, entries))
    return [_admitted(part, buried, whole, owners) for part in parts]


def _admitted(part: Share, buried: Mapping[str, float], *forgotten: float) -> Share | None:
    """What was answered to a forgotten person stays in the session of another, and is found by nobody."""
    entry, guest = part
    if _is_refused(entry, buried.get(entry.speaker or "", 0.0), *forgotten):
        return None
    return part._replace(guest=NOBODY) if guest and _is_refused(entry, buried.get(guest, 0.0)) else part


def _is_refused(entry: Entry, *forgotten: float) -> bool:
    said = min(entry.recorded_at, entry.at)
    return any(refuses(at, said=said, recorded=entry.recorded_at) for at in forgotten if at)


class _Place(NamedTuple):
    """What names an entry within a talk."""

    life: int
    turn: int
    role: str
    position: int


class _Talk(NamedTuple):
    """The session that is being kept, its person, and the numbers of others who speak in it."""

    id: int
    key: Key
    user: str | None
    owner: int | None
    others: Mapping[str, int]

    def named(self, entry: Entry) -> str | None:
        """The other person who said a user's words."""
        return entry.speaker if entry.role == "user" and entry.speaker != self.user else None


def keep(shelf: RowCodec, key: Key, session: Session, *, mark: float) -> Steps[int]:
    """As the archive's ``keep``."""
    session = shelf.redaction.session(session)
    parts = yield from admitted(key, session, session.entries)
    if session.entries and not any(parts):
        return session.cold_count
    talk = yield from _talk(key, session, mark)
    if talk is None:
        return session.cold_count
    hot = {"talk": talk.id, **_hot(session)}
    rows = yield from fetch(KEPT, hot)
    yield from _renew(shelf, talk, parts, session.cold_count, rows)
    reach = yield from fetch_value(REACH, hot)
    return 0 if reach is None else min(int(reach) + 1, session.cold_count)


def keep_moved(
    shelf: RowCodec, key: Key, session: Session, moved: Sequence[Entry], *, start: int
) -> Steps[None]:
    """As the archive's ``keep_moved``."""
    moved = shelf.redaction.entries(moved)
    parts = yield from admitted(key, session, moved)
    if any(parts):
        talk = yield from _talk(key, session, session.updated)
        if talk is not None:
            between = _between(session, moved, last=start + len(moved) == session.cold_count)
            rows = yield from fetch(KEPT_BETWEEN, {"talk": talk.id, **between})
            yield from _renew(shelf, talk, parts, start, rows)


def marks(tenant: str) -> Steps[dict[str, float]]:
    """As the archive's ``marks``."""
    rows = yield from fetch(MARKS, {"tenant": id_bytes(tenant)})
    return {id_text(session): mark for session, mark in rows}


def talks(tenant: str, after: str, limit: int) -> Steps[dict[str, float]]:
    """As the archive's ``talks``."""
    rows = yield from fetch(TALKS, {"tenant": id_bytes(tenant), "after": id_bytes(after), "limit": limit})
    return {id_text(session): mark for session, mark in rows}


def turns(shelf: RowCodec, person: Owner, after: int, limit: int) -> Steps[list[tuple[int, Turn]]]:
    """As the archive's ``turns``."""
    owner = yield from find_owner(person)
    if owner is None:
        return []
    rows = yield from fetch(TURNS, {"owner": owner, "after": after, "limit": limit})
    return [(row[0], _turn(shelf, person.tenant, row)) for row in rows]


def last_talk(shelf: RowCodec, person: Owner, limit: int) -> Steps[list[Turn]]:
    """As the archive's ``last_talk``."""
    owner = yield from find_owner(person)
    talk = None if owner is None else (yield from fetch_value(LAST_TALK, {"owner": owner}))
    if talk is None:
        return []
    rows = yield from fetch(END, {"owner": owner, "talk": talk, "limit": limit})
    return [_turn(shelf, person.tenant, row) for row in reversed(rows)]


def turns_of(shelf: RowCodec, key: Key, start: int, limit: int) -> Steps[list[Turn]]:
    """As the archive's ``turns_of``."""
    rows = yield from fetch(TURNS_OF, {**key_arguments(key), "start": start, "limit": limit})
    return [_turn(shelf, key.tenant, row) for row in rows]


def _turn(shelf: RowCodec, tenant: str, row: Sequence[object]) -> Turn:
    _, session, created, at, _, blob = row
    name = id_text(session)  # type: ignore[arg-type]
    entry = shelf.decode(Key(tenant, name), blob, Entry)  # type: ignore[arg-type]
    return Turn(session=name, created=created, at=at, entry=entry)  # type: ignore[arg-type]


def _talk(key: Key, session: Session, mark: float) -> Steps[_Talk | None]:
    """The talk; ``None`` where a newer state of the session was kept."""
    times = {"created": session.created, "updated": session.updated, "mark": mark}
    id_ = yield from fetch_value(
        TALK, {**key_arguments(key), **times, "ahead": time.time() + CLOCK_TOLERANCE}
    )
    if id_ is None:
        return None
    owner = None
    if session.user:
        owner = yield from ensure_owner(Owner(key.tenant, session.user))
    return _Talk(id_, key, session.user, owner, {})


def _hot(session: Session) -> dict[str, object]:
    """From which turn on all that is kept is in the session's hot part."""
    if session.entries and session.cold_count:
        return {"life": session.entries[0].call, "turn": session.entries[0].turn}
    return {"life": -1, "turn": 0} if not session.cold_count else {"life": session.call + 1, "turn": 0}


def _between(session: Session, moved: Sequence[Entry], *, last: bool) -> dict[str, object]:
    """From which turn on, and before which, all that is kept is these; the ``last`` end at the hot part."""
    begin, end = moved[0].turn_ref, _hot(session)
    if not last:
        end = {"life": moved[-1].call, "turn": moved[-1].turn}
    return {"life": begin.call, "turn": begin.turn, "until": end["life"], "before": end["turn"]}


def _renew(
    shelf: RowCodec, talk: _Talk, parts: Sequence[Share | None], start: int, rows: Rows
) -> Steps[None]:
    """Puts entries in the place of those rows; what is no longer among them goes."""
    kept = {_Place(*row[1:5]): (row[0], bytes(row[5])) for row in rows}
    put = yield from _put(shelf, talk, parts, start, {name: one[1] for name, one in kept.items()})
    for place in kept.keys() - put:
        yield from _remove(kept[place][0])


def _put(
    shelf: RowCodec, talk: _Talk, parts: Sequence[Share | None], start: int, kept: dict[_Place, bytes]
) -> Steps[set[_Place]]:
    put = set()
    talk = talk._replace(others=(yield from _others(talk, parts)))
    for place, ordinal, part in _placed(parts, start):
        put.add(place)
        yield from _put_one(shelf, talk, place, ordinal, part, kept.get(place))
    return put


def _others(talk: _Talk, parts: Sequence[Share | None]) -> Steps[dict[str, int]]:
    names = {name for part in parts if part for name in (talk.named(part.entry), part.guest) if name}
    numbers = {}
    for name in sorted(names):
        numbers[name] = yield from ensure_owner(Owner(talk.key.tenant, name))
    return numbers


def _placed(parts: Sequence[Share | None], start: int) -> Iterator[tuple[_Place, int, Share]]:
    counted: Counter[tuple[int, int, str]] = Counter()
    for ordinal, part in enumerate(parts, start):
        if part is not None:
            name = part.entry.call, part.entry.turn, part.entry.role
            yield _Place(*name, counted[name]), ordinal, part
            counted[name] += 1


def _put_one(  # noqa: PLR0913, PLR0917 - one entry, whose it is and where it stands
    shelf: RowCodec, talk: _Talk, place: _Place, ordinal: int, part: Share, known: bytes | None
) -> Steps[None]:
    entry, guest = part
    speaker = talk.others.get(talk.named(entry) or "")
    owner = talk.owner if guest is None else talk.others.get(guest)
    # Whoever is named may be the session's person under another name.
    whose = None if speaker is None and guest is None else (speaker, guest is not None and owner)
    mark = shelf.digest(ordinal, talk.owner, whose, entry)
    if mark == known:
        return
    row = place._asdict() | {
        "talk": talk.id,
        "place": ordinal,
        "owner": talk.owner,
        "speaker": speaker,
        "at": entry.at,
        "recorded": entry.recorded_at,
        "digest": mark,
        "blob": shelf.encode(talk.key, entry),
    }
    item = yield from fetch_value(PUT_TURN, row)
    if talk.owner is not None:
        person = Owner(talk.key.tenant, (talk.user if guest is None else guest) or "")
        yield from indexed(shelf, person, owner, entry, IndexRow(TURN, item, entry.at, talk.id, ordinal))


def indexed(shelf: RowCodec, person: Owner, owner: int | None, entry: Entry, line: IndexRow) -> Steps[None]:
    """Puts what was spoken into the index of its person; what is nobody's is in none."""
    if owner is None:
        yield from fetch(NO_PASSAGE, {"kind": line.kind, "item": line.item})
    elif entry.role in _SPOKEN:
        # What a program put in the user's place would be told as the user's words.
        yield from shelf.index(person, owner, "" if entry.is_injected else entry.text, line)


def _remove(item: int) -> Steps[None]:
    yield from fetch(NO_PASSAGE, {"kind": TURN, "item": item})
    yield from fetch(NO_TURN, {"item": item})


def assign_owner(shelf: RowCodec) -> Steps[int]:
    """Puts the turns of one talk in the index of those whose they are; how many, 0 where all are there.

    What cannot be read is nobody's from then on, nor is what was answered to no words that are there.
    """
    talk = yield from fetch_value(UNPLACED, {})
    if talk is None:
        return 0
    rows = yield from fetch(OF_TALK, {"talk": talk})
    yield from fetch(NO_UNPLACED, {"talk": talk})
    read = list(_decoded(shelf, rows))
    entries = [entry for _, entry in read]
    session = supposed(id_text(rows[0][2]) if rows else "", entries)
    for (row, entry), guest in zip(read, guests(session, entries), strict=True):
        yield from _assign(shelf, talk, row, entry, guest)
    return max(1, len(rows))


def _decoded(shelf: RowCodec, rows: Rows) -> Iterator[DecodedRow]:
    for row in rows:
        try:
            yield row, shelf.decode(Key(id_text(row[0]), id_text(row[1])), row[7], Entry)
        except UNREADABLE:
            continue


def _assign(shelf: RowCodec, talk: int, row: Sequence[Any], entry: Entry, guest: str | None) -> Steps[None]:
    tenant, _, person, owner, item, ordinal, at, _ = row
    whose = Owner(id_text(tenant), id_text(person) if guest is None else guest)
    if guest is not None:
        owner = (yield from ensure_owner(whose)) if guest else None
    yield from indexed(shelf, whose, owner, entry, IndexRow(TURN, item, at, talk, ordinal))
