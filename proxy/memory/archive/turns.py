"""Turns on their way into the archive: what is there already stays, what was corrected is corrected."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from proxy.memory.archive.archive import Turn
from proxy.memory.archive.shelf import Line, Shelf
from proxy.memory.archive.statements import (
    END,
    KEPT,
    KEPT_BETWEEN,
    LAST_TALK,
    MARKS,
    NO_PASSAGE,
    NO_TURN,
    PUT_TURN,
    REACH,
    TALK,
    TALKS,
    TURN,
    TURNS,
    TURNS_OF,
)
from proxy.memory.archive.steps import Rows, Steps, asked, first, owner_for, owner_of
from proxy.memory.archive.welcome import Share, welcome
from proxy.memory.session import Entry, Session
from proxy.memory.stores.sql import id_bytes, id_text, key_arguments
from proxy.memory.stores.store import APART, Key, Owner

_SPOKEN = ("user", "assistant")


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


def keep(shelf: Shelf, key: Key, session: Session, *, mark: float) -> Steps[int]:
    """As the archive's ``keep``."""
    session = shelf.redaction.session(session)
    parts = yield from welcome(key, session, session.entries)
    if session.entries and not any(parts):
        return session.cold_count
    talk = yield from _talk(key, session, mark)
    if talk is None:
        return session.cold_count
    hot = {"talk": talk.id, **_hot(session)}
    rows = yield from asked(KEPT, hot)
    yield from _renew(shelf, talk, parts, session.cold_count, rows)
    reach = yield from first(REACH, hot)
    return 0 if reach is None else min(int(reach) + 1, session.cold_count)


def keep_moved(
    shelf: Shelf, key: Key, session: Session, moved: Sequence[Entry], *, start: int
) -> Steps[None]:
    """As the archive's ``keep_moved``."""
    moved = shelf.redaction.entries(moved)
    parts = yield from welcome(key, session, moved)
    if any(parts):
        talk = yield from _talk(key, session, session.updated)
        if talk is not None:
            between = _between(session, moved, last=start + len(moved) == session.cold_count)
            rows = yield from asked(KEPT_BETWEEN, {"talk": talk.id, **between})
            yield from _renew(shelf, talk, parts, start, rows)


def marks(tenant: str) -> Steps[dict[str, float]]:
    """As the archive's ``marks``."""
    rows = yield from asked(MARKS, {"tenant": id_bytes(tenant)})
    return {id_text(session): mark for session, mark in rows}


def talks(tenant: str, after: str, limit: int) -> Steps[dict[str, float]]:
    """As the archive's ``talks``."""
    rows = yield from asked(TALKS, {"tenant": id_bytes(tenant), "after": id_bytes(after), "limit": limit})
    return {id_text(session): mark for session, mark in rows}


def turns(shelf: Shelf, person: Owner, after: int, limit: int) -> Steps[list[tuple[int, Turn]]]:
    """As the archive's ``turns``."""
    owner = yield from owner_of(person)
    if owner is None:
        return []
    rows = yield from asked(TURNS, {"owner": owner, "after": after, "limit": limit})
    return [(row[0], _turn(shelf, person.tenant, row)) for row in rows]


def last_talk(shelf: Shelf, person: Owner, limit: int) -> Steps[list[Turn]]:
    """As the archive's ``last_talk``."""
    owner = yield from owner_of(person)
    talk = None if owner is None else (yield from first(LAST_TALK, {"owner": owner}))
    if talk is None:
        return []
    rows = yield from asked(END, {"owner": owner, "talk": talk, "limit": limit})
    return [_turn(shelf, person.tenant, row) for row in reversed(rows)]


def turns_of(shelf: Shelf, key: Key, start: int, limit: int) -> Steps[list[Turn]]:
    """As the archive's ``turns_of``."""
    rows = yield from asked(TURNS_OF, {**key_arguments(key), "start": start, "limit": limit})
    return [_turn(shelf, key.tenant, row) for row in rows]


def _turn(shelf: Shelf, tenant: str, row: Sequence[object]) -> Turn:
    _, session, created, at, _, blob = row
    name = id_text(session)  # type: ignore[arg-type]
    entry = shelf.opened(Key(tenant, name), blob, Entry)  # type: ignore[arg-type]
    return Turn(session=name, began=created, at=at, entry=entry)  # type: ignore[arg-type]


def _talk(key: Key, session: Session, mark: float) -> Steps[_Talk | None]:
    """The talk; ``None`` where a newer state of the session was kept."""
    times = {"created": session.created, "updated": session.updated, "mark": mark}
    id_ = yield from first(TALK, {**key_arguments(key), **times, "ahead": time.time() + APART})
    if id_ is None:
        return None
    owner = None
    if session.user:
        owner = yield from owner_for(Owner(key.tenant, session.user))
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


def _renew(shelf: Shelf, talk: _Talk, parts: Sequence[Share | None], start: int, rows: Rows) -> Steps[None]:
    """Puts entries in the place of those rows; what is no longer among them goes."""
    kept = {_Place(*row[1:5]): (row[0], bytes(row[5])) for row in rows}
    put = yield from _put(shelf, talk, parts, start, {name: one[1] for name, one in kept.items()})
    for place in kept.keys() - put:
        yield from _remove(kept[place][0])


def _put(
    shelf: Shelf, talk: _Talk, parts: Sequence[Share | None], start: int, kept: dict[_Place, bytes]
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
        numbers[name] = yield from owner_for(Owner(talk.key.tenant, name))
    return numbers


def _placed(parts: Sequence[Share | None], start: int) -> Iterator[tuple[_Place, int, Share]]:
    counted: Counter[tuple[int, int, str]] = Counter()
    for ordinal, part in enumerate(parts, start):
        if part is not None:
            name = part.entry.call, part.entry.turn, part.entry.role
            yield _Place(*name, counted[name]), ordinal, part
            counted[name] += 1


def _put_one(  # noqa: PLR0913, PLR0917 - one entry, whose it is and where it stands
    shelf: Shelf, talk: _Talk, place: _Place, ordinal: int, part: Share, known: bytes | None
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
        "blob": shelf.sealed(talk.key, entry),
    }
    item = yield from first(PUT_TURN, row)
    if talk.owner is not None:
        person = Owner(talk.key.tenant, (talk.user if guest is None else guest) or "")
        yield from indexed(shelf, person, owner, entry, Line(TURN, item, entry.at, talk.id, ordinal))


def indexed(shelf: Shelf, person: Owner, owner: int | None, entry: Entry, line: Line) -> Steps[None]:
    """Puts what was spoken into the index of its person; what is nobody's is in none."""
    if owner is None:
        yield from asked(NO_PASSAGE, {"kind": line.kind, "item": line.item})
    elif entry.role in _SPOKEN:
        # What a program put in the user's place would be told as the user's words.
        yield from shelf.indexed(person, owner, "" if entry.is_injected else entry.text, line)


def _remove(item: int) -> Steps[None]:
    yield from asked(NO_PASSAGE, {"kind": TURN, "item": item})
    yield from asked(NO_TURN, {"item": item})
