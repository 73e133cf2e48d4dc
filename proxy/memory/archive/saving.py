"""How sessions are saved: what is stored of them is read and compared, and what differs is written.

SQLite does it row by row, in transactions that are short. PostgreSQL does it for many sessions in one
statement to read and one to write, which changes nothing where what was read is not so any more.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple

from proxy.clock import wall_time
from proxy.memory.archive.erasure import PURPOSE, is_erased, tombstone_key_numbers, tombstone_keys
from proxy.memory.archive.records import TombstoneKeys
from proxy.memory.archive.sql import (
    CHARACTERS_PER_ROW,
    PART,
    Database,
    IndexRow,
    RowCodec,
    Rows,
    Steps,
    ensure_owner,
    fetch,
    fetch_each,
    fetch_value,
    gather,
    owner_arguments,
)
from proxy.memory.archive.statements import (
    ADD_TURNS,
    ANONYMOUS,
    CHANGE_TURNS,
    DELETE_PASSAGE,
    DELETE_TURN,
    INSERT_OWNER,
    LAST_PLACE_BEFORE,
    OWNER_ID,
    SESSION,
    STORED_TURNS,
    TOMBSTONE_TIME,
    TURN,
    TURN_COLUMNS,
    UPSERT_SESSION,
    UPSERT_TURN,
    USER,
)
from proxy.memory.errors import StoreError
from proxy.memory.session import Entry, Session, TurnRef
from proxy.memory.speakers import NOBODY, other_users
from proxy.memory.stores.sql import id_bytes, key_arguments
from proxy.memory.stores.store import CLOCK_TOLERANCE, Key, Owner
from proxy.memory.tasks import in_thread_if_long

_FIRST: Final = TurnRef(-1, 0)
_LAST: Final = TurnRef(1 << 62, 0)
# What one statement writes for many sessions, in characters.
_BATCH: Final = 500_000
_ATTEMPTS: Final = 5
_RECENT: Final = 64


class _TombstoneRow(NamedTuple):
    tenant: bytes
    kind: int
    name: bytes


class SessionPart(NamedTuple):
    """Entries of a session that follow one another, the first at index ``start``, as they were at ``as_of``.

    They replace what is stored of the turns from ``begin`` on and before ``end``. ``guests`` are the users
    who own entries that are not the session's user's.
    """

    key: Key
    session: Session
    entries: Sequence[Entry]
    start: int
    begin: TurnRef
    end: TurnRef
    as_of: float
    guests: Sequence[str | None]

    @property
    def names(self) -> set[str]:
        """All users who may own any of the entries."""
        return {*filter(None, (self.session.user, *(entry.speaker for entry in self.entries), *self.guests))}

    @property
    def is_hot(self) -> bool:
        """Whether these are all entries of the session's hot part."""
        return self.end == _LAST


def hot_part(codec: RowCodec, key: Key, session: Session, as_of: float) -> SessionPart:
    """The hot part of a session."""
    session = codec.redaction.session(session)
    guests = other_users(session, session.entries)
    return SessionPart(
        key, session, session.entries, session.cold_count, _hot_start(session), _LAST, as_of, guests
    )


def moved_part(
    codec: RowCodec, key: Key, session: Session, moved: Sequence[Entry], start: int
) -> SessionPart:
    """Entries that moved out of a session; the first begins its turn."""
    moved = codec.redaction.entries(moved)
    is_last = start + len(moved) == session.cold_count
    end = _hot_start(session) if is_last else moved[-1].turn_ref
    guests = other_users(session, moved)
    return SessionPart(key, session, moved, start, moved[0].turn_ref, end, session.updated, guests)


def _hot_start(session: Session) -> TurnRef:
    """The turn from which on everything that is saved is in the session's hot part."""
    if not session.cold_count:
        return _FIRST
    return session.entries[0].turn_ref if session.entries else TurnRef(session.call + 1, 0)


class Progress(NamedTuple):
    """How many of the entries are ``done``, ``None`` once all are; of those that moved so many are saved."""

    done: int | None
    moved: int = 0


class _StoredTurn(NamedTuple):
    item: int
    digest: bytes
    place: int


_Position = tuple[int, int, str, int]
"""A call, a turn, a role, and the how manieth of this role in this turn."""


