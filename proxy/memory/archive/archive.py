"""The archive in SQL, whichever database carries it out."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, Final, TypeVar

from proxy.memory.archive import documents, erasure, facts, search, turns, vectors
from proxy.memory.archive.facts import FactCache
from proxy.memory.archive.records import (
    Chunk,
    ErasureCount,
    Fact,
    Query,
    SearchResult,
    Tombstones,
    Turn,
    UnembeddedText,
    Vector,
)
from proxy.memory.archive.sql import Database, RowCodec, Transaction
from proxy.memory.archive.statements import POSTGRES, SQLITE
from proxy.memory.archive.terms import Lexicon
from proxy.memory.archive.vectors import add_vectors
from proxy.memory.interchange import contents
from proxy.memory.redaction.redaction import NO_REDACTION, Redaction
from proxy.memory.session import Entry, Session, TurnRef
from proxy.memory.stores.codec import Codec
from proxy.memory.stores.sqlite_file import ForeignCommits
from proxy.memory.stores.store import Key, Owner

T = TypeVar("T")
SCHEMES: Final = ("sqlite", "postgresql", "postgres")
_GROUP: Final = "turnkeeper.archives"


class Archive:
    """What was said, by whom, and what is known. Every method may raise StoreError.

    A person is an Owner with a tenant and a name; one without a name owns nothing but documents. What belongs
    to another tenant or person is not there.
    """

    def __init__(self, database: Database, shelf: RowCodec, latest: FactCache | None = None) -> None:
        self._database = database
        self._shelf = shelf
        self._latest = latest or FactCache()

    async def save_session(self, key: Key, session: Session, *, as_of: float) -> int:
        """Keeps what is held of a session as it is now; the same again changes nothing.

        What was corrected is corrected, what was withdrawn goes. An older state, by ``updated``, changes
        nothing where a newer one was kept; one from more than five seconds ahead orders nothing. ``mark`` is
        when this was the session, in seconds since 1970. Returns how many of the ``moved`` entries are kept:
        those behind are missing.
        """
        return await self._database.write(partial(turns.keep, self._shelf, key, session, mark=as_of))

    async def save_moved(self, key: Key, session: Session, moved: Sequence[Entry], *, start: int) -> None:
        """Keeps entries that have moved out of a session, of which the first is the one at ``start``.

        It is the first of its turn, too: what a turn was said in is counted from there. Where a newer state
        was kept, nothing is changed.
        """
        work = partial(turns.keep_moved, self._shelf, key, session, moved, start=start)
        await self._database.write(work)

    async def saved_times(self, tenant: str) -> dict[str, float]:
        """By session, the newest mark that it was kept with."""
        return await self._database.read(partial(turns.marks, tenant))

    async def search(self, person: Owner, query: Query) -> list[SearchResult]:
        """The person's turns and facts, and the tenant's documents, best first."""
        return await self._database.read(partial(search.search, self._shelf, person, query))

    async def unembedded_texts(self, model: str, *, limit: int) -> list[UnembeddedText]:
        """A few of the texts, of anybody, of which no vector by this model was added."""
        return await self._database.read(partial(vectors.unembedded_texts, self._shelf, model, limit))

    async def add_vectors(self, model: str, vectors: Sequence[tuple[UnembeddedText, Vector | None]]) -> None:
        """Adds vectors of length 1 for texts that are still the same; ``None`` for one that has none."""
        await self._database.write(partial(add_vectors, self._shelf, model, vectors))

    async def turns(self, person: Owner, *, after: int = 0, limit: int = 1000) -> list[tuple[int, Turn]]:
        """What was said by the person and in the person's talks; each with the number to go on ``after``."""
        return await self._database.read(partial(turns.turns, self._shelf, person, after, limit))

    async def latest_turns(self, person: Owner, *, limit: int) -> list[Turn]:
        """The end, in order, of the talk in which the person spoke last; of another's, what that one said."""
        return await self._database.read(partial(turns.last_talk, self._shelf, person, limit))

    async def session_turns(self, key: Key, *, start: int = 0, limit: int = 10_000) -> list[Turn]:
        """What is kept of a session, in order, from the turn at index ``start`` on."""
        return await self._database.read(partial(turns.turns_of, self._shelf, key, start, limit))

    async def list_sessions(self, tenant: str, *, after: str = "", limit: int = 100) -> dict[str, float]:
        """The sessions behind ``after`` in the order of their ids, and when each was kept last."""
        return await self._database.read(partial(turns.talks, tenant, after, limit))

    async def forget(self, person: Owner, *, at: float) -> ErasureCount:
        """Removes all that is the person's, for good; what was said up to ``at`` is refused from now on."""
        return await self._rewritten(partial(erasure.forget, person, at=at))

    async def forget_session(self, key: Key, *, at: float) -> int:
        """Removes all turns of a session, and refuses what was said in it until ``at``; how many."""
        return await self._rewritten(partial(erasure.forget_session, key, at=at))

    async def forget_anonymous(self, key: Key, *, at: float) -> int:
        """Removes the turns of a session that belong to no person; how many there were.

        For a quarter of an hour, what was said in it until ``at`` is refused while it is nobody's session.
        """
        return await self._rewritten(partial(erasure.forget_strangers, key, at=at))

    async def tombstones(self, tenant: str, *, since: float, until: float) -> Tombstones:
        """Who was forgotten between two times, and which sessions were, whoever did it."""
        return await self._database.read(partial(erasure.tombstones, tenant, since=since, until=until))

    async def add_fact(self, person: Owner, fact: Fact) -> None:
        """Adds a fact, or puts it in the place of the one with its id; the one it replaces is superseded."""
        await self._rewritten(partial(facts.add_fact, self._shelf, person, fact))

    async def facts(self, person: Owner, *, now: float, superseded: bool = False) -> list[Fact]:
        """What is known of a person and has not expired, the oldest first."""
        work = partial(facts.facts, self._shelf, person, now=now, superseded=superseded)
        return await self._database.read_inline(work)

    def facts_nowait(self, person: Owner, *, now: float) -> list[Fact] | None:
        """The same without those that were superseded, where nobody has to wait for it; else ``None``."""
        work = partial(facts.facts, self._shelf, person, now=now, superseded=False)
        return self._latest.get(person, lambda: self._database.read_nowait(work), now=now)

    async def remove_fact(self, person: Owner, fact: str) -> bool:
        """Removes a fact; whether there was one."""
        return await self._rewritten(partial(facts.remove_fact, person, fact))

    async def add_document(self, tenant: str, path: str, chunks: Sequence[Chunk], *, at: float) -> None:
        """Puts a document in the place of what stood at its path."""
        await self._database.write(partial(documents.add_document, self._shelf, tenant, path, chunks, at=at))

    async def documents(self, tenant: str) -> list[str]:
        """The paths of a tenant's documents."""
        return await self._database.read(partial(documents.documents, tenant))

    async def remove_document(self, tenant: str, path: str) -> bool:
        """Removes a document; whether there was one."""
        return await self._database.write(partial(documents.remove_document, tenant, path))

    async def sweep(self, *, before: float, limit: int = 200) -> int:
        """Removes a few turns that were recorded before a time; how many."""
        return await self._database.write(partial(erasure.sweep, before=before, limit=limit))

    async def expire(self, *, now: float, limit: int = 200) -> int:
        """Removes a few facts that have expired; how many."""
        return await self._rewritten(partial(erasure.expire, self._shelf, now=now, limit=limit))

    async def reindex(self, *, limit: int = 20) -> int:
        """Indexes anew a talk that stood in another's name, or a few texts of an older way; how many."""
        placed = await self._database.write(partial(turns.assign_owner, self._shelf))
        return placed or await self._database.write(partial(vectors.reindex, self._shelf, limit))

    async def scrub(self) -> None:
        """Nothing that was removed can be read from the database's own files any more."""
        await self._database.scrub()

    async def ping(self) -> None:
        """Returns if a turn could be kept now."""
        await self._database.ping()

    async def aclose(self) -> None:
        """Closes everything; further calls raise StoreError."""
        await self._database.aclose()

    async def _rewritten(self, work: Transaction[T]) -> T:
        """As the database writes; what was known of facts is known no more."""
        try:
            return await self._database.write(work)
        finally:
            self._latest.clear()


