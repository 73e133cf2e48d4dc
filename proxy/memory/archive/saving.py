"""Saves sessions: reads the stored rows, compares them with the entries, and writes the differences.

Slow work is done between reading and writing. A write skips sessions whose rows have changed since they were
read. PostgreSQL writes many sessions in one statement. SQLite writes them in one short transaction, because
turns may be written to the same file.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec

from proxy.clock import wall_time
from proxy.memory.archive.erasure import PURPOSE, is_erased
from proxy.memory.archive.records import TombstoneKeys
from proxy.memory.archive.sql import (
    CHARACTERS_PER_ROW,
    Database,
    RowCodec,
    Secrets,
    Steps,
    ensure_owner,
    ensure_secrets,
    fetch,
    fetch_each,
    fetch_value,
    gather,
    owner_arguments,
    stored_secrets,
    unembed,
)
from proxy.memory.archive.statements import (
    ADD_TURNS,
    ANONYMOUS,
    CHANGE_TURNS,
    DELETE_PASSAGE,
    DELETE_TURN,
    INSERT_OWNER,
    INSERT_PASSAGES,
    INSERT_TURN,
    LAST_PLACE_BEFORE,
    NEXT_TURN,
    OWNER_ID,
    POSTGRES,
    SESSION,
    SESSION_HEAD,
    SHARE_SESSION,
    STORED_TURNS,
    TOMBSTONE_TIME,
    TURN,
    TURN_COLUMNS,
    UPDATE_TURN,
    UPSERT_PASSAGES,
    UPSERT_SESSION,
    USER,
)
from proxy.memory.errors import StoreError
from proxy.memory.session import Entry, Session, TurnRef
from proxy.memory.speakers import NOBODY, other_users
from proxy.memory.stores.sql import id_bytes, key_arguments
from proxy.memory.stores.store import CLOCK_TOLERANCE, Key, Owner
from proxy.memory.tasks import in_thread_if_long
from proxy.newest import Newest

_FIRST: Final = TurnRef(-1, 0)
_LAST: Final = TurnRef(1 << 62, 0)
_ATTEMPTS: Final = 5
_RECENT: Final = 128
# Checking that a session is unchanged costs as much as writing this many rows.
_ROWS_PER_SESSION: Final = 2
# The number of writes that are planned together.
_WRITES: Final = 4
_place: Final = attrgetter("call", "turn")


class _TombstoneRow(NamedTuple):
    tenant: bytes
    kind: int
    name: bytes


class SessionPart(NamedTuple):
    """Consecutive entries of a session, the first at index ``start``, as they were at ``as_of``.

    They replace the stored turns from ``begin`` on and before ``end``. ``guests`` has for each entry its
    owner, if that is not the session's user; ``names`` are all users who may own an entry.
    """

    key: Key
    session: Session
    entries: Sequence[Entry]
    start: int
    begin: TurnRef
    end: TurnRef
    as_of: float
    guests: Sequence[str | None]
    names: frozenset[str]

    @property
    def is_hot(self) -> bool:
        """Whether these are all entries of the session's hot part."""
        return self.end == _LAST


def hot_part(codec: RowCodec, key: Key, session: Session, as_of: float) -> SessionPart:
    """Returns the hot part of a session, redacted."""
    session = codec.redaction.session(session)
    return _part(key, session, session.entries, session.cold_count, _hot_start(session), _LAST, as_of)


def moved_part(
    codec: RowCodec, key: Key, session: Session, moved: Sequence[Entry], start: int
) -> SessionPart:
    """Returns a part of entries that moved to the cold part, redacted; the first must begin its turn."""
    moved = codec.redaction.entries(moved)
    is_last = start + len(moved) == session.cold_count
    end = _hot_start(session) if is_last else moved[-1].turn_ref
    return _part(key, session, moved, start, moved[0].turn_ref, end, session.updated)