class _Stored(NamedTuple):
    """What is stored of a part: its session's row, and turns; ``before`` is the last place before ``begin``.

    ``owners`` are the ids of its users, and ``erased`` says when they or the session were erased.
    """

    talk: int | None
    version: int
    updated: float
    turns: Mapping[_Position, _StoredTurn]
    before: int
    owners: Mapping[str, int]
    erased: Mapping[_TombstoneRow, float | None]


class _Turn(NamedTuple):
    """A turn that is to be written, over the row ``item`` where there is one.

    It is indexed under ``reader`` by its ``terms``; without any it leaves the index, and with ``None`` the
    index stays as it is.
    """

    item: int | None
    row: dict[str, Any]
    reader: int | None
    terms: str | None


class _Changes(NamedTuple):
    """What is to be written of a part, and how many entries are ``done`` by then, ``None`` for all."""

    turns: list[_Turn]
    dropped: list[int]
    done: int | None = None


# --- what is stored


def _read(codec: RowCodec, parts: Sequence[SessionPart], keys: TombstoneKeys) -> Steps[list[_Stored]]:
    """What is stored of parts."""
    graves = [_all_tombstone_rows(keys, part) for part in parts]
    names = [sorted(part.names) for part in parts]
    sessions = [{**key_arguments(part.key), "created": part.session.created} for part in parts]
    ranges = []
    for part, session in zip(parts, sessions, strict=True):
        turns = [part.begin, *(entry.turn_ref for entry in part.entries)]
        last = max(turns)
        (life, turn), (until, end) = min(turns), max(part.end, last._replace(turn=last.turn + 1))
        ranges.append({**session, "life": life, "turn": turn, "until": until, "end": end})
    # Only what moved out of a session stands before its hot part.
    moved = [i for i, part in enumerate(parts) if part.is_hot and part.session.cold_count]
    firsts = [{**sessions[i], "life": parts[i].begin.call, "turn": parts[i].begin.turn} for i in moved]
    owners = [Owner(part.key.tenant, name) for part, own in zip(parts, names, strict=True) for name in own]
    times, ids, rows, stored, places = yield from gather(
        fetch_each(TOMBSTONE_TIME, [row._asdict() for row in chain(*graves)]),
        fetch_each(OWNER_ID, [owner_arguments(owner) for owner in owners]),
        fetch_each(codec.dialect.session, sessions),
        fetch_each(STORED_TURNS, ranges),
        fetch_each(LAST_PLACE_BEFORE, firsts),
    )
    before = {i: row[0][0] for i, row in zip(moved, places, strict=True) if row[0][0] is not None}
    times, ids = iter(times), iter(ids)
    found: list[_Stored] = []
    for i, (row, turns) in enumerate(zip(rows, stored, strict=True)):
        talk, version, updated = row[0] if row else (None, 0, -1.0)
        by_position = {tuple(one[1:5]): _StoredTurn(one[0], bytes(one[5]), one[6]) for one in turns}
        own = {name: id_[0][0] for name, id_ in zip(names[i], ids, strict=False) if id_}
        erased = {grave: at[0][0] if at else None for grave, at in zip(graves[i], times, strict=False)}
        found.append(_Stored(talk, version, updated, by_position, before.get(i, -1), own, erased))
    return found


def _all_tombstone_rows(keys: TombstoneKeys, part: SessionPart) -> list[_TombstoneRow]:
    """The tombstones that concern a part."""
    tenant, session = part.key
    kinds = [(USER, name) for name in sorted(part.names)] + [(SESSION, session)]
    if not part.session.user:
        kinds.append((ANONYMOUS, session))
    return [row for kind, name in kinds for row in _tombstone_rows(keys, tenant, kind, name)]


def _tombstone_rows(keys: TombstoneKeys, tenant: str, kind: int, name: str) -> list[_TombstoneRow]:
    """The tombstones that may stand for a name. Older versions, which may still run, name whom they erase."""
    names = (*keys.digests(tenant, kind, name), id_bytes(name))
    return [_TombstoneRow(id_bytes(tenant), kind, one) for one in names]


# --- what is to be written


class _Admission(NamedTuple):
    """An entry that may be archived; ``guest`` owns it where that is not the session's user."""

    entry: Entry
    guest: str | None