class ArchiveHolder:
    """Turns and facts in the archive, and their words in its index."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    async def exported(self, person: Owner) -> Mapping[str, Sequence[Any]]:
        """As the protocol has it; facts that have been replaced are among them."""
        turns: list[Turn] = []
        after = 0
        while page := await self._archive.turns(person, after=after):
            turns += [turn for _, turn in page]
            after = page[-1][0]
        facts = await self._archive.facts(person, now=0.0, superseded=True)
        # In a thread: there may be many, and callers wait on the loop.
        return {
            "turns": await asyncio.to_thread(_exported, turns),
            "facts": [fact.as_dict() for fact in facts],
        }

    async def forget(self, person: Owner, *, at: float) -> Mapping[str, int]:
        """As the protocol has it."""
        return (await self._archive.forget(person, at=at))._asdict()

    async def forget_session(self, key: Key, *, at: float) -> Mapping[str, int]:
        """As the protocol has it."""
        return {"turns": await self._archive.forget_session(key, at=at)}

    async def scrub(self) -> None:
        """As the protocol has it."""
        await self._archive.scrub()


def _exported(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    # Each by itself: they are of many sessions, whose engines write times in units of their own.
    return [
        {"session_id": turn.session, "timestamp": turn.at, "message": contents([turn.entry])[0]}
        for turn in sorted(turns, key=_chronological)
    ]


def _chronological(turn: Turn) -> tuple[float, str, TurnRef]:
    """Talk by talk, and each as it went: the archive has first what a session holds ready."""
    return turn.created, turn.session, turn.entry.turn_ref


_POSTGRES: Final = EntryPoint("postgresql", "proxy.memory.archive.postgres:PostgresDatabase", _GROUP)


_SQLITE: Final = EntryPoint("sqlite", "proxy.memory.archive.sqlite:SqliteDatabase", _GROUP)


def is_archive(url: str) -> bool:
    """Whether an archive can be kept at an address of sessions."""
    return url.partition(":")[0] in SCHEMES and url != "sqlite::memory:"


def open_archive(
    url: str, *, codec: Codec, elsewhere: ForeignCommits | None = None, redaction: Redaction = NO_REDACTION
) -> Archive:
    """The archive at an address; nothing is connected yet.

    ``elsewhere`` is that of the sessions in the same file, and ``redaction`` what is never kept. Raises
    ValueError for an address that names none, without the address: it may hold a password.
    """
    dialect = SQLITE if _is_file(url) else POSTGRES
    shelf = RowCodec(codec, Lexicon(codec.derived(b"index")), dialect, redaction)
    return Archive(_database(url, elsewhere), shelf, FactCache(elsewhere))


def _database(url: str, elsewhere: ForeignCommits | None) -> Database:
    if not is_archive(url):
        raise ValueError("no archive is addressed like this; write sqlite:PATH or postgresql://…")
    if _is_file(url):
        path = url.removeprefix("sqlite:")
        if not path or path.startswith("//") or "\0" in path:
            raise ValueError("write sqlite:PATH, such as sqlite:archive.db or sqlite:/data/archive.db")
        sqlite: Database = _SQLITE.load()(Path(path), elsewhere)
        return sqlite
    try:
        postgres: Database = _POSTGRES.load()(url)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"postgresql: needs the module {error.name}; install turnkeeper[postgres]"
        ) from error
    return postgres


def _is_file(url: str) -> bool:
    return url.startswith("sqlite:")