def _part(  # noqa: PLR0913, PLR0917 - the fields, in their order
    key: Key,
    session: Session,
    entries: Sequence[Entry],
    start: int,
    begin: TurnRef,
    end: TurnRef,
    as_of: float,
) -> SessionPart:
    guests = other_users(session, entries)
    names = {session.user, *guests, *[entry.asking_user or entry.user for entry in entries]}
    return SessionPart(
        key, session, entries, start, begin, end, as_of, guests, frozenset(filter(None, names))
    )


def _hot_start(session: Session) -> TurnRef:
    """The turn from which on the hot part has all turns."""
    if not session.cold_count:
        return _FIRST
    return session.entries[0].turn_ref if session.entries else TurnRef(session.call + 1, 0)


class _StoredTurn(msgspec.Struct, frozen=True, gc=False):
    item: int
    digest: bytes
    place: int


_Position = tuple[int, int, str, int]
"""A call, a turn, a role, and a number among the entries of this role in this turn."""


class _Stored(NamedTuple):
    """The stored rows of a part: its session's row, and turns; ``before`` is the last place before ``begin``.

    ``owners`` are the ids of its users, and ``erased`` the times when these or the session were erased. At
    least the first ``unchanged`` of the part's entries equal their stored turns.
    """

    talk: int | None
    version: int | str
    updated: float
    turns: Mapping[_Position, _StoredTurn]
    before: int
    owners: dict[str, int]
    erased: Mapping[_TombstoneRow, float | None]
    unchanged: int = 0

    def since(self, begin: tuple[int, int]) -> "_Stored":
        """Returns the rows with only the turns from ``begin`` on."""
        moved = [turn.place for position, turn in self.turns.items() if position[:2] < begin]
        if not moved:
            return self
        turns = {position: turn for position, turn in self.turns.items() if position[:2] >= begin}
        return self._replace(turns=turns, before=max([self.before, *moved]))

    def head(self) -> tuple[Any, ...]:
        """Returns values that differ once the session has changed or anything was erased."""
        return self.talk, self.version, self.updated, self.owners, self.erased


class _Users(NamedTuple):
    """The users of a turn, by name or id: its owner, the speaker if another, and who may find it."""

    owner: Any
    speaker: Any
    reader: Any

    def ids(self, owners: Mapping[str, int]) -> "_Users":
        """Returns the users by id, 0 for a user without a row."""
        owner, speaker, reader = self
        own = owner and owners.get(owner, 0)
        other = own if reader == owner else reader and owners.get(reader, 0)
        return _Users(own, speaker and owners.get(speaker, 0), other)


class _Turn(msgspec.Struct, frozen=True, gc=False):
    """An entry to be written, over the row ``item`` if that is not ``None``.

    Its ``terms`` are indexed under its reader; empty ``terms`` remove it from the index, and ``None`` leaves
    the index unchanged. ``digest`` is ``None`` while one of the users has no id.
    """

    item: int | None
    entry: Entry
    position: _Position
    place: int
    users: _Users
    is_guests: bool
    digest: bytes | None
    blob: bytes
    terms: str | None

    def row(self, codec: RowCodec, owners: Mapping[str, int]) -> dict[str, Any]:
        """Returns the columns of the turn, with its users' ids, reader and terms."""
        life, turn, role, position = self.position
        users = owner, speaker, reader = self.users.ids(owners)
        entry = self.entry
        return {
            "life": life,
            "turn": turn,
            "role": role,
            "position": position,
            "place": self.place,
            "owner": owner,
            "speaker": speaker,
            "at": entry.at,
            "recorded": entry.recorded_at,
            "digest": self.digest or _digest(codec, entry, self.place, users, is_guests=self.is_guests),
            "blob": self.blob,
            "reader": reader,
            "terms": self.terms or None,
        }


