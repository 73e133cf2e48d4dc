"""Every place that holds a person's words, and how they leave it."""

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from proxy.memory.archive.archive import Archive
from proxy.memory.archive.lexicon import Scope
from proxy.memory.contents import contents
from proxy.memory.session import Entry, Session, decode, encode, message_of
from proxy.memory.sql import log
from proxy.memory.store import Key, Store, StoreError

_AT_ONCE: Final = 100
_ATTEMPTS: Final = 10


class Holding(Protocol):
    """One place that holds words of persons. Every method may raise StoreError."""

    async def exported(self, person: Scope) -> Mapping[str, Sequence[Any]]:
        """All that it holds of a person, by what it is, ready for JSON."""
        ...

    async def forget(self, person: Scope, *, at: float) -> int:
        """Removes all of it; what arrived before ``at`` and comes later is refused. How much there was."""
        ...

    async def forget_session(self, key: Key, *, at: float) -> int:
        """Removes all of one session, whoever's it is, in the same way."""
        ...

    async def scrub(self) -> None:
        """Nothing that was removed can be read from its own files any more."""
        ...


class People:
    """The registry: whoever keeps a person's words anywhere adds a holding to it."""

    def __init__(self, holdings: Sequence[Holding]) -> None:
        self._holdings = holdings

    async def exported(self, person: Scope) -> dict[str, Any]:
        """All that is held of a person, by where it is held."""
        found: dict[str, Any] = {"user": person.person}
        for holding in self._holdings:
            found |= await holding.exported(person)
        return found

    async def forget(self, person: Scope) -> int:
        """Removes all that is held of a person; how much there was."""
        at = time.time()
        count = sum([await holding.forget(person, at=at) for holding in self._holdings])
        await self._scrub()
        return count

    async def forget_session(self, tenant: str, session: str) -> int:
        """Removes all that is held of a session; how much there was."""
        at, key = time.time(), Key(tenant, session)
        count = sum([await holding.forget_session(key, at=at) for holding in self._holdings])
        await self._scrub()
        return count

    async def _scrub(self) -> None:
        """Each place is tried, whatever another says; then the first that failed is told of."""
        failures: list[StoreError] = []
        for holding in self._holdings:
            try:
                await holding.scrub()
            except StoreError as failure:
                failures.append(failure)
        if failures:
            raise failures[0]


class HeldSessions:
    """The sessions of which somebody is the person; of others, what the person said in them.

    ``file`` is where they are, if they are in a file.
    """

    def __init__(self, store: Store, *, ttl: float, file: Path | None = None) -> None:
        self._store = store
        self._ttl = ttl
        self._file = file

    async def exported(self, person: Scope) -> Mapping[str, Sequence[Any]]:
        """As the protocol has it."""
        sessions = []
        async for key, session, _ in self._with(person):
            entries = [*await self._cold(key, session), *session.entries]
            if session.user != person.person:
                entries = [entry for entry in entries if entry.user == person.person]
            sessions.append({"id": key.session, "contents": contents(entries)})
        return {"sessions": sessions}

    async def forget(self, person: Scope, *, at: float) -> int:  # noqa: ARG002 - the store knows when
        """As the protocol has it."""
        count = 0
        async for key, session, _ in self._with(person):
            if session.user == person.person:
                count += await self._store.delete(key)
            else:
                await self._take_out(key, person)
                count += 1
        return count

    async def forget_session(self, key: Key, *, at: float) -> int:  # noqa: ARG002 - the store knows when
        """As the protocol has it."""
        return int(await self._store.delete(key))

    async def scrub(self) -> None:
        """As the protocol has it."""
        if self._file:
            await log.empty(self._file)

    async def _with(self, person: Scope) -> AsyncIterator[tuple[Key, Session, int]]:
        after = ""
        while page := await self._store.list(person.tenant, after=after, limit=_AT_ONCE):
            for line in page:
                key = Key(person.tenant, line.session)
                held = await self._store.read(key)
                session = decode(held.blob) if held else Session()
                if held and await self._concerns(key, session, person.person):
                    yield key, session, held.version
            after = page[-1].session

    async def _concerns(self, key: Key, session: Session, name: str) -> bool:
        if session.user == name:
            return True
        return any(entry.user == name for entry in (*session.entries, *await self._cold(key, session)))

    async def _cold(self, key: Key, session: Session) -> list[Entry]:
        if not session.moved:
            return []
        blobs = await self._store.cold(key, limit=session.moved)
        return [msgspec.msgpack.decode(blob, type=Entry) for blob in blobs]

    async def _take_out(self, key: Key, person: Scope) -> None:
        """Of a session that is another's, what the person said."""
        for _ in range(_ATTEMPTS):
            held = await self._store.read(key)
            if held is None:
                return
            session = decode(held.blob)
            cold = [entry for entry in await self._cold(key, session) if entry.user != person.person]
            kept = tuple(entry for entry in session.entries if entry.user != person.person)
            told = None if session.told and session.told.person == person.person else session.told
            blob = encode(msgspec.structs.replace(session, entries=kept, moved=len(cold), told=told))
            moved = [msgspec.msgpack.encode(entry) for entry in cold]
            if await self._store.replace(key, blob, version=held.version, ttl=self._ttl, cold=moved):
                return


class Archived:
    """Turns and facts in the archive, and their words in its index."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    async def exported(self, person: Scope) -> Mapping[str, Sequence[Any]]:
        """As the protocol has it; facts that have been replaced are among them."""
        turns: list[dict[str, Any]] = []
        after = 0
        while page := await self._archive.turns(person, after=after):
            turns += [
                {"session_id": turn.session, "timestamp": turn.at, "message": message_of(turn.entry)}
                for _, turn in page
            ]
            after = page[-1][0]
        return {"turns": turns, "facts": await self._archive.facts(person, now=0.0, superseded=True)}

    async def forget(self, person: Scope, *, at: float) -> int:
        """As the protocol has it."""
        return await self._archive.forget(person, at=at)

    async def forget_session(self, key: Key, *, at: float) -> int:
        """As the protocol has it."""
        return await self._archive.forget_session(key, at=at)

    async def scrub(self) -> None:
        """As the protocol has it."""
        await self._archive.scrub()
