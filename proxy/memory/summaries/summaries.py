"""Who makes the segment that a plan asks for: a model, or rules."""

import time
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from filters.message import Message
from proxy.memory.errors import NoSummaryModel, WriteConflict
from proxy.memory.interchange import imported
from proxy.memory.redaction.view import UNREDACTED, WindowRedaction
from proxy.memory.session import Entry, Segment, Session, entries_fingerprint, made_anew
from proxy.memory.speakers import named
from proxy.memory.stores.session_store import SessionStore, SessionWrite, StoredSession
from proxy.memory.stores.store import KEEP_EXPIRY, Key
from proxy.memory.summaries.compaction import (
    Plan,
    Window,
    digest_segment,
    forced_plan,
    insert_segment,
    make_segment,
    next_plan,
    settle,
)

_TAKEN_BACK: Final = "(All of it was taken back.)"
_ATTEMPTS: Final = 10


class WrittenNotes(NamedTuple):
    """What a model wrote, and which one."""

    text: str
    model: str


class SummaryWriter(Protocol):
    """Whoever writes summaries. Both raise SummaryFailed."""

    async def notes(
        self, said: Sequence[Entry], earlier: Sequence[str], *, last: str | None, fallback: str = ""
    ) -> WrittenNotes:
        """Notes on what was said; ``earlier`` are those on what was said before it."""
        ...

    async def merge(self, notes: Sequence[str], *, last: str | None) -> WrittenNotes:
        """One text in the place of several."""
        ...


class Author(NamedTuple):
    """A writer, and which model it falls back to, if not to its own; without a writer, rules make digests."""

    writer: SummaryWriter | None = None
    fallback: str = ""

    async def made(self, session: Session, plan: Plan, entries: Sequence[Entry]) -> Segment:
        """What stands for those ``entries`` of a plan, or for several segments; raises SummaryFailed."""
        told = [entry for entry in entries if plan.covers(entry)]
        if self.writer is None or not plan.merge:
            return await self.noted(session, plan, told)
        former = [one.text for one in session.summaries[plan.first : plan.last]]
        notes = await self.writer.merge(former, last=session.model)
        return make_segment(session, plan, told, notes.text, now=time.time(), model=notes.model)

    async def noted(self, session: Session, plan: Plan, told: Sequence[Entry]) -> Segment:
        """What stands for what was told. Raises SummaryFailed."""
        now = time.time()
        if self.writer is None:
            return digest_segment(session, plan, told, now=now)
        if not told:
            return make_segment(session, plan, told, _TAKEN_BACK, now=now)
        said, earlier = named(session, told), [one.text for one in session.summaries[: plan.first]]
        notes = await self.writer.notes(said, earlier, last=session.model, fallback=self.fallback)
        return make_segment(session, plan, told, notes.text, now=now, model=notes.model)


DIGESTS: Final = Author()
"""Whoever makes no use of a model."""