def _admit(part: SessionPart, keys: TombstoneKeys, stored: _Stored) -> list[_Admission | None]:
    """The entries with their owners; ``None`` for entries of an erased user or session.

    An answer to an erased user stays in another user's session, and has no owner.
    """
    if not any(stored.erased.values()):
        return [*map(_Admission, part.entries, part.guests)]

    def erased_at(kind: int, name: str) -> float:
        rows = _tombstone_rows(keys, part.key.tenant, kind, name)
        return max(stored.erased[row] or 0.0 for row in rows)

    session = part.session
    users = {name: erased_at(USER, name) for name in part.names}
    whole = erased_at(SESSION, part.key.session)
    own = users[session.user] if session.user else erased_at(ANONYMOUS, part.key.session)
    admissions: list[_Admission | None] = []
    for entry, guest in zip(part.entries, part.guests, strict=True):
        stated_at = min(entry.recorded_at, entry.at)
        times = (users.get(entry.speaker or "", 0.0), whole, own)
        if any(at and is_erased(at, stated=stated_at, recorded=entry.recorded_at) for at in times):
            admissions.append(None)
        elif guest and is_erased(users.get(guest, 0.0), stated=stated_at, recorded=entry.recorded_at):
            admissions.append(_Admission(entry, NOBODY))
        else:
            admissions.append(_Admission(entry, guest))
    return admissions


def _is_refused(
    part: SessionPart, stored: _Stored, admissions: Sequence[_Admission | None], ahead: float
) -> bool:
    """Whether nothing of a part is to be saved: all of it was erased, or a newer state is saved."""
    if not any(admissions) and (part.entries or not part.is_hot):
        return True
    return part.session.updated < stored.updated <= ahead


def _owners(part: SessionPart, admissions: Sequence[_Admission | None]) -> set[str]:
    """The users that rows of the part name; without turns a user has none, as they may have been erased."""
    if not any(admissions):
        return set()
    names = {part.session.user}
    for admission in filter(None, admissions):
        names |= {admission.guest, admission.entry.speaker if admission.entry.role == "user" else None}
    return {*filter(None, names)}


def _changes(  # noqa: PLR0913 - what is stored, what is to be, and how much of it
    codec: RowCodec,
    part: SessionPart,
    admissions: Sequence[_Admission | None],
    stored: _Stored,
    *,
    done: int = 0,
    room: int,
) -> _Changes:
    """What puts the entries in the place of the stored turns; stored turns beside them are dropped.

    As much of it as there is room for, behind the ``done`` entries.
    """
    stale = dict(stored.turns)
    positions: Counter[tuple[int, int, str]] = Counter()
    turns: list[_Turn] = []
    for index, admission in enumerate(admissions):
        if admission is None:
            continue
        entry = admission.entry
        group = entry.call, entry.turn, entry.role
        position = positions[group]
        positions[group] += 1
        before = stale.pop((*group, position), None)
        if index < done:
            continue
        if room <= 0:
            return _Changes(turns, [], index)
        turn = _turn(codec, part, admission, stored.owners, part.start + index, position, before)
        if turn is None:
            continue
        room -= CHARACTERS_PER_ROW + len(entry.text)
        turns.append(turn)
    dropped: list[int] = []
    for (life, number, *_), former in stale.items():
        if part.begin <= (life, number) < part.end:
            if room <= 0:
                return _Changes(turns, dropped, len(part.entries))
            room -= CHARACTERS_PER_ROW
            dropped.append(former.item)
    return _Changes(turns, dropped)


