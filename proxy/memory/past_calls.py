"""Records of users' past calls, which the prompts of the next call show, in any session."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec

from filters.injection import LastCall
from proxy.clock import wall_time
from proxy.memory.errors import SessionDeleted, Unreadable
from proxy.memory.extensible import Extensible
from proxy.memory.preamble import call_lines, record_of
from proxy.memory.privacy import DataHolder
from proxy.memory.session import Session, ShownCall
from proxy.memory.speakers import call_speakers
from proxy.memory.stores.session_store import SessionStore
from proxy.memory.stores.store import Key, Owner
from proxy.memory.tasks import in_thread_if_long
from proxy.memory.user_values import LASTING, UserValue, UserValues
from proxy.memory.view import SessionView

_MOST_CALLS: Final = 4
_SHORT: Final = 2
_LAST_LINES: Final = 10
_KIND: Final = "users"


class PastCall(Extensible, frozen=True, kw_only=True, gc=False):
    """A call of a user: the session, when that was created, and the number of the call.

    ``lines`` are notes on it up to ``turn``, and ``messages`` is how many it has. A call that is not ``over``
    has no lines, or those of an extractive summary until a model answers. ``at`` is the time of its last
    turn, in seconds since 1970.
    """

    session: str
    created: float
    call: int
    at: float
    record: str = ""
    turn: int = -1
    messages: int = 0
    lines: tuple[str, ...] = ()
    speakers: tuple[str, ...] = ()
    over: bool = False

    @property
    def place(self) -> tuple[str, float, int]:
        """The session, when it was created, and the number of the call in it."""
        return self.session, self.created, self.call

    @property
    def is_short(self) -> bool:
        """Whether the call is too short to displace another one."""
        return self.messages <= _SHORT

    @property
    def last_call(self) -> LastCall:
        """The call for filters."""
        return LastCall(record=self.record, lines=self.lines, at=self.at)

    def with_lines_of(self, session: Session) -> "PastCall":
        """Returns the call with its last lines and other values from its session."""
        lines = tuple(call_lines(session, self.call, most=_LAST_LINES))
        entries = [entry for entry in session.entries if entry.call == self.call]
        covered = sum(segment.messages for segment in session.summaries if segment.call == self.call)
        uncovered = sum(
            entry.turn_ref > session.summarized_until and entry.role in {"user", "assistant"}
            for entry in entries
        )
        return msgspec.structs.replace(
            self,
            record=record_of(session, self.call),
            turn=max((entry.turn for entry in entries), default=self.turn),
            messages=covered + uncovered,
            lines=lines,
            speakers=tuple(dict.fromkeys(call_speakers(session, self.call))) or self.speakers,
        )


class UserRecord(UserValue, frozen=True):
    """A user's ``profile``, which the operator writes, and the last ``calls`` by the time of their ends."""

    profile: str = ""
    calls: tuple[PastCall, ...] = ()

    def call(self, place: tuple[str, float, int]) -> PastCall | None:
        """Returns the call at a place, or ``None``."""
        return next((call for call in self.calls if call.place == place), None)

    def with_call(self, new: PastCall) -> "UserRecord":
        """Returns the record with a call; of more than four, the oldest short one goes, else the oldest.

        Notes on an ended call stay, unless it has continued since.
        """
        former = self.call(new.place)
        if former and former.over and not new.over and new.turn <= former.turn:
            return self
        calls = sorted(
            [*(call for call in self.calls if call.place != new.place), new], key=lambda call: call.at
        )
        while len(calls) > _MOST_CALLS:
            short = next((call for call in calls[:-1] if call.over and call.is_short), calls[0])
            calls.remove(short)
        return msgspec.structs.replace(self, calls=tuple(calls))

    def without(self, is_gone: Callable[[PastCall], bool]) -> "UserRecord":
        """Returns the record without some calls."""
        return msgspec.structs.replace(self, calls=tuple(call for call in self.calls if not is_gone(call)))


