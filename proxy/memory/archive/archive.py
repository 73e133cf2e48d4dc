"""The archive: every turn as it was heard, facts and documents, in SQLite or PostgreSQL."""

import asyncio
import contextlib
import math
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, Final

import msgspec

from proxy.memory.archive import documents, erasure, saving, search, statements
from proxy.memory.archive import vectors as vector_index
from proxy.memory.archive.erasure import is_erased, tombstone, tombstone_keys
from proxy.memory.archive.names import NamedDatabase
from proxy.memory.archive.records import (
    ArchivedMessage,
    DocumentChunk,
    ErasureCount,
    Fact,
    Query,
    SearchResult,
    TombstoneKeys,
    Tombstones,
    UnembeddedText,
    UserSession,
    Vector,
)
from proxy.memory.archive.saving import SessionWriter
from proxy.memory.archive.sql import (
    Database,
    RowCodec,
    Rows,
    Steps,
    Transaction,
    fetch,
    fetch_each,
    fetch_value,
    find_owner,
    in_parts,
    locked_owner,
    owner_arguments,
)
from proxy.memory.archive.terms import Lexicon
from proxy.memory.interchange import contents
from proxy.memory.redaction import NO_REDACTION, Redaction
from proxy.memory.session import UNREADABLE, Entry, Session
from proxy.memory.stores.codec import Codec
from proxy.memory.stores.sql import Arguments, Statement, id_bytes, id_text, key_arguments
from proxy.memory.stores.store import Key, Owner, Store

# A text costs its words' places in an index, a vector no more than its bytes.
_BYTES_PER_CHARACTER: Final = 16
_RENAMED_AT_ONCE: Final = 10
_ALL_SESSIONS: Final = Key("", "")
SCHEMES: Final = ("sqlite", "postgresql", "postgres")
_SQLITE: Final = EntryPoint("sqlite", "proxy.memory.archive.sqlite:SqliteDatabase", "turnkeeper.archives")
_POSTGRES: Final = EntryPoint(
    "postgresql", "proxy.memory.archive.postgres:PostgresDatabase", "turnkeeper.archives"
)


