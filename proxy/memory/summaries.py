"""Summaries of the sessions in a store: written by a model, or extractive."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeVar

import msgspec

from filters.message import Message
from proxy.clock import wall_time
from proxy.memory.compaction import (
    Plan,
    SessionLimits,
    extractive_segment,
    fallback_plan,
    forced_plan,
    insert_segment,
    make_segment,
    merger_plan,
    next_plan,
    settle,
    without_overflow,
)
from proxy.memory.errors import NoSummaryModel, WriteConflict
from proxy.memory.interchange import session_from_messages
from proxy.memory.redacted_view import UNREDACTED, WindowRedaction
from proxy.memory.session import START, Entry, Segment, Session, entries_fingerprint, made_anew
from proxy.memory.speakers import with_speaker_names
from proxy.memory.stores.session_store import SessionStore, SessionWrite, StoredSession
from proxy.memory.stores.store import KEEP_EXPIRY, NEVER_DUE, Key
from proxy.memory.tasks import in_thread_if_long

T = TypeVar("T")

_RETRACTED: Final = "(All of it was taken back.)"
_ATTEMPTS: Final = 10


class WrittenNotes(NamedTuple):
    """Notes, and the model that wrote them."""

    text: str
    model: str


class SummaryWriter(Protocol):
    """Writes summaries with a model. All methods raise SummaryFailed."""

    async def notes(
        self, entries: Sequence[Entry], earlier: Sequence[str], *, last: str | None, fallback: str = ""
    ) -> WrittenNotes:
        """Writes notes on a transcript; ``earlier`` are the notes on the turns before it."""
        ...

    async def merge(self, notes: Sequence[str], *, last: str | None) -> WrittenNotes:
        """Writes one text that replaces several notes."""
        ...

    async def call_notes(
        self, entries: Sequence[Entry], earlier: Sequence[str], *, last: str | None
    ) -> WrittenNotes:
        """Writes notes on a whole call for the next one; ``earlier`` are those on its turns before."""
        ...


class Author(NamedTuple):
    """A writer, and a model that overrides its fallback; without a writer, summaries are extractive."""

    writer: SummaryWriter | None = None
    fallback: str = ""

    async def segment(self, session: Session, plan: Plan, entries: Sequence[Entry]) -> Segment:
        """Makes the segment of a plan from the ``entries`` that it covers. Raises SummaryFailed."""
        if self.writer is None or not plan.merge:
            return await self.notes(session, plan, entries)
        former = [segment.text for segment in session.summaries[plan.first : plan.last]]
        notes = await self.writer.merge(former, last=session.model)
        return make_segment(session, plan, entries, notes.text, now=wall_time(), model=notes.model)

    async def notes(self, session: Session, plan: Plan, entries: Sequence[Entry]) -> Segment:
        """Makes the segment of a plan from all ``entries``. Raises SummaryFailed."""
        now = wall_time()
        if self.writer is None:
            return await _off_loop(partial(extractive_segment, session, plan, entries, now=now), entries)
        if not entries:
            return make_segment(session, plan, entries, _RETRACTED, now=now)
        earlier = [segment.text for segment in session.summaries[: plan.first]]
        named = await _off_loop(partial(with_speaker_names, session, entries), entries)
        notes = await self.writer.notes(named, earlier, last=session.model, fallback=self.fallback)
        work = partial(make_segment, session, plan, entries, notes.text, now=now, model=notes.model)
        return await _off_loop(work, entries)


_DIGESTS: Final = Author()


class Summaries:
    """The background job that summarises sessions; without a writer, summaries are extractive."""

    name: Final = "summaries"

    def __init__(
        self,
        store: SessionStore,
        limits: SessionLimits,
        writer: SummaryWriter | None = None,
        redaction: WindowRedaction = UNREDACTED,
    ) -> None:
        self._redaction = redaction
        self._store = store
        self._limits = limits
        self._author = Author(writer)
        self._has_model = writer is not None

    # --- the background job

    def due_at(self, session: Session) -> float:
        """Returns 0 if there is anything to summarise, else ``NEVER_DUE``."""
        return 0.0 if next_plan(session, self._limits, model=self._has_model) else NEVER_DUE

    async def begin(self, key: Key, session: Session) -> Session:  # noqa: ARG002 - a model is asked
        """Returns the session unchanged."""
        return session

    async def run(self, key: Key, unusable: int) -> bool:  # noqa: ARG002 - a summary is never given up
        """Makes the next summary that is due; returns whether there was one. Raises SummaryFailed."""
        session = await self._store.session(key)
        plan = next_plan(session, self._limits, model=self._has_model) if session else None
        if session and plan:
            await self._make(key, session, plan, self._author)
        return plan is not None

    def fallback_is_due(self, session: Session) -> bool:
        """Whether a summary is due that cannot wait for a model."""
        return fallback_plan(session, self._limits) is not None

    async def run_fallback(self, key: Key) -> None:
        """Makes extractive summaries that last until a model answers."""
        while (session := await self._store.session(key)) and (plan := fallback_plan(session, self._limits)):
            await self._make(key, session, plan, _DIGESTS)

    # --- on request

    async def summarize(
        self, key: Key, messages: Sequence[Message] | None = None, fallback_model: str = ""
    ) -> bool:
        """Summarises a session now; returns whether there was anything to summarise. Raises SummaryFailed.

        Without a model the summary is extractive. With ``messages``, summarises these instead, which another
        window dropped; if there is no session, creates one for their summary.
        """
        try:
            return await self._summarize(key, messages, self._author._replace(fallback=fallback_model))
        except NoSummaryModel:
            return await self._summarize(key, messages, _DIGESTS)

    async def get_summaries(self, key: Key) -> tuple[Segment, ...]:
        """Reads all summaries of a session, the oldest first."""
        session = await self._store.session(key)
        return session.summaries if session else ()

    async def get_context_string(self, key: Key) -> str:
        """Reads all summaries of a session as one text, empty if there are none."""
        return "\n".join(segment.text for segment in await self.get_summaries(key))

    async def clear(self, key: Key) -> None:
        """Removes the summaries; the turns that they cover return to the hot part."""
        for _ in range(_ATTEMPTS):
            stored = await self._store.load(key, background=True)
            if stored is None or not stored.session.summaries:
                return
            session = stored.session
            entries = await self._store.entries(key, session)
            last_turn = entries[-1].turn_ref if entries else START
            bare = msgspec.structs.replace(
                session, entries=entries, cold_count=0, summaries=(), cleared_until=last_turn
            )
            if await self._store.overwrite(key, SessionWrite(bare, stored.version, KEEP_EXPIRY)):
                return
        raise WriteConflict

    # --- plans, made and saved

    async def _summarize(self, key: Key, messages: Sequence[Message] | None, author: Author) -> bool:
        session = await self._store.session(key)
        if messages is not None:
            return await self._append(key, session, messages, author)
        if session is None:
            return False
        session = await self._merged(key, session, author)
        plan = next_plan(session, self._limits, model=author.writer is not None) or forced_plan(
            session, self._limits
        )
        if plan is not None:
            await self._make(key, session, plan, author)
        return plan is not None

    async def _merged(self, key: Key, session: Session, author: Author) -> Session:
        """Merges the oldest summaries if there is no room for another one; returns the session."""
        if plan := merger_plan(session, self._limits):
            await self._make(key, session, plan, author)
            return await self._store.session(key) or session
        return session

    async def _make(self, key: Key, planned: Session, plan: Plan, author: Author) -> None:
        """Makes and saves one segment, again if its turns change meanwhile. Raises WriteConflict.

        Changes nothing if the session was created again since it was ``planned``, or has other summaries.
        """
        for _ in range(_ATTEMPTS):
            session = await self._store.session(key)
            if session is None or not _fits(plan, session, planned):
                return
            segment = await author.segment(session, plan, await self._covered(key, session, plan))
            if await self._save(key, plan, segment, session):
                return
        raise WriteConflict

    async def _save(self, key: Key, plan: Plan, segment: Segment, former: Session) -> bool:
        """Saves a segment if its plan still fits; returns false if its turns have changed."""
        for _ in range(_ATTEMPTS):
            stored = await self._store.load(key, background=True)
            if stored is None:
                return True
            session = stored.session
            if not _fits(plan, session, former):
                return True  # another process was faster, or it is another session
            if not plan.merge:
                covered = await self._covered(key, session, plan)
                if await _off_loop(partial(entries_fingerprint, covered), covered) != segment.fingerprint:
                    return False
            session = insert_segment(session, plan, segment)
            if await self._write(key, session, stored.version, ttl=KEEP_EXPIRY):
                return True
        raise WriteConflict

    async def _covered(self, key: Key, session: Session, plan: Plan) -> Sequence[Entry]:
        """Reads the entries that a plan covers; none for a merger, which needs only texts."""
        covered: list[Entry] = []
        if not plan.merge:
            async for page in self._store.pages(key, session, since=plan.behind):
                covered += filter(plan.covers, page)
                if page and page[-1].turn_ref > plan.reach:
                    break
        return covered

    async def _append(
        self, key: Key, former: Session | None, messages: Sequence[Message], author: Author
    ) -> bool:
        """Appends a segment for messages that are no turns of the session, which was read as ``former``."""
        now = wall_time()

        def read() -> Session:
            return session_from_messages(self._redaction.window(messages), now=now)

        sent = await asyncio.to_thread(read)
        if not sent.entries:
            return False
        if former:
            former = await self._merged(key, former, author)
        session = former or Session(user=sent.user, created=now, updated=now)
        segment = await author.notes(session, _after_all(session), sent.entries)
        for _ in range(_ATTEMPTS):
            stored = await self._store.load(key, background=True)
            if former and (stored is None or made_anew(stored.session, former)):
                return False
            latest, version, _ = stored or StoredSession(session, 0)
            end = latest.summarized_until
            appended = msgspec.structs.replace(segment, call=end.call, turn=end.turn, added=segment.text)
            longer = insert_segment(latest, _after_all(latest), appended)
            longer = without_overflow(longer, self._limits, now=now)
            if await self._write(key, longer, version, ttl=self._limits.ttl):
                return True
        raise WriteConflict

    async def _write(self, key: Key, session: Session, version: int, *, ttl: float) -> bool:
        hot, cold = settle(session, self._limits.keep_messages)
        return await self._store.save(key, SessionWrite(hot, version, ttl, cold, background=True))


async def _off_loop(work: Callable[[], T], entries: Sequence[Entry]) -> T:
    """Returns the result of ``work``, which runs in a thread if the entries are long."""
    return await in_thread_if_long(work, len(entries), sum(len(entry.text) for entry in entries))


def _after_all(session: Session) -> Plan:
    """Returns the plan of a segment after all others that covers no turn."""
    count, end = len(session.summaries), session.summarized_until
    return Plan(count, count, end, end)


def _fits(plan: Plan, session: Session, former: Session) -> bool:
    """Whether a plan that was made for ``former`` still fits the session's summaries."""
    before, now = (
        [(segment.text, segment.end) for segment in each.summaries[: plan.last]] for each in (former, session)
    )
    in_place = plan.first < plan.last or session.summarized_until == plan.behind
    cleared = session.cleared_until != former.cleared_until
    return in_place and before == now and not cleared and not made_anew(session, former)