class Summaries:
    """Summaries of the sessions in a store; without a writer they are digests. ``veil`` is over all of it."""

    name: Final = "summaries"
    delay: Final = 0.0
    has_fallback: Final = True

    def __init__(
        self,
        store: SessionStore,
        window: Window,
        writer: SummaryWriter | None = None,
        veil: WindowRedaction = UNREDACTED,
    ) -> None:
        self._veil = veil
        self._store = store
        self._window = window
        self._author = Author(writer)

    # --- what is due in the background

    def is_due(self, session: Session) -> bool:
        """Whether there is anything to summarise."""
        return self._due(session, self._author) is not None

    async def run(self, key: Key, unusable: int) -> bool:  # noqa: ARG002 - a summary is never given up
        """Makes the one summary that is due, if any; whether there was one. Raises SummaryFailed."""
        session = await self._read(key)
        plan = self._due(session, self._author) if session else None
        if session and plan:
            await self._make(key, session, plan, self._author)
        return plan is not None

    async def run_fallback(self, key: Key) -> None:
        """Puts a digest where a summary is due, until a model answers."""
        session = await self._read(key)
        plan = self._due(session, self._author) if session else None
        if session and plan and not _stands_in(session, plan):
            await self._make(key, session, plan, DIGESTS)

    # --- what is asked for

    async def summarize(
        self, key: Key, messages: Sequence[Message] | None = None, fallback_model: str = ""
    ) -> bool:
        """Summarises now, by a digest where no model is named; whether there was anything.

        Raises SummaryFailed.

        With ``messages`` these are summarised, which overflowed elsewhere, and a session is made for their
        summary where there is none; else the session's own turns.
        """
        try:
            return await self._summarized(key, messages, self._author._replace(fallback=fallback_model))
        except NoSummaryModel:
            return await self._summarized(key, messages, DIGESTS)

    async def get_summaries(self, key: Key) -> tuple[Segment, ...]:
        """All summaries of a session, oldest first."""
        session = await self._read(key)
        return session.summaries if session else ()

    async def get_context_string(self, key: Key) -> str:
        """All summaries as one text; empty where there are none."""
        return "\n".join(segment.text for segment in await self.get_summaries(key))

    async def clear(self, key: Key) -> None:
        """Takes the summaries away: the turns that they stood for are held ready again."""
        for _ in range(_ATTEMPTS):
            stored = await self._store.load(key, background=True)
            if stored is None or not stored.session.summaries:
                return
            session = stored.session
            entries = await self._store.entries(key, session)
            bare = msgspec.structs.replace(session, entries=entries, cold_count=0, summaries=())
            if await self._store.overwrite(key, SessionWrite(bare, stored.version, KEEP_EXPIRY)):
                return
        raise WriteConflict

    # --- how it is done

    def _due(self, session: Session, author: Author) -> Plan | None:
        return next_plan(session, self._window, model=author.writer is not None)

    async def _summarized(self, key: Key, messages: Sequence[Message] | None, author: Author) -> bool:
        session = await self._read(key)
        if messages is not None:
            return await self._add(key, session, messages, author)
        if session is None:
            return False
        plan = self._due(session, author) or forced_plan(session, self._window)
        if plan is not None:
            await self._make(key, session, plan, author)
        return plan is not None

    async def _read(self, key: Key) -> Session | None:
        stored = await self._store.load(key, background=True)
        return stored.session if stored else None

    async def _make(self, key: Key, planned: Session, plan: Plan, author: Author) -> None:
        """Makes one segment and saves it, again where the turns that it stands for were changed meanwhile.

        A session that is not the one that was ``planned`` for, or has other summaries, is left alone.
        """
        for _ in range(_ATTEMPTS):
            session = await self._read(key)
            if session is None or not _is_open(session, plan, planned):
                return
            said = await self._store.entries(key, session)
            made = await author.made(session, plan, said)
            if await self._save(key, plan, made, session):
                return
        raise WriteConflict

    async def _save(self, key: Key, plan: Plan, made: Segment, former: Session) -> bool:
        """Whether it is saved; it is not where what it stands for is no longer what it was made from."""
        for _ in range(_ATTEMPTS):
            stored = await self._store.load(key, background=True)
            if stored is None:
                return True
            session = stored.session
            told = [e for e in await self._store.entries(key, session) if plan.covers(e)]
            if not _is_open(session, plan, former):
                return True  # somebody else was faster, or it is another session
            if not plan.merge and entries_fingerprint(told) != made.fingerprint:
                return False
            if await self._write(key, insert_segment(session, plan, made), stored.version, ttl=KEEP_EXPIRY):
                return True
        raise WriteConflict

    async def _add(
        self, key: Key, former: Session | None, messages: Sequence[Message], author: Author
    ) -> bool:
        """Appends what stands for messages that are no turns of the session; ``None`` is none as yet."""
        now = time.time()
        told = imported(self._veil.window(messages), now=now).entries
        session = former or Session(created=now, updated=now)
        plan = Plan(
            len(session.summaries), len(session.summaries), session.summarized_until, session.summarized_until
        )
        if not told:
            return False
        made = await author.noted(session, plan, told)
        for _ in range(_ATTEMPTS):
            stored = await self._store.load(key, background=True)
            if former and (stored is None or made_anew(stored.session, former)):
                return False
            if await self._append(key, made, *(stored or StoredSession(session, 0))):
                return True
        raise WriteConflict

    async def _append(self, key: Key, made: Segment, session: Session, version: int) -> bool:
        end, reach = len(session.summaries), session.summarized_until
        own = msgspec.structs.replace(made, call=reach.call, turn=reach.turn, added=made.text)
        longer = insert_segment(session, Plan(end, end, reach, reach), own)
        return await self._write(key, longer, version, ttl=self._window.ttl)

    async def _write(self, key: Key, session: Session, version: int, *, ttl: float) -> bool:
        kept, cold = settle(session, self._window.keep_messages)
        return await self._store.save(key, SessionWrite(kept, version, ttl, cold, background=True))


def _stands_in(session: Session, plan: Plan) -> bool:
    """Whether there stands already, where a summary is to be put, what will do until a model answers."""
    former = session.summaries[plan.first : plan.last]
    return plan.merge or any(one.digest and not one.stale for one in former)


def _is_open(session: Session, plan: Plan, former: Session) -> bool:
    """Whether the place that a plan names is as it was when the plan was made."""
    before, now = ([(one.text, one.end) for one in of.summaries[: plan.last]] for of in (former, session))
    in_place = plan.first < plan.last or session.summarized_until == plan.behind
    return in_place and before == now and not made_anew(session, former)