def _turn(  # noqa: PLR0913, PLR0917 - an entry, its place, and what stands there
    codec: RowCodec,
    part: SessionPart,
    admission: _Admission,
    owners: Mapping[str, int],
    place: int,
    position: int,
    before: _StoredTurn | None,
) -> _Turn | None:
    """The row of an entry; ``None`` where that is stored already."""
    entry, guest = admission
    user = part.session.user
    own = owners[user] if user else None
    # The other user who said a user's words, and the one who was answered.
    is_others = entry.role == "user" and entry.speaker and entry.speaker != user
    speaker = owners[entry.speaker or ""] if is_others else None
    reader = own if guest is None else owners.get(guest)
    # A guest may be the session's own user under another name.
    ownership = None if speaker is None and guest is None else (speaker, guest is not None and reader)
    digest = codec.digest(place, own, ownership, entry)
    if before and before.digest == digest:
        return None
    terms = None
    if own is not None and reader is None:
        terms = ""
    elif own is not None and entry.role in {"user", "assistant"}:
        # Injected words would be shown as the user's.
        text = "" if entry.is_injected else entry.text
        terms = codec.terms(Owner(part.key.tenant, (user if guest is None else guest) or ""), text)
    row = {
        "life": entry.call,
        "turn": entry.turn,
        "role": entry.role,
        "position": position,
        "place": place,
        "owner": own,
        "speaker": speaker,
        "at": entry.at,
        "recorded": entry.recorded_at,
        "digest": digest,
        "blob": codec.encode(part.key, entry),
    }
    return _Turn(before and before.item, row, reader, terms)


def _moved(part: SessionPart, before: int) -> int:
    return min(before + 1, part.session.cold_count)


# --- row by row


def save(codec: RowCodec, part: SessionPart, done: int) -> Steps[Progress]:
    """Save some more of a part, of which so many entries are done, in one transaction."""
    keys = yield from tombstone_keys(codec)
    (stored,) = yield from _read(codec, [part], keys)
    admissions = _admit(part, keys, stored)
    ahead = wall_time() + CLOCK_TOLERANCE
    if _is_refused(part, stored, admissions, ahead):
        return Progress(None, part.session.cold_count)
    owners = dict(stored.owners)
    for name in sorted(_owners(part, admissions) - owners.keys()):
        owners[name] = yield from ensure_owner(Owner(part.key.tenant, name))
    times = {"created": part.session.created, "updated": part.session.updated, "mark": part.as_of}
    talk = yield from fetch_value(UPSERT_SESSION, {**key_arguments(part.key), **times, "ahead": ahead})
    changes = _changes(codec, part, admissions, stored._replace(owners=owners), done=done, room=PART)
    for turn in changes.turns:
        item = yield from fetch_value(UPSERT_TURN, {"talk": talk, **turn.row})
        if turn.terms:
            place = IndexRow(TURN, item, turn.row["at"], talk, turn.row["place"])
            yield from codec.index_terms(turn.reader or 0, turn.terms, place)
        elif turn.terms is not None and turn.item is not None:
            yield from fetch(DELETE_PASSAGE, {"kind": TURN, "item": item})
    for item in changes.dropped:
        yield from fetch(DELETE_PASSAGE, {"kind": TURN, "item": item})
        yield from fetch(DELETE_TURN, {"item": item})
    return Progress(changes.done, _moved(part, stored.before))


# --- many sessions in one statement


class _Recent(NamedTuple):
    """A session as it was saved last, and what is stored of it from ``begin`` on."""

    created: float
    user: str | None
    names: set[str]
    begin: TurnRef
    stored: _Stored

    def covers(self, part: SessionPart) -> bool:
        """Whether it says all that a part depends on."""
        return (
            part.is_hot
            and (self.created, self.user) == (part.session.created, part.session.user)
            and part.names <= self.names
            and self.begin <= min([part.begin, *(entry.turn_ref for entry in part.entries)])
        )


class _Admitted(NamedTuple):
    part: SessionPart
    stored: _Stored
    admissions: Sequence[_Admission | None]


class _Planned(NamedTuple):
    part: SessionPart
    stored: _Stored
    changes: _Changes