class _Planned(NamedTuple):
    """The changes to be written for a part; ``users`` are all that it names.

    ``is_all`` is false where one write has no room for all changes; the rest is planned later. After the
    write, the first ``unchanged`` of the part's entries equal their stored turns.
    """

    part: SessionPart
    stored: _Stored
    users: set[str]
    turns: list[_Turn]
    dropped: list[int]
    unchanged: int
    is_all: bool

    @property
    def missing(self) -> list[Owner]:
        """The users without a row."""
        return [Owner(self.part.key.tenant, name) for name in sorted(self.users - self.stored.owners.keys())]

    def owners(self, new: Mapping[Owner, int]) -> dict[str, int]:
        """Returns the ids of the users, including the ``new`` ones."""
        return self.stored.owners | {owner.user: new[owner] for owner in self.missing}

    def written(
        self, talk: int, version: int | str, owners: dict[str, int], turns: Mapping[_Position, _StoredTurn]
    ) -> _Stored:
        """Returns the rows of the part after the write, with the written ``turns``."""
        dropped = set(self.dropped)
        stored = {place: turn for place, turn in self.stored.turns.items() if turn.item not in dropped}
        stored.update(turns)
        moved = [turn.place for position, turn in stored.items() if position[:2] < self.part.begin]
        return _Stored(
            talk,
            version,
            self.part.session.updated,
            stored,
            max([self.stored.before, *moved]),
            owners,
            self.stored.erased,
            self.unchanged,
        )


# --- stored rows


def _read_stored(
    parts: Sequence[SessionPart], graves: Sequence[Sequence[_TombstoneRow]]
) -> Steps[list[_Stored]]:
    """Reads the stored rows of parts, and of the tombstones that concern each."""
    ranges = []
    for part in parts:
        turns = [part.begin, *map(_place, part.entries)]
        call, last = max(turns)
        (life, turn), (until, end) = min(turns), max(part.end, (call, last + 1))
        ranges.append({**_arguments(part), "life": life, "turn": turn, "until": until, "end": end})
    # Only entries that moved to the cold part come before the hot part.
    moved = [i for i, part in enumerate(parts) if part.is_hot and part.session.cold_count]
    firsts = [
        {**_arguments(parts[i]), "life": parts[i].begin.call, "turn": parts[i].begin.turn} for i in moved
    ]
    heads, stored, places = yield from gather(
        _read_heads(parts, graves),
        fetch_each(STORED_TURNS, ranges),
        fetch_each(LAST_PLACE_BEFORE, firsts),
    )
    before = {i: row[0][0] for i, row in zip(moved, places, strict=True) if row[0][0] is not None}
    result: list[_Stored] = []
    for i, (head, turns) in enumerate(zip(heads, stored, strict=True)):
        by_position = {tuple(one[1:5]): _StoredTurn(one[0], bytes(one[5]), one[6]) for one in turns}
        result.append(head._replace(turns=by_position, before=before.get(i, -1)))
    return result


def _read_heads(
    parts: Sequence[SessionPart], graves: Sequence[Sequence[_TombstoneRow]]
) -> Steps[list[_Stored]]:
    """Reads the stored rows of parts without their turns."""
    names = [sorted(part.names) for part in parts]
    owners = [Owner(part.key.tenant, name) for part, own in zip(parts, names, strict=True) for name in own]
    times, ids, rows = yield from gather(
        fetch_each(TOMBSTONE_TIME, [row._asdict() for row in chain(*graves)]),
        fetch_each(OWNER_ID, [owner_arguments(owner) for owner in owners]),
        fetch_each(SESSION_HEAD, [*map(_arguments, parts)]),
    )
    times, ids = iter(times), iter(ids)
    heads: list[_Stored] = []
    for i, row in enumerate(rows):
        talk, version, updated = row[0] if row else (None, 0, -1.0)
        own = {name: id_[0][0] for name, id_ in zip(names[i], ids, strict=False) if id_}
        erased = {grave: at[0][0] if at else None for grave, at in zip(graves[i], times, strict=False)}
        heads.append(_Stored(talk, version, updated, {}, -1, own, erased))
    return heads


