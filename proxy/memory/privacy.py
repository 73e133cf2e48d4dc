"""Exports all stored data of a user, and erases it everywhere."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from proxy.clock import wall_time
from proxy.memory.align import deletion
from proxy.memory.errors import StoreError, Unreadable, UnreadableSessions, WriteConflict
from proxy.memory.extensible import NO_FIELDS
from proxy.memory.interchange import contents, summaries
from proxy.memory.session import START, Entry, Session
from proxy.memory.speakers import users_of
from proxy.memory.stores import sqlite_file
from proxy.memory.stores.session_store import NOT_STORED, SessionStore, SessionWrite
from proxy.memory.stores.store import KEEP_EXPIRY, Key, Owner, all_sessions
from proxy.memory.tasks import in_thread_if_long

_ATTEMPTS: Final = 10


class DataHolder(Protocol):
    """A place that stores words of users. Every method may raise StoreError."""

    async def export(self, user: Owner) -> Mapping[str, Sequence[Any]]:
        """Returns all stored data of a user by kind, ready for JSON."""
        ...

    async def forget(self, user: Owner, *, at: float) -> Mapping[str, int]:
        """Erases a user's data and refuses later writes from before ``at``; returns counts by kind."""
        ...

    async def forget_session(self, key: Key, *, at: float) -> Mapping[str, int]:  # noqa: ARG002 - for holders of them
        """Erases one session of any user in the same way; without data of sessions, nothing."""
        return {}

    async def scrub(self) -> None:
        """Makes erased data unreadable in the holder's own files, if it has any."""
        return


class PrivacyRegistry:
    """All places that store words of users."""

    def __init__(self, holders: Sequence[DataHolder]) -> None:
        self._holders = holders

    async def export(self, user: Owner) -> dict[str, Any]:
        """Returns all stored data of a user by kind, merged from all places."""
        data: dict[str, list[Any]] = {"sessions": [], "turns": [], "facts": []}
        for holder in self._holders:
            for kind, items in (await holder.export(user)).items():
                data.setdefault(kind, []).extend(items)
        return {"user": user.user, **data}

    async def forget(self, user: Owner) -> Mapping[str, int]:
        """Erases all stored data of a user; returns counts by kind.

        Raises StoreError once the rest is erased; UnreadableSessions for sessions that cannot be read.
        """
        at = wall_time()
        return await self._erase(holder.forget(user, at=at) for holder in self._holders)

    async def forget_session(self, tenant: str, session: str) -> Mapping[str, int]:
        """Erases all stored data of a session; returns counts by kind."""
        at, key = wall_time(), Key(tenant, session)
        return await self._erase(holder.forget_session(key, at=at) for holder in self._holders)

    async def _erase(self, erasures: Iterable[Awaitable[Mapping[str, int]]]) -> Mapping[str, int]:
        """Erases and scrubs all places; returns counts by kind. Errors are raised at the end."""
        count, errors = Counter(sessions=0, turns=0, facts=0), list[StoreError]()
        for erasure in erasures:
            try:
                count.update(await erasure)
            except StoreError as error:
                errors.append(error)
        scrubbing: list[StoreError] = []
        for holder in self._holders:
            try:
                await holder.scrub()
            except StoreError as error:
                scrubbing.append(error)
        if scrubbing:
            raise scrubbing[0]
        if errors:
            # Errors that another try may solve come first.
            raise min(errors, key=lambda error: isinstance(error, UnreadableSessions))
        return count


