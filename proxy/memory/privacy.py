"""Every place that holds a person's words, and how they leave it."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from proxy.memory.align import forgotten
from proxy.memory.errors import StoreError, UnreadableSessions
from proxy.memory.interchange import contents, summaries
from proxy.memory.session import UNREADABLE, Entry, Session
from proxy.memory.stores import sqlite_file
from proxy.memory.stores.session_store import NOT_STORED, SessionStore, SessionWrite
from proxy.memory.stores.store import KEEP_EXPIRY, Key, Owner

_AT_ONCE: Final = 100
_ATTEMPTS: Final = 10


class DataHolder(Protocol):
    """One place that holds words of persons. Every method may raise StoreError."""

    async def exported(self, person: Owner) -> Mapping[str, Sequence[Any]]:
        """All that it holds of a person, by what it is, ready for JSON."""
        ...

    async def forget(self, person: Owner, *, at: float) -> Mapping[str, int]:
        """Removes all of it; what arrived before ``at`` and comes later is refused.

        How much there was, by what it is.
        """
        ...

    async def forget_session(self, key: Key, *, at: float) -> Mapping[str, int]:
        """Removes all of one session, whoever's it is, in the same way."""
        ...

    async def scrub(self) -> None:
        """Nothing that was removed can be read from its own files any more."""
        ...


class PrivacyRegistry:
    """The registry: whoever keeps a person's words anywhere adds a holding to it."""

    def __init__(self, holdings: Sequence[DataHolder]) -> None:
        self._holdings = holdings

    async def exported(self, person: Owner) -> dict[str, Any]:
        """All that is held of a person, by what it is; several places may hold some of the same kind."""
        found: dict[str, list[Any]] = {"sessions": [], "turns": [], "facts": []}
        for holding in self._holdings:
            for kind, held in (await holding.exported(person)).items():
                found.setdefault(kind, []).extend(held)
        return {"user": person.user, **found}

    async def forget(self, person: Owner) -> Mapping[str, int]:
        """Removes all that is held of a person; how much there was, by what it is.

        Raises UnreadableSessions, once all else is gone, for sessions that cannot be read.
        """
        at = time.time()
        return await self._everywhere(holding.forget(person, at=at) for holding in self._holdings)

    async def forget_session(self, tenant: str, session: str) -> Mapping[str, int]:
        """Removes all that is held of a session; how much there was, by what it is."""
        at, key = time.time(), Key(tenant, session)
        return await self._everywhere(holding.forget_session(key, at=at) for holding in self._holdings)

    async def _everywhere(self, works: Iterable[Awaitable[Mapping[str, int]]]) -> Mapping[str, int]:
        """What all of them removed; one that fails holds up no other, and is told of at the end."""
        count, faults = Counter(sessions=0, turns=0, facts=0), list[StoreError]()
        for work in works:
            try:
                count.update(await work)
            except StoreError as fault:
                faults.append(fault)
        await self._scrub()
        if faults:
            # What may be over when it is tried again goes before what will not.
            raise min(faults, key=lambda fault: isinstance(fault, UnreadableSessions))
        return count

    async def _scrub(self) -> None:
        """The same for what is left in their files."""
        faults: list[StoreError] = []
        for holding in self._holdings:
            try:
                await holding.scrub()
            except StoreError as fault:
                faults.append(fault)
        if faults:
            raise faults[0]


