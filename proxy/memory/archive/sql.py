"""The archive in SQL, whichever database carries it out."""

from collections.abc import Sequence
from functools import partial
from typing import TypeVar

from proxy.memory.archive import documents, facts, meanings, oblivion, search, turns, unplaced
from proxy.memory.archive.archive import Buried, Chunk, Fact, Found, Query, Removed, Turn, Unmeant
from proxy.memory.archive.database import Database, Work
from proxy.memory.archive.latest import Latest
from proxy.memory.archive.shelf import Shelf
from proxy.memory.archive.vector import Vector
from proxy.memory.session import Entry, Session
from proxy.memory.stores.store import Key, Owner

T = TypeVar("T")


class SqlArchive:
    """Every method is one transaction, and does as the protocol has it."""

    def __init__(self, database: Database, shelf: Shelf, latest: Latest | None = None) -> None:
        self._database = database
        self._shelf = shelf
        self._latest = latest or Latest()

    async def keep(self, key: Key, session: Session, *, mark: float) -> int:
        """As the protocol has it: a look at what is there, then what has changed."""
        return await self._database.write(partial(turns.keep, self._shelf, key, session, mark=mark))

    async def keep_moved(self, key: Key, session: Session, moved: Sequence[Entry], *, start: int) -> None:
        """As the protocol has it."""
        work = partial(turns.keep_moved, self._shelf, key, session, moved, start=start)
        await self._database.write(work)

    async def marks(self, tenant: str) -> dict[str, float]:
        """As the protocol has it."""
        return await self._database.read(partial(turns.marks, tenant))

    async def search(self, person: Owner, query: Query) -> list[Found]:
        """As the protocol has it."""
        return await self._database.read(partial(search.search, self._shelf, person, query))

    async def unmeant(self, model: str, *, limit: int) -> list[Unmeant]:
        """As the protocol has it."""
        return await self._database.read(partial(meanings.unmeant, self._shelf, model, limit))

    async def add_vectors(self, model: str, vectors: Sequence[tuple[Unmeant, Vector | None]]) -> None:
        """As the protocol has it."""
        await self._database.write(partial(meanings.add_vectors, self._shelf, model, vectors))

    async def turns(self, person: Owner, *, after: int = 0, limit: int = 1000) -> list[tuple[int, Turn]]:
        """As the protocol has it."""
        return await self._database.read(partial(turns.turns, self._shelf, person, after, limit))

    async def last_talk(self, person: Owner, *, limit: int) -> list[Turn]:
        """As the protocol has it."""
        return await self._database.read(partial(turns.last_talk, self._shelf, person, limit))

    async def turns_of(self, key: Key, *, start: int = 0, limit: int = 10_000) -> list[Turn]:
        """As the protocol has it."""
        return await self._database.read(partial(turns.turns_of, self._shelf, key, start, limit))

    async def talks(self, tenant: str, *, after: str = "", limit: int = 100) -> dict[str, float]:
        """As the protocol has it."""
        return await self._database.read(partial(turns.talks, tenant, after, limit))

    async def forget(self, person: Owner, *, at: float) -> Removed:
        """As the protocol has it."""
        return await self._rewritten(partial(oblivion.forget, person, at=at))

    async def forget_session(self, key: Key, *, at: float) -> int:
        """As the protocol has it."""
        return await self._rewritten(partial(oblivion.forget_session, key, at=at))

    async def forget_strangers(self, key: Key, *, at: float) -> int:
        """As the protocol has it."""
        return await self._rewritten(partial(oblivion.forget_strangers, key, at=at))

    async def buried(self, tenant: str, *, since: float, until: float) -> Buried:
        """As the protocol has it."""
        return await self._database.read(partial(oblivion.buried, tenant, since=since, until=until))

    async def add_fact(self, person: Owner, fact: Fact) -> None:
        """As the protocol has it."""
        await self._rewritten(partial(facts.add_fact, self._shelf, person, fact))

    async def facts(self, person: Owner, *, now: float, superseded: bool = False) -> list[Fact]:
        """As the protocol has it."""
        work = partial(facts.facts, self._shelf, person, now=now, superseded=superseded)
        return await self._database.glance(work)

    def facts_at_once(self, person: Owner, *, now: float) -> list[Fact] | None:
        """As the protocol has it."""
        work = partial(facts.facts, self._shelf, person, now=now, superseded=False)
        return self._latest.of(person, lambda: self._database.at_once(work), now=now)

    async def remove_fact(self, person: Owner, fact: str) -> bool:
        """As the protocol has it."""
        return await self._rewritten(partial(facts.remove_fact, person, fact))

    async def add_document(self, tenant: str, path: str, chunks: Sequence[Chunk], *, at: float) -> None:
        """As the protocol has it."""
        await self._database.write(partial(documents.add_document, self._shelf, tenant, path, chunks, at=at))

    async def documents(self, tenant: str) -> list[str]:
        """As the protocol has it."""
        return await self._database.read(partial(documents.documents, tenant))

    async def remove_document(self, tenant: str, path: str) -> bool:
        """As the protocol has it."""
        return await self._database.write(partial(documents.remove_document, tenant, path))

    async def sweep(self, *, before: float, limit: int = 200) -> int:
        """As the protocol has it."""
        return await self._database.write(partial(oblivion.sweep, before=before, limit=limit))

    async def expire(self, *, now: float, limit: int = 200) -> int:
        """As the protocol has it."""
        return await self._rewritten(partial(oblivion.expire, self._shelf, now=now, limit=limit))

    async def reindex(self, *, limit: int = 20) -> int:
        """As the protocol has it."""
        placed = await self._database.write(partial(unplaced.place, self._shelf))
        return placed or await self._database.write(partial(meanings.reindex, self._shelf, limit))

    async def scrub(self) -> None:
        """As the protocol has it."""
        await self._database.scrub()

    async def ping(self) -> None:
        """As the protocol has it."""
        await self._database.ping()

    async def aclose(self) -> None:
        """As the protocol has it."""
        await self._database.aclose()

    async def _rewritten(self, work: Work[T]) -> T:
        """As the database writes; what was known of facts is known no more."""
        try:
            return await self._database.write(work)
        finally:
            self._latest.clear()