class SessionHolder:
    """A user's sessions, and the user's words in sessions of others.

    ``file`` is the sessions' file, if they have one. ``begin`` is called before the sessions of a user are
    listed, refuses writes that are under way, and returns its own counts. ``erased`` is called with each
    session from which something was erased, and with the user.
    """

    def __init__(
        self,
        store: SessionStore,
        *,
        file: Path | None = None,
        begin: Callable[[Owner], Awaitable[Mapping[str, int]]] | None = None,
        erased: Callable[[Key, str], Awaitable[None]] | None = None,
    ) -> None:
        self._store = store
        self._file = file
        self._begin = begin
        self._erased = erased

    async def export(self, user: Owner) -> Mapping[str, Sequence[Any]]:
        """Returns the user's sessions and lines, and the names of sessions that cannot be read."""
        exported, unreadable = list[dict[str, Any]](), list[str]()
        async for listed in all_sessions(self._store, user.tenant):
            key = Key(user.tenant, listed.session)
            try:
                session = await self._store.session(key) or Session()
                entries: Sequence[Entry] = await self._store.entries(key, session)
            except Unreadable:
                unreadable.append(key.session)
                continue
            fields: dict[str, Any] = {"id": key.session}
            if session.user == user.user:
                fields["user"] = session.user
            else:
                # Summaries and state of another user's session may contain data of others.
                session, entries = Session(), [e for e in entries if e.speaker == user.user]
                if not entries:
                    continue
            exported.append(
                fields | await in_thread_if_long(partial(_exported, session, entries), len(entries))
            )
        return {"sessions": exported} | ({"unreadable_sessions": unreadable} if unreadable else {})

    async def forget(self, user: Owner, *, at: float) -> Mapping[str, int]:  # noqa: ARG002 - the store knows when
        """Erases the user's sessions and lines; errors are raised once all sessions were tried."""
        begun = await self._begin(user) if self._begin else {}
        count, errors, unreadable = 0, list[StoreError](), list[str]()
        async for listed in all_sessions(self._store, user.tenant):
            key = Key(user.tenant, listed.session)
            try:
                if await erase_from_session(self._store, key, user.user):
                    count += 1
                    if self._erased:
                        await self._erased(key, user.user)
            except Unreadable:
                unreadable.append(key.session)
            except StoreError as error:
                errors.append(error)
        if errors:
            raise StoreError(f"{len(errors)} sessions remain that may contain the user's words: {errors[0]}")
        if unreadable:
            raise UnreadableSessions(unreadable)
        return {"sessions": count, **begun}

    async def forget_session(self, key: Key, *, at: float) -> Mapping[str, int]:  # noqa: ARG002 - the store knows when
        """Deletes a session, and removes it from the prompts of other sessions."""
        count = int(await self._store.delete(key))
        async for listed in all_sessions(self._store, key.tenant):
            with suppress(Unreadable):  # an unreadable session is in no prompt
                other = Key(key.tenant, listed.session)
                await self._store.change(other, partial(_without_call, earlier=key.session))
        return {"sessions": count}

    async def scrub(self) -> None:
        """Empties the write-ahead log of the sessions' file."""
        if self._file:
            await sqlite_file.empty_log(self._file)


async def erase_from_session(store: SessionStore, key: Key, user: str) -> bool:
    """Deletes a user's session; removes the user's words, and facts about the user, from another's.

    Returns whether there was anything. Raises StoreError.
    """
    for _ in range(_ATTEMPTS):
        session, version, _ = await store.load(key, background=True) or NOT_STORED
        if session.user == user:
            return await store.delete(key)
        entries = await store.entries(key, session)
        if user not in users_of(session, entries):
            return False
        changed, cold = _without_speaker(session, entries, user)
        if await store.overwrite(key, SessionWrite(changed, version, KEEP_EXPIRY, cold)):
            return True
    raise WriteConflict


def _without_call(session: Session, earlier: str) -> Session:
    """Returns a session whose prompts do not show a call in the session ``earlier``."""
    if session.shown_call is None or session.shown_call.session != earlier:
        return session
    return msgspec.structs.replace(session, shown_call=None)


def _exported(session: Session, entries: Sequence[Entry]) -> dict[str, Any]:
    return {
        "contents": contents(entries),
        "summaries": summaries(session, entries),
        "state": session.state,
    }


def _without_speaker(
    session: Session, entries: Sequence[Entry], name: str
) -> tuple[Session, Sequence[Entry]]:
    """Returns a session without the words of a speaker, and its cold part; ``entries`` are all its entries.

    If a summary covers the speaker's words, all summaries are removed, and all turns return to the hot part,
    to be summarised again. Text added to the summaries stays if it is only by others.
    """
    facts, shown = session.shown_facts, session.shown_call
    if facts and facts.user == name:
        facts = None
    if shown and name in {shown.user, *shown.speakers}:
        shown = None
    spoken = [entry for entry in entries if entry.speaker == name]
    others = tuple(entry for entry in entries if entry.speaker != name)
    session = deletion.forget_entries(session, spoken, now=wall_time())
    # Unknown fields of a newer version may contain data of the speaker.
    changed = msgspec.structs.replace(session, shown_facts=facts, shown_call=shown, unknown_fields=NO_FIELDS)
    is_summarized = any(name in segment.speakers for segment in session.summaries)
    if is_summarized or any(entry.turn_ref <= session.summarized_until for entry in spoken):
        added = tuple(
            msgspec.structs.replace(
                each, text=each.added, call=START.call, turn=START.turn, messages=0, stale=False
            )
            for each in session.summaries
            if each.added and each.speakers and name not in each.speakers
        )
        return msgspec.structs.replace(changed, entries=others, cold_count=0, summaries=added), ()
    hot = tuple(entry for entry in session.entries if entry.speaker != name)
    cold = others[: len(others) - len(hot)]
    return msgspec.structs.replace(changed, entries=hot, cold_count=len(cold)), cold