def _arguments(part: SessionPart) -> dict[str, object]:
    """Returns the arguments that identify a part's session."""
    return {**key_arguments(part.key), "created": part.session.created}


def _tombstone_rows(keys: TombstoneKeys, tenant: str, kind: int, name: str) -> list[_TombstoneRow]:
    """Returns the possible tombstone rows of a name; older versions, which may still run, use it plainly."""
    names = (*keys.digests(tenant, kind, name), id_bytes(name))
    return [_TombstoneRow(id_bytes(tenant), kind, one) for one in names]


# --- planned changes


_Admission = tuple[Entry, str | None]
"""An entry that may be archived, and the guest who owns it, if that is not the session's user."""


def _admit(part: SessionPart, keys: TombstoneKeys, stored: _Stored) -> list[_Admission | None]:
    """Returns the entries with their owners; ``None`` for entries of an erased user or session.

    An answer to an erased user stays in another user's session, and has no owner.
    """
    if not any(stored.erased.values()):
        return [*zip(part.entries, part.guests, strict=True)]

    def erased_at(kind: int, name: str) -> float:
        rows = _tombstone_rows(keys, part.key.tenant, kind, name)
        return max(stored.erased[row] or 0.0 for row in rows)

    session = part.session
    users = {name: erased_at(USER, name) for name in part.names}
    whole = erased_at(SESSION, part.key.session)
    session_erased = users[session.user] if session.user else erased_at(ANONYMOUS, part.key.session)
    admissions: list[_Admission | None] = []
    for entry, guest in zip(part.entries, part.guests, strict=True):
        stated_at = min(entry.recorded_at, entry.at)
        times = (users.get(entry.speaker or "", 0.0), whole, session_erased)
        if any(at and is_erased(at, stated=stated_at, recorded=entry.recorded_at) for at in times):
            admissions.append(None)
        elif guest and is_erased(users.get(guest, 0.0), stated=stated_at, recorded=entry.recorded_at):
            admissions.append((entry, NOBODY))
        else:
            admissions.append((entry, guest))
    return admissions


def _is_refused(
    part: SessionPart, stored: _Stored, admissions: Sequence[_Admission | None], ahead: float
) -> bool:
    """Whether a part is not to be saved, because all of it was erased or a newer state is saved."""
    if not any(admissions) and (part.entries or not part.is_hot):
        return True
    return part.session.updated < stored.updated <= ahead


def _planned(
    codec: RowCodec, part: SessionPart, admissions: Sequence[_Admission | None], stored: _Stored
) -> _Planned:
    """Plans the changes that replace the stored turns by the entries, as many as fit in one write.

    Stored turns without an entry are dropped.
    """
    room = codec.dialect.batch
    names: set[str | None] = set()
    if any(admissions):  # a user without turns gets no row: they may have been erased
        names.add(part.session.user)
    for entry, guest in filter(None, admissions):
        names.add(guest)
        if entry.role == "user":
            names.add(entry.asking_user or entry.user)
    planned = partial(_Planned, part, stored, {*filter(None, names)})
    stale = dict(stored.turns)
    positions: defaultdict[tuple[int, int, str], int] = defaultdict(int)
    turns: list[_Turn] = []
    for index, admission in enumerate(admissions):
        if admission is None:
            continue
        entry, _ = admission
        group = entry.call, entry.turn, entry.role
        position = *group, positions[group]
        positions[group] += 1
        before = stale.pop(position, None)
        if index < stored.unchanged:
            continue
        if room <= 0:
            return planned(turns, [], index, is_all=False)
        turn = _turn(codec, part, admission, stored.owners, part.start + index, position, before)
        if turn is not None:
            room -= CHARACTERS_PER_ROW + len(turn.blob)
            turns.append(turn)
    dropped: list[int] = []
    for position, former in stale.items():
        if part.begin <= position[:2] < part.end:
            if room <= 0:
                return planned(turns, dropped, len(admissions), is_all=False)
            room -= CHARACTERS_PER_ROW
            dropped.append(former.item)
    return planned(turns, dropped, len(admissions), is_all=True)


