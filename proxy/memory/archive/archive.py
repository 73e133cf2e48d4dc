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
    in_parts,
    locked_owner,
    owner_arguments,
)
from proxy.memory.archive.terms import Lexicon
from proxy.memory.errors import Unreadable
from proxy.memory.interchange import contents
from proxy.memory.redaction import NO_REDACTION, Redaction
from proxy.memory.session import Entry, Session
from proxy.memory.stores.codec import Codec
from proxy.memory.stores.sql import Arguments, Statement, id_bytes, id_text, key_arguments
from proxy.memory.stores.store import Key, Owner, Store

# Writing a text costs its index entries as well, a vector only its bytes.
_BYTES_PER_CHARACTER: Final = 16
_RENAMED_AT_ONCE: Final = 10
_ALL_SESSIONS: Final = Key("", "")
SCHEMES: Final = ("sqlite", "postgresql", "postgres")
_SQLITE: Final = EntryPoint("sqlite", "proxy.memory.archive.sqlite:SqliteDatabase", "turnkeeper.archives")
_POSTGRES: Final = EntryPoint(
    "postgresql", "proxy.memory.archive.postgres:PostgresDatabase", "turnkeeper.archives"
)


class Archive:
    """Turns with their speakers, facts, and documents. Every method may raise StoreError.

    A user is an ``Owner`` with a tenant and a name; one without a name owns only documents. Rows of other
    tenants and users are invisible. Every method is one transaction, except those of the background that may
    be large: saving sessions, adding vectors, indexing and deleting use several short ones. Times are in
    seconds since 1970.
    """

    def __init__(self, database: Database, codec: RowCodec) -> None:
        self._database = database
        self._codec = codec
        self._sessions = SessionWriter(database, codec)
        self._swept = 0.0

    async def save_session(self, key: Key, session: Session, *, as_of: float) -> int:
        """Saves the hot part of a session as it was at ``as_of``; saving the same again changes nothing.

        Corrections and retractions replace saved turns. A state with an older ``updated`` than the saved one
        changes nothing, unless the saved time is more than five seconds in the future. Returns how many of
        the entries that moved to the cold part are saved.
        """
        (moved,) = await self.save_sessions([(key, session, as_of)])
        return moved

    async def save_sessions(self, sessions: Sequence[tuple[Key, Session, float]]) -> list[int]:
        """Saves sessions with different keys, as many in one transaction as can be written quickly."""
        return await self._sessions.save([saving.hot_part(self._codec, *session) for session in sessions])

    async def save_moved(self, key: Key, session: Session, moved: Sequence[Entry], *, start: int) -> None:
        """Saves entries that moved to the cold part; the first is at index ``start`` and begins its turn.

        Changes nothing if a newer state of the session is saved.
        """
        await self._sessions.save([saving.moved_part(self._codec, key, session, moved, start)])

    async def saved_times(self, tenant: str, sessions: Sequence[str]) -> dict[str, float]:
        """Reads by session the newest ``as_of`` with which it was saved."""
        keys = [key_arguments(Key(tenant, name)) for name in sessions]
        rows = await self._database.read(partial(fetch_each, statements.SAVED_TIME, keys))
        return {name: mark for name, [(mark,)] in zip(sessions, rows, strict=True) if mark is not None}

    async def comparisons(self) -> int:
        """Reads how often any process has compared the session store with the archive."""
        rows = await self._rows(statements.COMPARISONS, key_arguments(_ALL_SESSIONS))
        return int(rows[0][0]) if rows else 0

    async def set_comparisons(self, count: int) -> None:
        """Writes how often the session store has been compared with the archive."""
        arguments = {**key_arguments(_ALL_SESSIONS), "mark": float(count)}
        await self._database.write(partial(fetch, statements.SET_COMPARISONS, arguments))

    async def list_sessions(self, tenant: str, *, after: str = "", limit: int = 100) -> dict[str, float]:
        """Reads the sessions after ``after``, in order, with the newest ``as_of`` of each."""
        rows = await self._rows(statements.LIST_SESSIONS, _page(tenant, after, limit))
        return {id_text(session): mark for session, mark in rows}

    async def list_users(self, tenant: str, *, after: str = "", limit: int = 100) -> list[str]:
        """Reads the users after ``after`` of whom anything is stored, in the order of their ids."""
        return [
            id_text(user) for (user,) in await self._rows(statements.LIST_OWNERS, _page(tenant, after, limit))
        ]

    async def user_sessions(self, user: Owner, *, limit: int = 100) -> list[UserSession]:
        """Reads the sessions in which a user spoke or was answered, the newest first."""
        arguments = {**owner_arguments(user), "limit": limit}
        rows = await self._rows(statements.OWNER_SESSIONS, arguments)
        return [UserSession(id_text(session), at, count) for session, at, count in rows]

    async def turns(
        self, user: Owner, *, after: int = 0, limit: int = 1000
    ) -> list[tuple[int, ArchivedMessage]]:
        """Reads a user's turns and those of their sessions, each with the number to continue ``after``."""
        arguments = {**owner_arguments(user), "after": after, "limit": limit}
        work = partial(_turns, self._codec, user.tenant, statements.USER_TURNS, arguments)
        return await self._database.read(work)

    async def latest_turns(self, user: Owner, *, limit: int) -> list[ArchivedMessage]:
        """Reads the end of the session in which a user spoke last; if it is another's, only their words."""
        arguments = {**owner_arguments(user), "limit": limit}
        work = partial(_turns, self._codec, user.tenant, statements.LATEST_TURNS, arguments)
        return [turn for _, turn in reversed(await self._database.read(work))]

    async def session_turns(self, key: Key, *, start: int = 0, limit: int = 10_000) -> list[ArchivedMessage]:
        """Reads the turns of a session in order, from index ``start`` on."""
        arguments = {**key_arguments(key), "start": start, "limit": limit}
        work = partial(_turns, self._codec, key.tenant, statements.SESSION_TURNS, arguments)
        return [turn for _, turn in await self._database.read(work)]

    def has_words(self, text: str) -> bool:
        """Whether a question has a word to search for; common words like "how much" do not count."""
        return bool(self._codec.lexicon.question(text))

    def shares_words(self, question: str, text: str) -> bool:
        """Whether a text has any of a question's words, in any inflection."""
        stems = frozenset(self._codec.lexicon.stems(text))
        return not all(map(stems.isdisjoint, self._codec.lexicon.question(question)))

    async def search(self, user: Owner, query: Query) -> list[SearchResult]:
        """Searches the user's turns and facts, and the tenant's documents; the best results come first."""
        return await self._database.read(partial(search.search, self._codec, user, query))

    async def unembedded_texts(
        self, model: str, *, limit: int, until: float = math.inf
    ) -> list[UnembeddedText]:
        """Reads a few texts, of any user, that have no vector by this model.

        A turn that was said after ``until`` is left out until another one follows it.
        """
        work = partial(vector_index.unembedded_texts, self._codec, model, limit, until)
        return await self._database.read(work)

    async def add_vectors(self, model: str, vectors: Sequence[tuple[UnembeddedText, Vector | None]]) -> None:
        """Adds vectors of length 1 for texts that have not changed; ``None`` for a text without a vector."""
        # Packed before the transaction, to keep that short.
        encoded = (
            (text, self._codec.encode_bytes(text.owner, vector_index.sign_bits(vector)) if vector else None)
            for text, vector in vectors
        )
        for part in in_parts(encoded, lambda one: len(one[1] or b"") // _BYTES_PER_CHARACTER):
            await self._database.write(partial(vector_index.add_vectors, model, part))

    async def forget(self, user: Owner, *, at: float) -> ErasureCount:
        """Deletes everything of a user; from now on, words said up to ``at`` are refused."""
        return await self._erase(partial(erasure.forget, self._codec, user, at=at))

    async def forget_session(self, key: Key, *, at: float) -> int:
        """Deletes a session's turns and returns how many; later, words said up to ``at`` are refused."""
        return (await self._erase(partial(erasure.forget_session, self._codec, key, at=at))).turns

    async def forget_anonymous(self, key: Key, *, at: float) -> int:
        """Deletes the turns of a session that have no user; returns how many.

        For 15 minutes, words said up to ``at`` are refused while the session has no user.
        """
        return (await self._erase(partial(erasure.forget_anonymous, self._codec, key, at=at))).turns

    async def tombstones(self, tenant: str, *, since: float, until: float) -> Tombstones:
        """Reads the tombstones of users and sessions that any process erased between two times."""
        work = partial(erasure.tombstones, self._codec, tenant, since=since, until=until)
        return await self._database.read(work)

    async def rename_tombstones(self) -> int:
        """Replaces plain names, which older versions left in tombstones, by digests; returns how many.

        The names are removed from the database's files as well.
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
        """Adds a fact, or replaces the one with the same id; the fact that it ``replaces`` is superseded."""
        with contextlib.suppress(_ErasedMeanwhile):
            await self._database.write(partial(_add_fact, self._codec, user, fact))

    async def facts(self, user: Owner, *, now: float, superseded: bool = False) -> list[Fact]:
        """Reads a user's facts that have not expired, the oldest first."""
        statement = statements.ALL_FACTS if superseded else statements.FACTS
        read = self._database.read if superseded else self._database.read_inline
        rows = await read(partial(fetch, statement, {**owner_arguments(user), "now": now}))
        return self._decoded_facts(user, rows)

    def facts_nowait(self, user: Owner, *, now: float) -> list[Fact] | None:
        """Reads a user's current facts without waiting; returns ``None`` if that is impossible."""
        rows = self._database.rows_nowait(statements.FACTS, {**owner_arguments(user), "now": now})
        return None if rows is None else self._decoded_facts(user, rows)

    async def remove_fact(self, user: Owner, fact_id: str) -> bool:
        """Removes a fact; returns whether there was one."""
        return await self._database.write(partial(_remove_fact, user, fact_id))

    async def add_document(
        self, tenant: str, path: str, chunks: Sequence[DocumentChunk], *, at: float
    ) -> None:
        """Adds a document, or replaces the one at its path."""
        await self._database.write(partial(documents.add_document, self._codec, tenant, path, chunks, at=at))

    async def documents(self, tenant: str) -> list[str]:
        """Reads the paths of a tenant's documents."""
        return [
            id_text(path) for (path,) in await self._rows(statements.DOCUMENTS, {"tenant": id_bytes(tenant)})
        ]

    async def remove_document(self, tenant: str, path: str) -> bool:
        """Removes a document; returns whether there was one."""
        return await self._database.write(partial(documents.remove_document, tenant, path))

    async def sweep(self, *, before: float, limit: int = 0) -> int:
        """Deletes a few turns that were recorded before a time; returns how many.

        By default the database decides how many. Each call continues after the last deleted turn, until there
        are no more: deleted rows stay in PostgreSQL's index while a back-up reads it.
        """
        count, self._swept = await self._database.write(
            partial(erasure.sweep, self._codec, since=self._swept, before=before, limit=limit)
        )
        return count

    async def expire(self, *, now: float, limit: int = 20) -> int:
        """Deletes a few expired facts; returns how many."""
        return await self._database.write(partial(erasure.expire, now=now, limit=limit))

    async def reindex(self, *, limit: int = 5) -> int:
        """Indexes a few texts anew that an older lexicon indexed; returns how many."""
        texts = await self._database.read(partial(vector_index.outdated_texts, self._codec, limit))
        # Unreadable texts keep their terms.
        lexicon = self._codec.lexicon
        anew = ((t, t.terms if t.text is None else lexicon.terms(t.owner, t.text)) for t in texts)
        for batch in in_parts(anew, lambda one: len(one[1])):
            await self._database.write(partial(vector_index.reindex, batch))
        return len(texts)

    async def scrub(self) -> None:
        """Removes deleted rows from the database's files."""
        await self._database.scrub()

    async def ping(self) -> None:
        """Returns if a turn could be saved now; else raises StoreError."""
        await self._database.ping()

    async def aclose(self) -> None:
        """Closes everything; later calls raise StoreError."""
        await self._database.aclose()

    async def _rows(self, statement: Statement, arguments: Arguments) -> Rows:
        return await self._database.read(partial(fetch, statement, arguments))

    def _decoded_facts(self, user: Owner, rows: Rows) -> list[Fact]:
        key = Key(user.tenant, user.user)
        # Superseding a fact changes its row, but not its blob.
        return [
            msgspec.structs.replace(self._codec.decode(key, blob, Fact), superseded=superseded)
            for superseded, blob in rows
        ]

    async def _erase(self, work: Transaction[ErasureCount]) -> ErasureCount:
        """Erases in short transactions, so that others can write in between; returns the counts."""
        count = ErasureCount()
        while any(erased := await self._database.write(work)):
            count = ErasureCount(count.turns + erased.turns, count.facts + erased.facts)
        return count


def _page(tenant: str, after: str, limit: int) -> dict[str, object]:
    return {"tenant": id_bytes(tenant), "after": id_bytes(after), "limit": limit}


def _turns(
    codec: RowCodec, tenant: str, statement: Statement, arguments: Arguments
) -> Steps[list[tuple[int, ArchivedMessage]]]:
    """Reads turns, each with its number."""
    turns: list[tuple[int, ArchivedMessage]] = []
    for number, session, created, at, blob in (yield from fetch(statement, arguments)):
        name = id_text(session)
        entry = codec.decode(Key(tenant, name), blob, Entry)
        turns.append((number, ArchivedMessage(session=name, created=created, at=at, entry=entry)))
    return turns


class _ErasedMeanwhile(Exception):
    """The user was erased while the transaction waited; it is rolled back."""


def _add_fact(codec: RowCodec, user: Owner, fact: Fact) -> Steps[None]:
    """Adds or updates a fact and supersedes the one it replaces; drops facts older than a tombstone."""
    keys = yield from tombstone_keys(codec)
    if (yield from _is_refused(keys, user, fact)):
        return
    owner = yield from locked_owner(user)
    if (yield from _is_refused(keys, user, fact)):
        raise _ErasedMeanwhile
    fact = msgspec.structs.replace(fact, text=codec.redaction.text(fact.text))
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


def _remove_fact(user: Owner, fact_id: str) -> Steps[bool]:
    """Removes a fact; returns whether there was one."""
    name = {**owner_arguments(user), "name": id_bytes(fact_id)}
    item = yield from fetch_value(statements.DELETE_FACT, name)
    if item is not None:
        yield from fetch(statements.DELETE_PASSAGE, {"kind": statements.FACT, "item": item})
    return item is not None


def is_archive(url: str) -> bool:
    """Whether an archive can use the address of a session store."""
    return url.partition(":")[0] in SCHEMES and url != "sqlite::memory:"


def open_archive(
    url: str,
    *,
    codec: Codec,
    sessions: Store | None = None,
    redaction: Redaction = NO_REDACTION,
) -> Archive:
    """Returns the archive at an address; nothing is connected yet.

    ``sessions`` is the driver of a session store in the same PostgreSQL database. Raises ValueError for an
    invalid address. The error does not contain the address, which may contain a password.
    """
    if not is_archive(url):
        raise ValueError("this is not the address of an archive; write sqlite:PATH or postgresql://…")
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
    """Exports and deletes a user's turns and facts in the archive."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    async def export(self, user: Owner) -> Mapping[str, Sequence[Any]]:
        """Reads a user's turns, session by session, and facts, including superseded ones."""
        turns, facts, unreadable = list[ArchivedMessage](), list[Fact](), list[str]()
        after = 0
        try:
            while page := await self._archive.turns(user, after=after):
                turns += [turn for _, turn in page]
                after = page[-1][0]
        except Unreadable:
            unreadable.append("turns")
        try:
            facts = await self._archive.facts(user, now=0.0, superseded=True)
        except Unreadable:
            unreadable.append("facts")
        # In a thread: many turns would block the event loop, which calls share.
        exported: dict[str, Sequence[Any]] = {
            "turns": await asyncio.to_thread(_exported_turns, turns),
            "facts": [fact.as_dict() for fact in facts],
        }
        return exported | ({"unreadable": unreadable} if unreadable else {})

    async def forget(self, user: Owner, *, at: float) -> Mapping[str, int]:
        """Deletes everything of a user; returns the counts."""
        return (await self._archive.forget(user, at=at))._asdict()

    async def forget_session(self, key: Key, *, at: float) -> Mapping[str, int]:
        """Deletes a session's turns; returns the count."""
        return {"turns": await self._archive.forget_session(key, at=at)}

    async def scrub(self) -> None:
        """Removes deleted rows from the database's files."""
        await self._archive.scrub()


def _exported_turns(turns: list[ArchivedMessage]) -> list[dict[str, Any]]:
    turns.sort(key=lambda turn: (turn.created, turn.session, turn.entry.turn_ref))
    # Entry by entry: the voice platforms of different sessions have different units of time.
    return [
        {"session_id": turn.session, "timestamp": turn.at, "message": contents([turn.entry])[0]}
        for turn in turns
    ]