class BatchWriter:
    """Saves many sessions at a time, with one statement that reads and one that writes.

    Of the sessions that it saved last it knows what is stored: they are written alone. A write checks that
    the rows are as they were read, and that nothing was erased since: if not so, it is read again.
    """

    def __init__(self, database: Database, codec: RowCodec) -> None:
        self._database = database
        self._codec = codec
        self._keys: tuple[TombstoneKeys, list[int]] | None = None
        self._recent: dict[Key, _Recent] = {}

    async def save(self, parts: Sequence[SessionPart]) -> list[int]:
        """Save parts of as many sessions; of each, how many of the entries that moved are saved.

        Raises StoreError where others change the same all the time.
        """
        moved: dict[Key, int] = {}
        attempts = 0
        while left := [part for part in parts if part.key not in moved]:
            attempts = 0 if await self._save_some(left, moved) else attempts + 1
            if attempts == _ATTEMPTS:
                raise StoreError("The archive is changed by others again and again.")
        return [moved[part.key] for part in parts]

    async def _save_some(self, parts: Sequence[SessionPart], moved: dict[Key, int]) -> bool:
        """Save what can be saved at once, and note in ``moved`` what is done; whether anything was."""
        if self._keys is None:
            self._recent.clear()
            self._keys = await self._database.write(partial(_keys_and_numbers, self._codec))
        keys, numbers = self._keys
        stored = {
            part.key: recent.stored
            for part in parts
            if (recent := self._recent.pop(part.key, None)) and recent.covers(part)
        }
        unknown = [part for part in parts if part.key not in stored]
        if unknown:
            rows = await self._database.read(partial(_read, self._codec, unknown, keys))
            stored |= zip((part.key for part in unknown), rows, strict=True)
        ahead = wall_time() + CLOCK_TOLERANCE
        admitted: list[_Admitted] = []
        for part in parts:
            admissions = _admit(part, keys, stored[part.key])
            if _is_refused(part, stored[part.key], admissions, ahead):
                moved[part.key] = part.session.cold_count
            else:
                admitted.append(_Admitted(part, stored[part.key], admissions))
        if not admitted:
            return True
        planned, written = await self._write(admitted, numbers, ahead)
        for number, talk, version, added in written:
            part, before, changes = planned[number - 1]
            after = _stored_now(part, before, changes, added, talk, version)
            if part.is_hot:
                self._remember(part, after)
            if changes.done is None:
                moved[part.key] = _moved(part, after.before)
        if len(written) < len(planned):
            self._keys = None
        return bool(written)

    async def _write(
        self, admitted: Sequence[_Admitted], numbers: list[int], ahead: float
    ) -> tuple[list[_Planned], Rows]:
        """Write as many of them as a statement takes; rows for those that were as they had been read."""
        if all(one.stored.owners.keys() >= _owners(one.part, one.admissions) for one in admitted):
            count = sum(len(one.part.entries) for one in admitted)
            planned = await in_thread_if_long(partial(_plan, self._codec, admitted, {}), count)
            rows = await self._database.read(partial(_write, planned, numbers, ahead))
            return planned, rows
        try:
            return await self._database.write(
                partial(_write_with_owners, self._codec, _some(admitted), numbers, ahead)
            )
        except _Changed:
            return [_Planned(*one[:2], _Changes([], [])) for one in admitted], []

    def _remember(self, part: SessionPart, stored: _Stored) -> None:
        begin = min([part.begin, *(TurnRef(*position[:2]) for position in stored.turns)])
        session = part.session
        self._recent[part.key] = _Recent(session.created, session.user, part.names, begin, stored)
        while len(self._recent) > _RECENT:
            del self._recent[next(iter(self._recent))]


def _some(admitted: Sequence[_Admitted]) -> Sequence[_Admitted]:
    """As many of them as one statement takes, whatever they add."""
    room = _BATCH
    for number, (part, *_) in enumerate(admitted):
        room -= sum(CHARACTERS_PER_ROW + len(entry.text) for entry in part.entries)
        if room <= 0:
            return admitted[: max(1, number)]
    return admitted


class _Changed(Exception):
    """What was read is not so any more."""


def _keys_and_numbers(codec: RowCodec) -> Steps[tuple[TombstoneKeys, list[int]]]:
    keys = yield from tombstone_keys(codec)
    numbers = yield from tombstone_key_numbers()
    return keys, numbers


def _plan(codec: RowCodec, admitted: Sequence[_Admitted], new: Mapping[Owner, int]) -> list[_Planned]:
    """What is written of sessions, as many as one statement takes; ``new`` are owners that were inserted."""
    planned: list[_Planned] = []
    room = _BATCH
    for part, stored, admissions in admitted:
        own = {owner.user: id_ for owner, id_ in new.items() if owner.tenant == part.key.tenant}
        before = stored._replace(owners={**stored.owners, **own})
        changes = _changes(codec, part, admissions, before, room=room)
        planned.append(_Planned(part, before, changes))
        room -= sum(CHARACTERS_PER_ROW + len(turn.row["blob"]) for turn in changes.turns)
        if room <= 0:
            break
    return planned