def _turn(  # noqa: PLR0913, PLR0917 - an entry, its place, and what stands there
    codec: RowCodec,
    part: SessionPart,
    admission: _Admission,
    owners: Mapping[str, int],
    place: int,
    position: _Position,
    before: _StoredTurn | None,
) -> _Turn | None:
    """Returns the turn to be written for an entry; ``None`` if it is stored already."""
    entry, guest = admission
    user = part.session.user or None
    # Whether another user than the session's said the words, and who may find the turn.
    is_others = entry.role == "user" and entry.speaker and entry.speaker != user
    reader = user if guest is None else guest or None
    users, is_guests = _Users(user, entry.speaker if is_others else None, reader), guest is not None
    ids = users.ids(owners)
    # A user without an id has no stored turns.
    digest = None if 0 in ids else _digest(codec, entry, place, ids, is_guests=is_guests)
    if before and before.digest == digest:
        return None
    terms = None
    if user and reader is None:
        terms = ""
    elif user and entry.role in {"user", "assistant"}:
        # A search would show injected words as the user's.
        text = "" if entry.is_injected else entry.text
        terms = codec.terms(Owner(part.key.tenant, reader or ""), text)
    item = before.item if before else None
    blob = codec.encode(part.key, entry)
    return _Turn(item, entry, position, place, users, is_guests, digest, blob, terms)


def _digest(codec: RowCodec, entry: Entry, place: int, ids: _Users, *, is_guests: bool) -> bytes:
    # A guest may be the session's own user under another name.
    ownership = None if ids.speaker is None and not is_guests else (ids.speaker, is_guests and ids.reader)
    return codec.digest(place, ids.owner, ownership, entry)


# --- many sessions in one write


class _Recent(NamedTuple):
    """The last saved part of a session, and the session's stored rows from ``begin`` on."""

    part: SessionPart
    begin: tuple[int, int]
    stored: _Stored

    def stored_of(self, part: SessionPart) -> _Stored | None:
        """Returns the stored rows that a part depends on; ``None`` if they are not all in memory."""
        former, names = self.part, part.names
        begin = min([part.begin, *map(_place, part.entries)])
        if (
            not part.is_hot
            or (former.session.created, former.session.user) != (part.session.created, part.session.user)
            or not names <= former.names
            or begin < self.begin
        ):
            return None
        unchanged = 0
        if former.start == part.start:
            for before, now, owned_before, owned in zip(
                former.entries, part.entries, former.guests, part.guests, strict=False
            ):
                if before != now or owned_before != owned:
                    break
                unchanged += 1
        owners = {name: id_ for name, id_ in self.stored.owners.items() if name in names}
        return self.stored.since(begin)._replace(owners=owners, unchanged=unchanged)


