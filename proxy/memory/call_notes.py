"""The background job that lists the calls of users, and writes notes on each call once it is over."""

from contextlib import suppress
from functools import partial
from typing import Final

import msgspec

from proxy.clock import wall_time
from proxy.memory.errors import NoSummaryModel, SessionDeleted, Unreadable
from proxy.memory.past_calls import PastCall, PastCalls, UserRecord
from proxy.memory.session import Session, TurnRef, made_anew
from proxy.memory.speakers import call_speakers, with_speaker_names
from proxy.memory.stores.session_store import SessionStore
from proxy.memory.stores.store import NEVER_DUE, Key, Owner
from proxy.memory.summaries import SummaryWriter
from proxy.memory.tasks import in_thread_if_long

_LISTED: Final = -1  # stands for a turn: the call is listed, and no turn is noted


class CallNotes:
    """Lists each call of a user once it begins, and replaces its last lines by notes once it is over.

    A call is over when its agent has left, when ``pause`` seconds passed without a turn, and when its user
    begins another one. Without a writer, and for calls of two messages, the last lines stay.
    """

    name: Final = "calls"

    def __init__(
        self,
        store: SessionStore,
        calls: PastCalls,
        writer: SummaryWriter | None,
        *,
        pause: float,
    ) -> None:
        self._store = store
        self._calls = calls
        self._writer = writer
        self._pause = pause

    def due_at(self, session: Session) -> float:
        """Returns 0 if a call is to be listed; else when it is over."""
        if not session.entries:
            return NEVER_DUE
        newest, noted = session.entries[-1], session.noted_until
        if (newest.call, newest.turn) <= noted:
            return NEVER_DUE
        if noted == (newest.call, _LISTED):
            return self._over_at(session)
        return NEVER_DUE if next(call_speakers(session, newest.call), None) is None else 0.0

    async def begin(self, key: Key, session: Session) -> Session:
        """Lists a new call; if this ends other calls of its speakers, ``run`` does the rest."""
        began = wall_time()
        if self._over_at(session) <= began:
            return session
        if await self._list(key.tenant, _call_under_way(key, session), at=began):
            return session
        return await self._mark(key, session, _listing_mark(session.entries[-1].turn_ref))

    async def run(self, key: Key, unusable: int) -> bool:  # noqa: ARG002 - what cannot be written is tried again
        """Lists the newest call and writes the notes that are due; returns whether a model wrote any.

        Raises SummaryFailed.
        """
        return await self._run(key, self._writer, settled=True)

    def fallback_is_due(self, session: Session) -> bool:
        """Whether the newest call is to be listed, or is over."""
        return self.due_at(session) <= wall_time()

    async def run_fallback(self, key: Key) -> None:
        """Lists the newest call, with its last lines until a model answers."""
        await self._run(key, None, settled=self._writer is None)

    async def _run(self, key: Key, writer: SummaryWriter | None, *, settled: bool) -> bool:
        began = wall_time()
        session = await self._store.session(key)
        if session is None or self.due_at(session) > began:
            return False
        newest = session.entries[-1].turn_ref
        over, written = self._over_at(session) <= began, False
        call = _call_under_way(key, session)
        if over:
            call = await _with_lines(call, session)
        others = await self._list(key.tenant, call, at=began)
        if session.noted_until != _listing_mark(newest):
            # The call now waits for its end; otherwise it would be due at each turn while no model answers.
            await self._mark(key, session, _listing_mark(newest))
        if over:
            written = await self._finish(key.tenant, call, writer, settled=settled, at=began)
            if settled:
                await self._mark(key, session, newest)
        if settled:
            for past in others:
                written |= await self._finish(key.tenant, past, writer, settled=True, at=began)
        return written

    async def _list(self, tenant: str, call: PastCall, *, at: float) -> list[PastCall]:
        """Lists a call for its speakers; returns their other calls that are not noted yet."""
        records = await self._save(tenant, call, at=at)
        others = {past.place: past for record in records for past in record.calls if not past.over}
        others.pop(call.place, None)
        return list(others.values())

    def _over_at(self, session: Session) -> float:
        """Returns when the newest call is over, unless it continues."""
        return 0.0 if session.call > session.entries[-1].call else session.updated + self._pause

    async def _finish(
        self, tenant: str, call: PastCall, writer: SummaryWriter | None, *, settled: bool, at: float
    ) -> bool:
        """Saves notes on an ended call, finally if ``settled``; returns whether a model wrote them."""
        key = Key(tenant, call.session)
        session, written = await self._session(key, call), False
        if session:
            call = await _with_lines(call, session)
            if writer is not None and not call.is_short:
                earlier = [segment.text for segment in session.summaries if segment.call == call.call]
                entries = [
                    e
                    for e in session.entries
                    if e.call == call.call and e.turn_ref > session.summarized_until
                ]
                named = with_speaker_names(session, entries)
                with suppress(NoSummaryModel):
                    notes = await writer.call_notes(named, earlier, last=session.model)
                    lines = (f"notes: {line}" for line in notes.text.splitlines() if line.strip())
                    call = msgspec.structs.replace(call, lines=tuple(lines))
                if await self._session(key, call) is None:
                    return True  # it was deleted meanwhile
                written = True
        await self._save(tenant, msgspec.structs.replace(call, over=settled), at=at)
        return written

    async def _session(self, key: Key, call: PastCall) -> Session | None:
        """Reads the session of a call, if it is still stored."""
        try:
            session = await self._store.session(key)
        except Unreadable:
            return None
        return session if session and session.created == call.created else None

    async def _save(self, tenant: str, call: PastCall, *, at: float) -> list[UserRecord]:
        """Saves a call for its speakers; returns their records, without those of erased users."""
        records: list[UserRecord] = []
        for name in call.speakers:
            with suppress(SessionDeleted):
                records.append(await self._calls.save(Owner(tenant, name), call, at=at))
        return records

    async def _mark(self, key: Key, former: Session, end: TurnRef) -> Session:
        """Stores in the session how far its calls are noted; returns the session."""

        def marked(session: Session) -> Session:
            if made_anew(session, former):
                return session
            return msgspec.structs.replace(session, noted_until=end)

        return await self._store.change(key, marked) or former


def _listing_mark(newest: TurnRef) -> TurnRef:
    """Returns the mark of a session whose newest call is only listed."""
    return TurnRef(newest.call, _LISTED)


def _call_under_way(key: Key, session: Session) -> PastCall:
    """Returns the newest call of a session, without its lines."""
    newest = session.entries[-1].turn_ref
    return PastCall(
        session=key.session,
        created=session.created,
        call=newest.call,
        at=session.updated,
        turn=newest.turn,
        speakers=tuple(dict.fromkeys(call_speakers(session, newest.call))),
    )


async def _with_lines(call: PastCall, session: Session) -> PastCall:
    return await in_thread_if_long(partial(call.with_lines_of, session), len(session.entries))