def _write_with_owners(
    codec: RowCodec, admitted: Sequence[_Admitted], numbers: list[int], ahead: float
) -> Steps[tuple[list[_Planned], Rows]]:
    """Write sessions whose users have no rows yet. Raises _Changed, so that no user is left without turns."""
    missing = {
        Owner(part.key.tenant, name)
        for part, stored, admissions in admitted
        for name in _owners(part, admissions) - stored.owners.keys()
    }
    new: dict[Owner, int] = {}
    for owner in sorted(missing):
        new[owner] = yield from fetch_value(INSERT_OWNER, owner_arguments(owner))
    planned = _plan(codec, admitted, new)
    rows = yield from _write(planned, numbers, ahead)
    if len(rows) < len(admitted):
        raise _Changed
    return planned, rows


def _write(planned: Sequence[_Planned], numbers: list[int], ahead: float) -> Steps[Rows]:
    """Rows for the sessions that were written: number, id, version, and the turns that were added."""
    graves = {grave: at for one in planned for grave, at in one.stored.erased.items()}
    turns = [(number, turn) for number, one in enumerate(planned, 1) for turn in one.changes.turns]
    added = [(number, turn) for number, turn in turns if turn.item is None]
    changed = [(number, turn) for number, turn in turns if turn.item is not None]
    dropped = [(number, item) for number, one in enumerate(planned, 1) for item in one.changes.dropped]
    arguments = {
        "talks": [one.stored.talk for one in planned],
        "versions": [one.stored.version for one in planned],
        "tenants": [id_bytes(one.part.key.tenant) for one in planned],
        "sessions": [id_bytes(one.part.key.session) for one in planned],
        "createds": [one.part.session.created for one in planned],
        "marks": [one.part.as_of for one in planned],
        "updateds": [one.part.session.updated for one in planned],
        "ahead": ahead,
        "graveyards": [grave.tenant for grave in graves],
        "gravekinds": [grave.kind for grave in graves],
        "graves": [grave.name for grave in graves],
        "erased": sorted(at for at in graves.values() if at is not None),
        "purpose": PURPOSE,
        "keys": numbers,
        **_columns("added", added),
    }
    if not changed and not dropped:
        return (yield from fetch(ADD_TURNS, arguments))
    # A row whose terms stay has none here, and one that leaves the index has empty ones.
    unread = [(number, turn.item) for number, turn in changed if turn.terms == ""] + dropped
    arguments |= {
        **_columns("changed", changed),
        "changeditem": [turn.item for _, turn in changed],
        "droppedn": [number for number, _ in dropped],
        "dropped": [item for _, item in dropped],
        "unreadn": [number for number, _ in unread],
        "unread": [item for _, item in unread],
    }
    return (yield from fetch(CHANGE_TURNS, arguments))


def _columns(prefix: str, turns: Sequence[tuple[int, _Turn]]) -> dict[str, list[Any]]:
    """The rows of turns as a list for each column."""
    columns: dict[str, list[Any]] = {f"{prefix}n": [number for number, _ in turns]}
    for name in TURN_COLUMNS:
        columns[prefix + name] = [turn.row[name] for _, turn in turns]
    columns[f"{prefix}reader"] = [turn.reader for _, turn in turns]
    columns[f"{prefix}terms"] = [turn.terms or None for _, turn in turns]
    return columns


def _stored_now(  # noqa: PLR0913, PLR0917 - what was stored, and what became of it
    part: SessionPart, before: _Stored, changes: _Changes, added: Rows, talk: int, version: int
) -> _Stored:
    """What is stored of a hot part now."""
    items = {tuple(row[1:]): row[0] for row in added}
    dropped = set(changes.dropped)
    turns = {position: turn for position, turn in before.turns.items() if turn.item not in dropped}
    for turn in changes.turns:
        row = turn.row
        position = row["life"], row["turn"], row["role"], row["position"]
        item = items[position] if turn.item is None else turn.item
        turns[position] = _StoredTurn(item, row["digest"], row["place"])
    moved = [turn.place for position, turn in turns.items() if position[:2] < part.begin]
    return before._replace(
        talk=talk,
        version=version,
        updated=part.session.updated,
        turns={position: turn for position, turn in turns.items() if position[:2] >= part.begin},
        before=max([before.before, *moved]),
    )