class SessionWriter:
    """Saves many sessions at a time, with one read and one write for several of them.

    The rows of the sessions saved last stay in memory, so these need no read. A write checks that the rows
    have not changed and that nothing was erased since they were read; otherwise they are read again.
    """

    def __init__(self, database: Database, codec: RowCodec) -> None:
        self._database = database
        self._codec = codec
        self._secrets: Secrets | None = None
        self._recent = Newest[Key, _Recent](_RECENT)
        # Two concurrent saves would change each other's rows and have to read them again.
        self._lock = asyncio.Lock()

    async def save(self, parts: Sequence[SessionPart]) -> list[int]:
        """Saves parts, each of another session; returns how many moved entries of each session are saved.

        Raises StoreError if other writers change the same sessions all the time.
        """
        stored: dict[Key, _Stored] = {}
        moved: dict[Key, int] = {}
        attempts = 0
        async with self._lock:
            while unsaved := [part for part in parts if part.key not in moved]:
                attempts = 0 if await self._save_some(unsaved, stored, moved) else attempts + 1
                if attempts == _ATTEMPTS:
                    raise StoreError("Other processes keep changing the same rows of the archive.")
        return [moved[part.key] for part in parts]

    async def _save_some(
        self, parts: Sequence[SessionPart], stored: dict[Key, _Stored], moved: dict[Key, int]
    ) -> bool:
        """Saves as much as a few writes take; returns whether anything was saved.

        Adds finished parts to ``moved``, and rows that were read or written to ``stored``.
        """
        if self._secrets is None:
            self._recent.clear()
            stored.clear()
            self._secrets = await self._database.write(partial(ensure_secrets, self._codec.codec, PURPOSE))
        keys, stored_keys = TombstoneKeys(self._secrets.readable), self._secrets.stored
        await self._read(parts, keys, stored)
        ahead = wall_time() + CLOCK_TOLERANCE
        most = _WRITES * self._codec.dialect.batch // CHARACTERS_PER_ROW
        count = min(sum(len(part.entries) for part in parts), most)
        plan = partial(_plan, self._codec, keys, parts, stored, ahead)
        writes, refused = await in_thread_if_long(plan, count)
        moved |= {part.key: part.session.cold_count for part in refused}
        is_done = not writes
        for planned in writes:
            written = await self._write(planned, stored_keys, ahead)
            stored |= written
            for one in planned:
                key, cold_count = one.part.key, one.part.session.cold_count
                if one.is_all and (now := written.get(key)):
                    moved[key] = min(now.before + 1, cold_count)
                    self._remember(one.part, now)
            if len(written) < len(planned):
                self._secrets = None
            is_done = is_done or bool(written)
        return is_done

    async def _read(
        self, parts: Sequence[SessionPart], keys: TombstoneKeys, stored: dict[Key, _Stored]
    ) -> None:
        """Adds the stored rows of parts to ``stored``, from memory or from the database."""
        unknown = [part for part in parts if part.key not in stored]
        for part in unknown:
            recent = self._recent.pop(part.key, None)
            if recent and (rows := recent.stored_of(part)):
                stored[part.key] = rows
        if unknown := [part for part in unknown if part.key not in stored]:
            graves: list[list[_TombstoneRow]] = []
            for part in unknown:
                tenant, session = part.key
                concerns = [(USER, name) for name in sorted(part.names)] + [(SESSION, session)]
                if not part.session.user:
                    concerns.append((ANONYMOUS, session))
                graves.append(
                    [row for kind, name in concerns for row in _tombstone_rows(keys, tenant, kind, name)]
                )
            read = await self._database.read(partial(_read_stored, unknown, graves))
            stored |= zip((part.key for part in unknown), read, strict=True)

    async def _write(
        self, planned: Sequence[_Planned], stored_keys: tuple[bytes, ...], ahead: float
    ) -> dict[Key, _Stored]:
        """Writes planned changes; returns the new rows of the parts that had not changed since their read."""
        if self._codec.dialect is not POSTGRES:
            return await self._database.write(partial(_write_rows, self._codec, planned, stored_keys, ahead))
        if not any(one.missing or one.stored.talk is None for one in planned):
            return await self._database.read(partial(_write, self._codec, planned, {}, stored_keys, ahead))
        try:
            return await self._database.write(partial(_write_new, self._codec, planned, stored_keys, ahead))
        except _Changed:
            return {}

    def _remember(self, part: SessionPart, stored: _Stored) -> None:
        if not part.is_hot:
            return
        stored = stored.since(part.begin)
        begin = min([part.begin, *[position[:2] for position in stored.turns]])
        self._recent.put(part.key, _Recent(part, begin, stored))


class _Changed(Exception):
    """A session's rows have changed since they were read."""