class PastCalls(DataHolder):
    """The records of users, in the session store. Every method may raise StoreError.

    Calls are stored for ``keep`` seconds after their end, profiles until they are removed. ``redact`` is
    applied to everything that is written.
    """

    def __init__(
        self, store: SessionStore, *, keep: float = LASTING, redact: Callable[[str], str] = str
    ) -> None:
        self._store = store
        self._redact = redact
        self._records = UserValues(store, _KIND, UserRecord())
        self._keep = keep

    async def record(self, user: Owner, *, background: bool = True) -> UserRecord:
        """The record of a user's past calls."""
        return await self._records.read(user, background=background)

    def users(self, tenant: str) -> AsyncIterator[str]:
        """Yields the users of a tenant who have a record."""
        return self._records.users(tenant)

    async def erase(self, user: Owner) -> Mapping[str, int]:
        """Deletes a user's record and leaves a tombstone; returns the count of profiles.

        Calls are not counted, because other places count their turns.
        """
        profile = (await self.export(user)).get("profile", ())
        await self._records.delete(user)
        return {"profile": len(profile)}

    async def erased_since(self, users: Sequence[Owner], at: float) -> Sequence[Owner]:
        """Returns the users erased after ``at``, in seconds since 1970."""
        return await self._records.erased_since(users, at)

    async def save(self, user: Owner, call: PastCall, *, at: float) -> UserRecord:
        """Adds or replaces a call; returns the user's new record.

        Raises SessionDeleted if the user, or another speaker of the call, was erased after ``at``.
        """
        lines = tuple(map(self._redact, call.lines))
        others = [Owner(user.tenant, name) for name in call.speakers if name != user.user]
        await self._refuse_erased(others, call, at=at)
        record = await self._change(
            user, lambda record: record.with_call(msgspec.structs.replace(call, lines=lines)), at=at
        )
        # An erasure leaves its tombstone before it reads the records: it finds the call, or is found here.
        await self._refuse_erased(others, call, at=at)
        return record

    async def set_profile(self, user: Owner, profile: str, *, at: float) -> str:
        """Replaces or removes the operator's profile of a user; returns it as stored."""
        profile = self._redact(profile)
        await self._change(user, lambda record: msgspec.structs.replace(record, profile=profile), at=at)
        return profile

    async def shown_call(self, user: Owner, view: SessionView, name: str, *, remembers: bool) -> ShownCall:
        """Returns the earlier call for a call's prompts; ``view`` is of the session named ``name``.

        If the session ``remembers``, its prompts show its own earlier calls anyway, and these are left out.
        """
        session, call, now = view.session, view.call, wall_time()
        record = await self.record(user, background=False)
        shown = ShownCall(call=call, user=user.user, profile=record.profile)
        best: PastCall | None = None
        for past in reversed(record.calls):
            own = past.session == name and past.created == session.created
            if (own and (remembers or past.call >= call)) or past.at < now - self._keep:
                continue
            current = past if past.over else await self.current(user.tenant, past, background=False)
            if current.lines and (best is None or not current.is_short):
                best = current
            if best and not best.is_short:
                break
        if best is None:
            return shown
        return msgspec.structs.replace(
            shown, last_call=best.last_call, session=best.session, speakers=best.speakers
        )

    async def current(self, tenant: str, past: PastCall, *, background: bool = True) -> PastCall:
        """Returns a call with its session's current lines, if that is stored; else unchanged."""
        stored = None
        with suppress(Unreadable):
            stored = await self._store.load(Key(tenant, past.session), background=background)
        if stored is None or stored.session.created != past.created:
            return past
        work = partial(past.with_lines_of, stored.session)
        return await in_thread_if_long(work, len(stored.session.entries))

    # --- privacy

    async def export(self, user: Owner) -> Mapping[str, Sequence[Any]]:
        """Exports the profile and the calls of a user."""
        try:
            record = await self.record(user)
        except Unreadable:
            return {"unreadable": ["calls"]}
        profile = {"profile": [record.profile]} if record.profile else {}
        calls = [
            {"session_id": call.session, "at": call.at, "lines": list(call.lines)}
            for call in record.calls
            if call.lines
        ]
        return profile | ({"calls": calls} if calls else {})

    async def forget(self, user: Owner, *, at: float) -> Mapping[str, int]:  # noqa: ARG002 - the store knows when
        """Deletes a user's record, and the calls in which the user spoke from those of others."""
        counts = await self.erase(user)
        await self._drop(user.tenant, lambda call: user.user in call.speakers)
        return counts

    async def forget_session(self, key: Key, *, at: float) -> Mapping[str, int]:  # noqa: ARG002 - as above
        """Deletes the calls of a session from all records."""
        await self._drop(key.tenant, lambda call: call.session == key.session)
        return {}

    async def _refuse_erased(self, speakers: Sequence[Owner], call: PastCall, *, at: float) -> None:
        """Drops a call from all records and raises SessionDeleted if a speaker was erased after ``at``."""
        if erased := await self.erased_since(speakers, at):
            await self._drop(erased[0].tenant, lambda other: other.place == call.place)
            raise SessionDeleted("one who spoke in the call was erased")

    async def _change(
        self, user: Owner, change: Callable[[UserRecord], UserRecord], *, at: float
    ) -> UserRecord:
        current = UserRecord()

        def changed(record: UserRecord) -> UserRecord:
            nonlocal current
            current = change(record).without(lambda call: call.at < at - self._keep)
            return current

        await self._records.change(user, changed, at=at, ttl=self._ttl)
        return current

    async def _drop(self, tenant: str, is_gone: Callable[[PastCall], bool]) -> None:
        await self._records.change_all(tenant, partial(UserRecord.without, is_gone=is_gone), ttl=self._ttl)

    def _ttl(self, record: UserRecord) -> float:
        return LASTING if record.profile else self._keep