class Archive:
    """What was said and by whom, facts, and documents. Every method may raise StoreError.

    A user is an ``Owner`` with a tenant and a name; one without a name owns documents alone. What belongs to
    another tenant or user is invisible. Every method is one transaction, but for what may be much and no call
    waits for: sessions, vectors, an index that is made anew and all that is deleted go in several short ones.
    Times are in seconds since 1970.
    """

    def __init__(self, database: Database, codec: RowCodec) -> None:
        self._database = database
        self._codec = codec
        self._sessions = SessionWriter(database, codec)
        self._swept = 0.0

    async def save_session(self, key: Key, session: Session, *, as_of: float) -> int:
        """Save the hot part of a session as it was at ``as_of``; saving the same again changes nothing.

        Corrections and retractions replace what was saved. A state that is older than the saved one, by
        ``updated``, changes nothing, unless the saved one is from more than five seconds ahead. Returns how
        many of the entries that moved out of the session are saved: the others are missing.
        """
        (moved,) = await self.save_sessions([(key, session, as_of)])
        return moved

    async def save_sessions(self, sessions: Sequence[tuple[Key, Session, float]]) -> list[int]:
        """Save several, each under a key of its own: as many in one transaction as are quickly written."""
        return await self._sessions.save([saving.hot_part(self._codec, *session) for session in sessions])

    async def save_moved(self, key: Key, session: Session, moved: Sequence[Entry], *, start: int) -> None:
        """Save entries that moved out of a session; the first is at index ``start`` and begins its turn.

        Where a newer state of the session is saved, nothing changes.
        """
        await self._sessions.save([saving.moved_part(self._codec, key, session, moved, start)])

    async def saved_times(self, tenant: str, sessions: Sequence[str]) -> dict[str, float]:
        """Of sessions that are saved, the newest time that each was saved as of."""
        keys = [key_arguments(Key(tenant, name)) for name in sessions]
        rows = await self._database.read(partial(fetch_each, statements.SAVED_TIME, keys))
        return {name: mark for name, [(mark,)] in zip(sessions, rows, strict=True) if mark is not None}

    async def comparisons(self) -> int:
        """How often the sessions of the store have been compared with the archive, by any process."""
        rows = await self._rows(statements.COMPARISONS, key_arguments(_ALL_SESSIONS))
        return int(rows[0][0]) if rows else 0

    async def set_comparisons(self, count: int) -> None:
        """Note how often they have been compared."""
        arguments = {**key_arguments(_ALL_SESSIONS), "mark": float(count)}
        await self._database.write(partial(fetch, statements.SET_COMPARISONS, arguments))

    async def list_sessions(self, tenant: str, *, after: str = "", limit: int = 100) -> dict[str, float]:
        """By session, the newest time that it was saved as of: those behind ``after``, in order."""
        rows = await self._rows(statements.LIST_SESSIONS, _page(tenant, after, limit))
        return {id_text(session): mark for session, mark in rows}

    async def list_users(self, tenant: str, *, after: str = "", limit: int = 100) -> list[str]:
        """The users of whom anything is stored, behind ``after``, in the order of their ids."""
        return [
            id_text(user) for (user,) in await self._rows(statements.LIST_OWNERS, _page(tenant, after, limit))
        ]

    async def user_sessions(self, user: Owner, *, limit: int = 100) -> list[UserSession]:
        """The sessions in which a user spoke or was spoken to, the newest first."""
        return await self._database.read(partial(_user_sessions, user, limit))

    async def turns(
        self, user: Owner, *, after: int = 0, limit: int = 1000
    ) -> list[tuple[int, ArchivedMessage]]:
        """What was said by a user and in their sessions; each with the number to continue ``after``."""
        return await self._database.read(partial(_user_turns, self._codec, user, after, limit))

    async def latest_turns(self, user: Owner, *, limit: int) -> list[ArchivedMessage]:
        """The end of the session in which a user spoke last; of another user's, what this one said."""
        return await self._database.read(partial(_latest_turns, self._codec, user, limit))

    async def session_turns(self, key: Key, *, start: int = 0, limit: int = 10_000) -> list[ArchivedMessage]:
        """The turns of a session in order, from the one at index ``start`` on."""
        return await self._database.read(partial(_session_turns, self._codec, key, start, limit))

    def has_words(self, text: str) -> bool:
        """Whether a question has a word to look for: common words alone, like "how much", find nothing."""
        return bool(self._codec.lexicon.question(text))

    def shares_words(self, question: str, text: str) -> bool:
        """Whether a text has any of a question's words, in whatever form."""
        stems = frozenset(self._codec.lexicon.stems(text))
        return not all(map(stems.isdisjoint, self._codec.lexicon.question(question)))

    async def search(self, user: Owner, query: Query) -> list[SearchResult]:
        """The user's turns and facts and the tenant's documents that match, best first."""
        return await self._database.read(partial(search.search, self._codec, user, query))

    async def unembedded_texts(
        self, model: str, *, limit: int, until: float = math.inf
    ) -> list[UnembeddedText]:
        """A few of the texts, of any user, that have no vector by this model.

        A turn that was said after ``until`` is not among them before it is followed by another.
        """
        work = partial(vector_index.unembedded_texts, self._codec, model, limit, until)
        return await self._database.read(work)

    async def add_vectors(self, model: str, vectors: Sequence[tuple[UnembeddedText, Vector | None]]) -> None:
        """Add vectors of length 1 for texts that have not changed; ``None`` for a text without a vector."""
        # Thousands of numbers are packed before a transaction, not within it.
        encoded = (
            (text, self._codec.encode_bytes(text.owner, vector_index.sign_bits(vector)) if vector else None)
            for text, vector in vectors
        )
        for part in in_parts(encoded, lambda one: len(one[1] or b"") // _BYTES_PER_CHARACTER):
            await self._database.write(partial(vector_index.add_vectors, model, part))

    async def forget(self, user: Owner, *, at: float) -> ErasureCount:
        """Delete everything of a user; what was said up to ``at`` is refused from now on."""
        return await self._erase(partial(erasure.forget, self._codec, user, at=at))

    async def forget_session(self, key: Key, *, at: float) -> int:
        """Delete all turns of a session, and refuse what was said in it until ``at``; how many."""
        return (await self._erase(partial(erasure.forget_session, self._codec, key, at=at))).turns

    async def forget_anonymous(self, key: Key, *, at: float) -> int:
        """Delete the turns of a session that have no user; how many there were.

        For a quarter of an hour, what was said in it until ``at`` is refused while it has no user.
        """
        return (await self._erase(partial(erasure.forget_anonymous, self._codec, key, at=at))).turns

    async def tombstones(self, tenant: str, *, since: float, until: float) -> Tombstones:
        """The users and sessions that were erased between two times, by any process."""
        work = partial(erasure.tombstones, self._codec, tenant, since=since, until=until)
        return await self._database.read(work)

    async def rename_tombstones(self) -> int:
        """Put digests in the place of names that older versions left in tombstones; how many.

        The names leave the database's own files, too.
        """
        count = 0
        while renamed := await self._database.write(
            partial(erasure.rename_tombstones, self._codec, _RENAMED_AT_ONCE)
        ):
            count += renamed
        if count:
            await self._database.scrub()
        return count

    async def add_fact(self, user: Owner, fact: Fact) -> None:
        """Add a fact, or replace the one with its id; the one it ``replaces`` is superseded."""
        with contextlib.suppress(_ErasedMeanwhile):
            await self._database.write(partial(_add_fact, self._codec, user, fact))

    async def facts(self, user: Owner, *, now: float, superseded: bool = False) -> list[Fact]:
        """A user's facts that have not expired, the oldest first."""
        work = partial(_facts, self._codec, user, now, superseded=superseded)
        return await (self._database.read(work) if superseded else self._database.read_inline(work))

    def facts_nowait(self, user: Owner, *, now: float) -> list[Fact] | None:
        """A user's facts that are current, without waiting; ``None`` where that is impossible."""
        rows = self._database.rows_nowait(statements.FACTS, owner_arguments(user) | {"now": now})
        return None if rows is None else _decoded_facts(self._codec, user, rows)

    async def remove_fact(self, user: Owner, fact_id: str) -> bool:
        """Remove a fact; whether there was one."""
        return await self._database.write(partial(_remove_fact, user, fact_id))

    async def add_document(
        self, tenant: str, path: str, chunks: Sequence[DocumentChunk], *, at: float
    ) -> None:
        """Add a document, or replace the one at its path."""
        await self._database.write(partial(documents.add_document, self._codec, tenant, path, chunks, at=at))

    async def documents(self, tenant: str) -> list[str]:
        """The paths of a tenant's documents."""
        return [
            id_text(path) for (path,) in await self._rows(statements.DOCUMENTS, {"tenant": id_bytes(tenant)})
        ]

    async def remove_document(self, tenant: str, path: str) -> bool:
        """Remove a document; whether there was one."""
        return await self._database.write(partial(documents.remove_document, tenant, path))

    async def sweep(self, *, before: float, limit: int = 0) -> int:
        """Delete a few turns that were recorded before a time, as many as the database likes; how many.

        It goes on behind the last ones, until there are no more: while a back-up reads PostgreSQL, what was
        deleted stays in the index.
        """
        count, self._swept = await self._database.write(
            partial(erasure.sweep, self._codec, since=self._swept, before=before, limit=limit)
        )
        return count

    async def expire(self, *, now: float, limit: int = 20) -> int:
        """Delete a few facts that have expired; how many."""
        return await self._database.write(partial(erasure.expire, now=now, limit=limit))

    async def reindex(self, *, limit: int = 5) -> int:
        """Index a few texts of an older lexicon; how many."""
        texts = await self._database.read(partial(vector_index.outdated_texts, self._codec, limit))
        # Those that cannot be read keep their terms.
        lexicon = self._codec.lexicon
        anew = ((t, t.terms if t.text is None else lexicon.terms(t.owner, t.text)) for t in texts)
        for batch in in_parts(anew, lambda one: len(one[1])):
            await self._database.write(partial(vector_index.reindex, batch))
        return len(texts)

    async def scrub(self) -> None:
        """Remove what was deleted from the database's own files."""
        await self._database.scrub()

    async def ping(self) -> None:
        """Return if a turn could be saved now."""
        await self._database.ping()

    async def aclose(self) -> None:
        """Close everything; further calls raise StoreError."""
        await self._database.aclose()

    async def _rows(self, statement: Statement, arguments: Arguments) -> Rows:
        return await self._database.read(partial(fetch, statement, arguments))

    async def _erase(self, work: Transaction[ErasureCount]) -> ErasureCount:
        """Erase a little in each transaction, so that others write in between; how much there was."""
        count = ErasureCount()
        while any(erased := await self._database.write(work)):
            count = ErasureCount(count.turns + erased.turns, count.facts + erased.facts)
        return count


def _page(tenant: str, after: str, limit: int) -> dict[str, object]:
    return {"tenant": id_bytes(tenant), "after": id_bytes(after), "limit": limit}


def _user_sessions(user: Owner, limit: int) -> Steps[list[UserSession]]:
    """The sessions in which a user spoke or was spoken to, the newest first."""
    owner = yield from find_owner(user)
    if owner is None:
        return []
    rows = yield from fetch(statements.OWNER_SESSIONS, {"owner": owner, "limit": limit})
    return [UserSession(id_text(session), at, count) for session, at, count in rows]


def _user_turns(
    codec: RowCodec, user: Owner, after: int, limit: int
) -> Steps[list[tuple[int, ArchivedMessage]]]:
    """A page of a user's turns, each with its number."""
    owner = yield from find_owner(user)
    if owner is None:
        return []
    rows = yield from fetch(statements.USER_TURNS, {"owner": owner, "after": after, "limit": limit})
    return [(row[0], _turn(codec, user.tenant, row)) for row in rows]


def _latest_turns(codec: RowCodec, user: Owner, limit: int) -> Steps[list[ArchivedMessage]]:
    """The end of the session in which a user spoke last."""
    owner = yield from find_owner(user)
    talk = None if owner is None else (yield from fetch_value(statements.LATEST_SESSION, {"owner": owner}))
    if talk is None:
        return []
    rows = yield from fetch(statements.LATEST_TURNS, {"owner": owner, "talk": talk, "limit": limit})
    return [_turn(codec, user.tenant, row) for row in reversed(rows)]


def _session_turns(codec: RowCodec, key: Key, start: int, limit: int) -> Steps[list[ArchivedMessage]]:
    """A page of a session's turns."""
    rows = yield from fetch(statements.SESSION_TURNS, {**key_arguments(key), "start": start, "limit": limit})
    return [_turn(codec, key.tenant, row) for row in rows]


def _turn(codec: RowCodec, tenant: str, row: Sequence[Any]) -> ArchivedMessage:
    _, session, created, at, _, blob = row
    name = id_text(session)
    return ArchivedMessage(
        session=name, created=created, at=at, entry=codec.decode(Key(tenant, name), blob, Entry)
    )


class _ErasedMeanwhile(Exception):
    """The user was erased while the transaction waited, which is undone."""


def _add_fact(codec: RowCodec, user: Owner, fact: Fact) -> Steps[None]:
    """Add or update a fact and supersede the one it replaces; facts older than a tombstone are dropped."""
    keys = yield from tombstone_keys(codec)
    if (yield from _is_refused(keys, user, fact)):
        return
    fact = msgspec.structs.replace(fact, text=codec.redaction.text(fact.text))
    owner = yield from locked_owner(user)
    if (yield from _is_refused(keys, user, fact)):
        raise _ErasedMeanwhile
    arguments = {
        "owner": owner,
        "name": id_bytes(fact.id),
        "category": fact.category,
        "created": fact.created,
        "expires": fact.expires,
        "superseded": fact.superseded,
        "importance": fact.importance,
        "blob": codec.encode(Key(user.tenant, user.user), fact),
    }
    item = yield from fetch_value(statements.UPSERT_FACT, arguments)
    if fact.superseded is None:
        row = {"owner": owner, "kind": statements.FACT, "item": item, "at": fact.created}
        yield from codec.index(user, fact.text, row)
    else:
        yield from fetch(statements.DELETE_PASSAGE, {"kind": statements.FACT, "item": item})
    if fact.replaces is not None:
        former = {"owner": owner, "replaces": id_bytes(fact.replaces), "created": fact.created}
        superseded = yield from fetch_value(statements.SUPERSEDE, former)
        if superseded is not None:
            yield from fetch(statements.DELETE_PASSAGE, {"kind": statements.FACT, "item": superseded})


def _is_refused(keys: TombstoneKeys, user: Owner, fact: Fact) -> Steps[bool]:
    erased_at = yield from tombstone(keys, user.tenant, statements.USER, user.user)
    return is_erased(erased_at, stated=fact.created, recorded=fact.created)


def _facts(codec: RowCodec, user: Owner, now: float, *, superseded: bool) -> Steps[list[Fact]]:
    """A user's facts that have not expired, the oldest first."""
    statement = statements.ALL_FACTS if superseded else statements.FACTS
    rows = yield from fetch(statement, owner_arguments(user) | {"now": now})
    return _decoded_facts(codec, user, rows)


def _decoded_facts(codec: RowCodec, user: Owner, rows: Rows) -> list[Fact]:
    """A user's facts in rows of the statements that select them."""
    key = Key(user.tenant, user.user)
    # Superseding a fact changes its row alone, not its encoded form.
    return [msgspec.structs.replace(codec.decode(key, row[6], Fact), superseded=row[4]) for row in rows]


def _remove_fact(user: Owner, fact_id: str) -> Steps[bool]:
    """Remove a fact; whether there was one."""
    owner = yield from find_owner(user)
    item = None
    if owner is not None:
        item = yield from fetch_value(statements.DELETE_FACT, {"owner": owner, "name": id_bytes(fact_id)})
    if item is not None:
        yield from fetch(statements.DELETE_PASSAGE, {"kind": statements.FACT, "item": item})
    return item is not None


def is_archive(url: str) -> bool:
    """Whether an archive can be kept at an address of a session store."""
    return url.partition(":")[0] in SCHEMES and url != "sqlite::memory:"


def open_archive(
    url: str,
    *,
    codec: Codec,
    sessions: Store | None = None,
    redaction: Redaction = NO_REDACTION,
) -> Archive:
    """The archive at an address; nothing is connected yet.

    ``sessions`` is the driver of a session store in the same PostgreSQL database. Raises ValueError for an
    address that names no archive, without the address: it may hold a password.
    """
    if not is_archive(url):
        raise ValueError("no archive is addressed like this; write sqlite:PATH or postgresql://…")
    database: Database
    if url.startswith("sqlite:"):
        path = url.removeprefix("sqlite:")
        if not path or path.startswith("//") or "\0" in path:
            raise ValueError("write sqlite:PATH, such as sqlite:archive.db or sqlite:/data/archive.db")
        dialect, database = statements.SQLITE, _SQLITE.load()(Path(path))
    else:
        try:
            dialect, database = statements.POSTGRES, _POSTGRES.load()(url, sessions)
        except ModuleNotFoundError as error:
            raise ValueError(
                f"postgresql: needs the module {error.name}; install turnkeeper[postgres]"
            ) from error
    if codec.names() is not None:
        database = NamedDatabase(database, codec)
    row_codec = RowCodec(codec, Lexicon(codec.derived(b"index")), dialect, redaction)
    return Archive(database, row_codec)


class ArchiveHolder:
    """The archive as a data holder: a user's turns and facts."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    async def export(self, user: Owner) -> Mapping[str, Sequence[Any]]:
        """A user's turns, session by session, and facts, superseded ones too."""
        turns, facts, unreadable = list[ArchivedMessage](), list[Fact](), list[str]()
        after = 0
        try:
            while page := await self._archive.turns(user, after=after):
                turns += [turn for _, turn in page]
                after = page[-1][0]
        except UNREADABLE:
            unreadable.append("turns")
        try:
            facts = await self._archive.facts(user, now=0.0, superseded=True)
        except UNREADABLE:
            unreadable.append("facts")
        # In a thread: there may be many, and calls share the loop.
        exported: dict[str, Sequence[Any]] = {
            "turns": await asyncio.to_thread(_exported_turns, turns),
            "facts": [fact.as_dict() for fact in facts],
        }
        return exported | ({"unreadable": unreadable} if unreadable else {})

    async def forget(self, user: Owner, *, at: float) -> Mapping[str, int]:
        """Delete everything of a user."""
        return (await self._archive.forget(user, at=at))._asdict()

    async def forget_session(self, key: Key, *, at: float) -> Mapping[str, int]:
        """Delete a session's turns."""
        return {"turns": await self._archive.forget_session(key, at=at)}

    async def scrub(self) -> None:
        """Remove what was deleted from the database's own files."""
        await self._archive.scrub()


def _exported_turns(turns: list[ArchivedMessage]) -> list[dict[str, Any]]:
    turns.sort(key=lambda turn: (turn.created, turn.session, turn.entry.turn_ref))
    # Entry by entry: they are of many sessions, whose voice platforms have units of time of their own.
    return [
        {"session_id": turn.session, "timestamp": turn.at, "message": contents([turn.entry])[0]}
        for turn in turns
    ]