def _plan(
    codec: RowCodec,
    keys: TombstoneKeys,
    parts: Sequence[SessionPart],
    stored: Mapping[Key, _Stored],
    ahead: float,
) -> tuple[list[list[_Planned]], list[SessionPart]]:
    """Plans a few writes of parts; returns them, and the parts that are not to be saved.

    All terms are computed in a row, which keeps the processor's caches warm. A part is divided among several
    writes only if it is too large for one, because the rest has to be compared again.
    """
    writes: list[list[_Planned]] = []
    refused: list[SessionPart] = []
    room = size = 0
    for part in parts:
        if len(writes) >= _WRITES and size > room:  # the next one is hardly smaller
            break
        before = stored[part.key]
        admissions = _admit(part, keys, before)
        if _is_refused(part, before, admissions, ahead):
            refused.append(part)
            continue
        planned = _planned(codec, part, admissions, before)
        rows = _ROWS_PER_SESSION + len(planned.turns) + len(planned.dropped)
        size = CHARACTERS_PER_ROW * rows + sum([len(turn.blob) for turn in planned.turns])
        if not writes or size > room:
            writes.append([])
            room = codec.dialect.batch
        writes[-1].append(planned)
        room -= size
    return writes, refused


def _write_rows(
    codec: RowCodec, planned: Sequence[_Planned], stored_keys: tuple[bytes, ...], ahead: float
) -> Steps[dict[Key, _Stored]]:
    """Writes sessions row by row, in a transaction that excludes other writers."""
    if (yield from stored_secrets(PURPOSE)) != stored_keys:
        return {}
    heads = yield from _read_heads([one.part for one in planned], [[*one.stored.erased] for one in planned])
    current = [one for one, head in zip(planned, heads, strict=True) if head.head() == one.stored.head()]
    first = yield from fetch_value(NEXT_TURN, {})
    owners: dict[Owner, int] = {}
    added: list[dict[str, Any]] = []
    changed: list[dict[str, Any]] = []
    written: list[_Stored] = []
    for one in current:
        for owner in one.missing:
            owners[owner] = owners.get(owner) or (yield from ensure_owner(owner))
        times = {"updated": one.part.session.updated, "mark": one.part.as_of, "ahead": ahead}
        talk = yield from fetch_value(UPSERT_SESSION, {**_arguments(one.part), **times})
        ids = one.owners(owners)
        turns: dict[_Position, _StoredTurn] = {}
        for turn in one.turns:
            rows, item = (added, first + len(added)) if turn.item is None else (changed, turn.item)
            row = turn.row(codec, ids)
            row["talk"], row["item"] = talk, item
            rows.append(row)
            turns[turn.position] = _StoredTurn(item, row["digest"], turn.place)
        written.append(one.written(talk, "", ids, turns))
        unread = [turn.item for turn in one.turns if turn.terms == "" and turn.item is not None]
        if unindexed := [*unread, *one.dropped]:
            yield from unembed(unindexed)
            yield from fetch_each(DELETE_PASSAGE, [{"kind": TURN, "item": item} for item in unindexed])
            yield from fetch_each(DELETE_TURN, [{"item": item} for item in one.dropped])
    yield from fetch_each(INSERT_TURN, added)
    yield from fetch_each(UPDATE_TURN, changed)
    yield from _index(first, added, changed)
    saved = yield from fetch_each(SESSION_HEAD, [_arguments(one.part) for one in current])
    return {
        one.part.key: stored._replace(version=head[1])
        for one, stored, [head] in zip(current, written, saved, strict=True)
    }