class SessionHolder:
    """The sessions of which somebody is the person; of others, what the person said in them.

    ``file`` is where they are, if they are in a file.
    """

    def __init__(self, store: SessionStore, *, file: Path | None = None) -> None:
        self._store = store
        self._file = file

    async def exported(self, person: Owner) -> Mapping[str, Sequence[Any]]:
        """As the protocol has it; sessions that cannot be read are named."""
        told, unread = list[dict[str, Any]](), list[str]()
        async for key in self._keys(person.tenant):
            try:
                told += await self._told(key, person)
            except UNREADABLE:
                unread.append(key.session)
        return {"sessions": told} | ({"unreadable_sessions": unread} if unread else {})

    async def forget(self, person: Owner, *, at: float) -> Mapping[str, int]:  # noqa: ARG002 - the store knows when
        """As the protocol has it; a session that cannot be read or written holds up no other."""
        count, faults, unread = 0, list[StoreError](), list[str]()
        async for key in self._keys(person.tenant):
            try:
                count += await self._forget(key, person)
            except UNREADABLE:
                unread.append(key.session)
            except StoreError as fault:
                faults.append(fault)
        if faults:
            raise StoreError(f"{len(faults)} sessions are left that may hold words of theirs: {faults[0]}")
        if unread:
            raise UnreadableSessions(unread)
        return {"sessions": count}

    async def forget_session(self, key: Key, *, at: float) -> Mapping[str, int]:  # noqa: ARG002 - the store knows when
        """As the protocol has it."""
        return {"sessions": int(await self._store.delete(key))}

    async def scrub(self) -> None:
        """As the protocol has it."""
        if self._file:
            await sqlite_file.empty_log(self._file)

    async def _keys(self, tenant: str) -> AsyncIterator[Key]:
        after = ""
        while page := await self._store.list(tenant, after=after, limit=_AT_ONCE):
            for line in page:
                yield Key(tenant, line.session)
                await asyncio.sleep(0)  # a store in this process would hold up all calls
            after = page[-1].session

    async def _told(self, key: Key, person: Owner) -> Sequence[dict[str, Any]]:
        """What is held of a person in a session, if anything."""
        session, _ = await self._store.load(key, background=True) or NOT_STORED
        entries = await self._store.entries(key, session)
        is_theirs = session.user == person.user
        said = [entry for entry in entries if is_theirs or entry.speaker == person.user]
        return [_shown(key, session, said, is_theirs=is_theirs)] if is_theirs or said else []

    async def _forget(self, key: Key, person: Owner) -> bool:
        """Whether a person had something in a session: their own goes, of another's what they said in it."""
        for _ in range(_ATTEMPTS):
            session, version = await self._store.load(key, background=True) or NOT_STORED
            if session.user == person.user:
                return await self._store.delete(key)
            entries = await self._store.entries(key, session)
            if not version or all(entry.speaker != person.user for entry in entries):
                return False
            left, cold = _without(session, entries, person.user)
            if await self._store.overwrite(key, SessionWrite(left, version, KEEP_EXPIRY, cold)):
                return True
        raise StoreError("others are writing this session")


def _shown(key: Key, session: Session, said: Sequence[Entry], *, is_theirs: bool) -> dict[str, Any]:
    """What was said in a session; with its summaries and its state, where they tell of this person alone."""
    own = session if is_theirs else Session()
    told = summaries(own, said)
    whose = {"user": own.user} if is_theirs else {}
    return {"id": key.session, **whose, "contents": contents(said), "summaries": told, "state": own.state}


def _without(session: Session, entries: Sequence[Entry], name: str) -> tuple[Session, Sequence[Entry]]:
    """The session without what one of its speakers said, and its cold part; ``entries`` are all it holds.

    Where summaries stand for some of it, they go, and all turns are held ready for new ones.
    """
    told = None if session.shown_facts and session.shown_facts.user == name else session.shown_facts
    session = forgotten.forget_entries(session, (e for e in entries if e.speaker == name), now=time.time())
    kept = tuple(entry for entry in entries if entry.speaker != name)
    if any(entry.speaker == name and entry.turn_ref <= session.summarized_until for entry in entries):
        return msgspec.structs.replace(
            session, entries=kept, cold_count=0, summaries=(), shown_facts=told
        ), ()
    hot = tuple(entry for entry in session.entries if entry.speaker != name)
    cold = kept[: len(kept) - len(hot)]
    return msgspec.structs.replace(session, entries=hot, cold_count=len(cold), shown_facts=told), cold