def _index(
    first: int, added: Sequence[Mapping[str, Any]], changed: Sequence[Mapping[str, Any]]
) -> Steps[None]:
    """Indexes turns; changed ones lose their vectors. The ids of the added turns begin at ``first``."""
    terms = [(row["reader"] == row["owner"] and row["terms"]) or "" for row in added]
    if any(terms):
        yield from fetch(INSERT_PASSAGES, {"first": first, "terms": msgspec.json.encode(terms).decode()})
    others = [row for row in added if row["reader"] != row["owner"]]
    rows = [(row["reader"], row["item"], row["terms"]) for row in (*others, *changed) if row["terms"]]
    if rows:
        passages = yield from fetch(UPSERT_PASSAGES, {"rows": msgspec.json.encode(rows).decode()})
        if altered := [item for _, item in passages if item < first]:
            yield from unembed(altered)


def _write_new(
    codec: RowCodec, planned: Sequence[_Planned], stored_keys: tuple[bytes, ...], ahead: float
) -> Steps[dict[Key, _Stored]]:
    """Writes sessions that have no row yet, or whose users have none.

    Raises _Changed where not all can be written, so that no user is left without turns.
    """
    new = sorted(one.part.key for one in planned if one.stored.talk is None)
    yield from fetch_each(SHARE_SESSION, [key_arguments(key) for key in new])
    owners: dict[Owner, int] = {}
    for owner in sorted({owner for one in planned for owner in one.missing}):
        owners[owner] = yield from fetch_value(INSERT_OWNER, owner_arguments(owner))
    written = yield from _write(codec, planned, owners, stored_keys, ahead)
    if len(written) < len(planned):
        raise _Changed
    return written


def _write(
    codec: RowCodec,
    planned: Sequence[_Planned],
    owners: Mapping[Owner, int],
    stored_keys: tuple[bytes, ...],
    ahead: float,
) -> Steps[dict[Key, _Stored]]:
    """Writes sessions in one PostgreSQL statement; ``owners`` are the ids of new users."""
    graves = {grave: at for one in planned for grave, at in one.stored.erased.items()}
    ids = [one.owners(owners) for one in planned]
    turns = [
        [(turn, turn.row(codec, own)) for turn in one.turns] for one, own in zip(planned, ids, strict=True)
    ]
    each = [(number, turn, row) for number, own in enumerate(turns, 1) for turn, row in own]
    added = [(number, row) for number, turn, row in each if turn.item is None]
    changed = [(number, {**row, "item": turn.item}) for number, turn, row in each if turn.item is not None]
    dropped = [(number, item) for number, one in enumerate(planned, 1) for item in one.dropped]
    # Unchanged terms are NULL here, and rows with empty terms leave the index.
    unread = [(number, turn.item) for number, turn, _ in each if turn.terms == "" and turn.item is not None]
    unread += dropped
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
        "keys": stored_keys,
        "people": sorted({row[name] for *_, row in each for name in _Users._fields if row[name]}),
        **_columns("added", added),
        **_columns("changed", changed, "item"),
        "droppedn": [number for number, _ in dropped],
        "dropped": [item for _, item in dropped],
        "unreadn": [number for number, _ in unread],
        "unread": [item for _, item in unread],
    }
    rows = yield from fetch(CHANGE_TURNS if changed or dropped else ADD_TURNS, arguments)
    written: dict[Key, _Stored] = {}
    for number, talk, version, fresh in rows:
        one, own = planned[number - 1], ids[number - 1]
        items = {tuple(position): item for item, *position in fresh}
        stored = {
            turn.position: _StoredTurn(
                items[turn.position] if turn.item is None else turn.item, row["digest"], turn.place
            )
            for turn, row in turns[number - 1]
        }
        written[one.part.key] = one.written(talk, version, own, stored)
    return written


def _columns(prefix: str, turns: Sequence[tuple[int, dict[str, Any]]], *more: str) -> dict[str, list[Any]]:
    """Returns the rows of turns as one list per column."""
    columns: dict[str, list[Any]] = {f"{prefix}n": [number for number, _ in turns]}
    for name in (*TURN_COLUMNS, "reader", "terms", *more):
        columns[prefix + name] = [row[name] for _, row in turns]
    return columns
