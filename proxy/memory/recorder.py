"""Writes turns to memory after they have ended, in order, and again until they are written."""

import asyncio
import logging
import math
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import Final

import msgspec

from filters.message import Message, weight
from proxy.answer.transcript import Transcript, transcript
from proxy.circuit import Backoff, Outage
from proxy.clock import wall_time
from proxy.memory.align.deletion import deleted_session
from proxy.memory.compaction import SessionLimits
from proxy.memory.errors import SessionDeleted, StoreError, TurnTooLong, Unreadable
from proxy.memory.merge.continuation import can_be_continued
from proxy.memory.merge.request import repair_clock
from proxy.memory.privacy import erase_from_session
from proxy.memory.redacted_view import UNREDACTED, WindowRedaction
from proxy.memory.session import Entry, Session
from proxy.memory.speakers import users_of
from proxy.memory.speech import MAX_SPEECH
from proxy.memory.stores.session_store import NOT_STORED, SessionStore, SessionWrite, StoredSession
from proxy.memory.stores.store import CLOCK_TOLERANCE, Key, Owner, draw_version
from proxy.memory.tasks import LARGE, MANY_MESSAGES, in_thread_if_long, wait_for_event
from proxy.memory.token_scale import Scales, estimate_tokens, with_scale
from proxy.memory.turn_record import TurnRecord, apply_turn, prepare_write, record_without_media, without_view
from proxy.memory.view import SessionView
from proxy.observe.log import MinuteLog
from proxy.observe.observation import usage_of

WRITE_TOLERANCE: Final = 0.2
"""Seconds by which a write may take longer than a call waits: stores gather what they write for a while."""

_BACKOFF: Final = Backoff(0.1, 2.0, jitter=0.5)
# However many sessions wait for the store, calls have the processor.
_RETRIES_A_SECOND: Final = 100
_REVISE_WITHIN: Final = 2.0
_MAX_PENDING_BYTES: Final = 128_000_000
# What the values of a turn take beside its texts.
_RECORD_SIZE: Final = 4_000
_DRAIN_WITHIN: Final = 2.5
_CHECK_EVERY: Final = 3.0
_CHECK_AGAIN: Final = 1.0
# No tenant has such a name, so that nothing is stored here.
_CHECK_KEY: Final = Key("~pulse", "")
_log: Final = logging.getLogger("turnkeeper")

SessionListener = Callable[[Key, Session], None]
"""Called with a session that was just written; it returns at once."""
WriteListener = Callable[[Key, float], None]
"""Called with a session's key once it was written, and the time from which work on it is due."""


async def _none_erased(_: Sequence[Owner], _at: float) -> Sequence[Owner]:
    return ()


class Recorder:
    """Applies turns to their sessions as they end, and writes the sessions in the background.

    A session whose turns are not written yet has a head in the store's ``heads``, which the next request
    reads. Turns of a session that end during a write are written together, in the next one. ``current`` is
    the recorder of the newest configuration: calls that began under an older one are recorded by it.
    """

    def __init__(self, writer: "Writer") -> None:
        self.lost_turns = 0
        self.backlog = Backlog()
        self._writer = writer
        self._health = writer.health
        self._pending_sessions: dict[Key, _PendingSession] = {}
        self._pending = self._pending_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._pauses: dict[asyncio.Future[None], None] = {}
        self.current = CurrentRecorder(self)

    @property
    def pending(self) -> int:
        """How many turns are yet to be written."""
        return self._pending

    @property
    def failing(self) -> bool:
        """Whether turns wait because the store fails or is late."""
        return bool(self.backlog.sessions) or self._health.write_late

    def is_behind(self, key: Key) -> bool:
        """Whether turns of this session wait for the store, or would if they were recorded now."""
        waiting = self.backlog.sessions
        if waiting and (self._health.write_failed or key in waiting):
            return True
        return self._health.write_late

    def put(self, turn: TurnRecord) -> None:
        """Queues a turn without waiting. Beyond 128 MB of pending turns the newest are lost, and counted."""
        if self.current.recorder is not self:
            self.current.recorder.put(turn)
            return
        if turn.size > LARGE:
            turn = record_without_media(turn)
        size = turn.size + _RECORD_SIZE
        if self._pending_bytes + size > _MAX_PENDING_BYTES:
            self.lost_turns += 1
            self.backlog.count_loss(turn.key.tenant)
            return
        self._pending += 1
        self._pending_bytes += size
        pending = self._pending_sessions.get(turn.key)
        if pending is None:
            pending = self._pending_sessions[turn.key] = _PendingSession(turn.key)
            work = self._write(pending)
        else:
            self.backlog.add_turn(turn.key)
            pending.may_apply_at_once = False
            work = self._apply_later(pending)
        pending.turns.append(turn)
        pending.is_applied = False
        task = asyncio.get_running_loop().create_task(work)
        pending.task = pending.task or task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def is_written(self, key: Key) -> bool:
        """Whether all turns of a session that have ended are written."""
        return key not in self._pending_sessions

    async def wait_applied(self, key: Key, *, within: float) -> bool:
        """Waits, ``within`` so many seconds, for the ended turns of a session; whether all are applied."""
        pending = self._pending_sessions.get(key)
        if pending is None:
            return True
        if not pending.is_applied:
            await wait_for_event(pending.applied_event(), None if math.isinf(within) else within)
        return pending.applied == len(pending.turns)

    async def wait_written(self, tenant: str, session: str | None = None, *, within: float) -> None:
        """Waits, ``within`` so many seconds, until the ended turns of a tenant or a session are written.

        After a change of the configuration, the next recorder may write them.
        """
        until = time.monotonic() + within
        tasks = [
            pending.task
            for key, pending in self._pending_sessions.items()
            if pending.task and key.tenant == tenant and session in {None, key.session}
        ]
        if tasks:
            await asyncio.wait(tasks, timeout=within)
        if self.current.recorder is not self:
            await self.current.recorder.wait_written(tenant, session, within=until - time.monotonic())

    def transfer(self, successor: "Recorder") -> None:
        """Hands pending and later turns to another recorder; writing a turn twice changes nothing."""
        for task in self._tasks:
            task.cancel()
        successor.current, self.current.recorder = self.current, successor
        sessions, self._pending_sessions = self._pending_sessions, {}
        self._pending = self._pending_bytes = 0
        for key, pending in sessions.items():
            self._writer.store.heads.pop(key, None)
            for turn in pending.turns:
                successor.put(without_view(turn))
        successor.backlog, self.backlog = self.backlog, Backlog()

    async def drain(self) -> None:
        """Waits until everything is written, for 2.5 seconds at most; what is left then is lost."""
        while self._pauses:
            self._end_a_pause()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=_DRAIN_WITHIN)
            for task in late:
                task.cancel()
        self.backlog.flush()
        self.lost_turns, self._pending = self.lost_turns + self._pending, 0
        if self.lost_turns:
            _log.error("%d turns could not be written to memory", self.lost_turns)

    async def revise(self, key: Key, change: Callable[[Session], Session], *, at: float) -> None:
        """Applies a change to a session, behind its pending turns; tries for two seconds.

        ``at`` is the time of the change, in seconds since 1970. Raises StoreError.
        """
        error = StoreError("other requests are writing this session")
        until = time.monotonic() + _REVISE_WITHIN
        while time.monotonic() < until:
            try:
                if key not in self._pending_sessions and await self._writer.revise(key, change, at=at):
                    return
            except SessionDeleted:
                raise
            except StoreError as failure:
                error = failure
            await asyncio.sleep(_BACKOFF.shortest)
        raise error

    async def _apply(self, pending: "_PendingSession") -> None:
        """Applies the turns that are not applied yet; raises StoreError where the session cannot be read."""
        turns = pending.turns
        async with pending.lock:
            try:
                while pending.applied < len(turns):
                    # Turns before this one may be written meanwhile: its place is asked for again.
                    try:
                        if not await self._writer.apply(turns[pending.applied], pending):
                            self._drop(pending, pending.applied)
                    except TurnTooLong as error:
                        _log.error("A turn is not remembered: %s", error)
                        self._drop(pending, pending.applied, is_lost=True)
                    except StoreError:
                        raise
                    except Exception as error:  # noqa: BLE001 - one turn that fails must not hold up the rest
                        _log.error("A turn cannot be written: %s", type(error).__name__)
                        self._drop(pending, pending.applied, is_lost=True)
            finally:
                pending.set_applied()

    async def _apply_later(self, pending: "_PendingSession") -> None:
        """Applies the turns of a session that another task writes; failures are left to that task."""
        with suppress(StoreError):
            await self._apply(pending)

    async def _write(self, pending: "_PendingSession") -> None:
        """Applies and writes the turns of a session until there are no more."""
        key, turns, failures = pending.key, pending.turns, 0
        while turns:
            try:
                if not (pending.may_apply_at_once and self._writer.try_apply_at_once(pending)):
                    await self._apply(pending)
                if (count := pending.applied) and await self._writer.write(pending):
                    for _ in range(count):
                        self._drop(pending, 0)
                    self._health.write_failed = self._health.read_failed = False
                if failures:
                    failures = 0
                    self._end_a_pause()
            except SessionDeleted:
                await self._drop_first(pending)
            except StoreError as error:
                failures += 1
                if pending.applied:
                    turns[0] = without_view(turns[0])
                self.backlog.add_refused(key, error, len(turns))
                self._health.write_failed = not isinstance(error, Unreadable)
                if self._health.write_failed:
                    await self._pause(failures)
                else:  # another session's success says nothing of this one
                    await asyncio.sleep(_BACKOFF.pause(failures))
            except Exception as error:  # noqa: BLE001 - one turn that cannot be written must not hold up the rest
                _log.error("A turn cannot be written: %s", type(error).__name__)
                await self._drop_first(pending, is_lost=True)
        del self._pending_sessions[key]
        self._writer.store.heads.pop(key, None)

    async def _pause(self, failures: int) -> None:
        """Waits for the store until the next try, or until another session that waited was written."""
        share = random.uniform(0.0, 2 * len(self._pauses) / _RETRIES_A_SECOND)  # noqa: S311 - no secret
        seconds = max(_BACKOFF.pause(failures), share)
        over = asyncio.get_running_loop().create_future()
        self._pauses[over] = None
        try:
            await asyncio.wait({over}, timeout=seconds)
        finally:
            self._pauses.pop(over, None)

    def _end_a_pause(self) -> None:
        """Ends the longest pause, so that its session is written next; that write ends the next pause.

        All at once would hold up calls, and find no free connection.
        """
        if over := next(iter(self._pauses), None):
            del self._pauses[over]
            over.set_result(None)

    async def _drop_first(self, pending: "_PendingSession", *, is_lost: bool = False) -> None:
        """Drops the oldest turn; the others are applied again, to the session as it is stored then.

        The turn is lost, or else its session was deleted.
        """
        async with pending.lock:
            self._drop(pending, 0, is_lost=is_lost)
            pending.reset()
            if is_lost:
                self._writer.store.heads.pop(pending.key, None)
            else:
                self._writer.store.discard(pending.key)

    def _drop(self, pending: "_PendingSession", place: int, *, is_lost: bool = False) -> None:
        """Removes a turn that is written, or never will be."""
        self._pending_bytes -= pending.turns[place].size + _RECORD_SIZE
        del pending.turns[place]
        if place < pending.applied:
            pending.applied -= 1
        self._pending -= 1
        self.lost_turns += is_lost
        if pending.key in self.backlog.sessions:
            self.backlog.remove(pending.key)


class CurrentRecorder:
    """A reference to the newest recorder of a server, shared by all of its recorders.

    The first configuration is frozen for the garbage collector (``gc.freeze``). What it refers to is never
    freed, so that older recorders must not refer to each other.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder


class _PendingSession:
    """A session whose newest turns are not written yet.

    ``task`` writes it. ``turns`` are in order, the oldest first. ``head`` is the session after the first
    ``applied`` of them; it replaces ``base``, the session as stored, and ``cold`` goes to the cold part.
    ``is_applied`` is false while turns are being applied or wait for that. ``has_lost_race`` is whether
    another writer was faster. ``head_versions`` are the versions of heads that were not written, and that
    calls may have read. ``may_apply_at_once`` is true until a turn was applied or a second one has come.
    """

    def __init__(self, key: Key) -> None:
        self.key = key
        self.turns: deque[TurnRecord] = deque()
        self.task: asyncio.Task[None] | None = None
        self.may_apply_at_once = True
        self.head_versions: list[int] = []
        self.has_lost_race = False
        self._on_applied: asyncio.Event | None = None
        self.reset()

    def reset(self, stored: StoredSession | None = None) -> None:
        """Starts over: all turns are applied again, to ``stored`` or to the session as it is read then."""
        self.is_applied = False
        self.applied = 0
        self.head, self.base = stored, stored or NOT_STORED
        self.cold: list[Entry] = []

    # Hardly a turn is waited for, so that there are a lock and an event for these alone.

    @cached_property
    def lock(self) -> asyncio.Lock:
        """Held by the task that applies turns."""
        return asyncio.Lock()

    def applied_event(self) -> asyncio.Event:
        """An event that is set once all turns are applied."""
        if self._on_applied is None:
            self._on_applied = asyncio.Event()
        return self._on_applied

    def set_applied(self) -> None:
        """Marks all turns as applied, and wakes what waits for that."""
        self.is_applied = True
        if self._on_applied is not None:
            self._on_applied.set()
            self._on_applied = None


class Writer:
    """Applies turns to sessions, writes the sessions, and notifies the listeners.

    ``limits`` bound each session, and ``health`` watches the writes under way. ``erased_since`` finds
    erased users: what was said before is not written. ``scales`` are those of the models'
    token counts.
    """

    def __init__(  # noqa: PLR0913 - where it writes, and what it minds
        self,
        store: SessionStore,
        limits: SessionLimits,
        listeners: Sequence[SessionListener] = (),
        write_listeners: Sequence[WriteListener] = (),
        *,
        reasoning: bool = False,
        health: "HealthCheck | None" = None,
        redaction: WindowRedaction = UNREDACTED,
        erased_since: Callable[[Sequence[Owner], float], Awaitable[Sequence[Owner]]] = _none_erased,
    ) -> None:
        self.store = store
        self.limits = limits
        self.health = health or HealthCheck(store, store.writing)
        self._listeners = listeners
        self._write_listeners = write_listeners
        self._reasoning = reasoning
        self._redaction = redaction
        self._erased_since = erased_since
        self.scales = Scales()

    async def apply(self, turn: TurnRecord, pending: _PendingSession) -> bool:
        """Applies the next turn of a session; false for a turn without an answer, which is not recorded.

        Raises StoreError, TurnTooLong included.
        """
        answer = turn.transcript
        if answer is None:
            read = partial(transcript, turn.answer)
            answer = within_bounds(await in_thread_if_long(read, 0, len(turn.answer)), cut=turn.cut)
            # Of a large answer, the words alone wait for the store.
            blob = turn.answer if len(turn.answer) <= LARGE else b""
            pending.turns[pending.applied] = msgspec.structs.replace(turn, answer=blob, transcript=answer)
        if not answer.has_content:
            return False  # it leaves memory as it was, and makes no session
        if pending.head is None:
            view = None if pending.has_lost_race else turn.view
            pending.head = await self._load(turn.key, view, at=turn.at)
            pending.base = pending.head
        work = partial(self._session_after, pending.head, turn, answer)
        messages = len(turn.window) + len(pending.head.session.entries)
        self._put_head(pending, *await in_thread_if_long(work, messages, turn.size))
        return True

    def try_apply_at_once(self, pending: _PendingSession) -> bool:
        """Applies the only turn of a session without waiting; whether that was possible.

        It is possible for a short turn that has read a stored session.
        """
        pending.may_apply_at_once = False
        (turn,) = pending.turns
        view = turn.view
        if view is None or not view.version or turn.transcript:
            return False
        if turn.size >= LARGE or len(turn.window) + len(view.session.entries) >= MANY_MESSAGES:
            return False
        try:
            answer = within_bounds(transcript(turn.answer), cut=turn.cut)
            if not answer.has_content:
                return False
            turn = pending.turns[0] = msgspec.structs.replace(turn, transcript=answer)
            stored = self._base_of(turn.key, view)
            if not stored.version:  # when it was deleted has to be asked
                return False
            after = self._session_after(stored, turn, answer)
        except Exception:  # noqa: BLE001 - it will be tried again, and then it is told what is wrong
            return False
        pending.base = stored
        self._put_head(pending, *after)
        pending.set_applied()
        return True

    def _session_after(
        self, head: StoredSession, turn: TurnRecord, answer: Transcript
    ) -> tuple[Session, Sequence[Entry], bytes]:
        """The session after a turn, the entries for its cold part, and the encoded lines of its window."""
        before, view = head.session, turn.view
        # What the turn read can be used if no turn was recorded since.
        is_same = view is not None and view.has_same_entries(before)
        own = turn if is_same else without_view(turn)
        session = apply_turn(
            repair_clock(before, wall_time()),
            own,
            answer,
            reasoning=self._reasoning,
            redaction=self._redaction,
        )
        model, room = turn.model or session.model, 0 if turn.room is None else max(turn.room, 1)
        trimmed = room > 0 and (session.trimmed or not session.room)
        if (model, trimmed, room) != (session.model, session.trimmed, session.room):
            session = msgspec.structs.replace(session, model=model, trimmed=trimmed, room=room)
        if model is not None:
            session = with_scale(session, self._scale(model, turn))
        limits = self.limits.bounded() if turn.size > LARGE else self.limits
        session, cold = prepare_write(before, session, limits, now=turn.at)
        is_shown = view and is_same and can_be_continued(session, view.speech, view.alignment)
        return session, cold, view.line_bytes if view and is_shown and turn.size <= LARGE else b""

    def _put_head(
        self, pending: _PendingSession, session: Session, cold: Sequence[Entry], latest_line_bytes: bytes
    ) -> None:
        if pending.applied:  # the first may be applied again, where background work was faster
            pending.turns[pending.applied] = without_view(pending.turns[pending.applied])
        pending.applied += 1
        pending.cold += cold
        version = draw_version()
        pending.head_versions.append(version)
        self.store.heads[pending.key] = pending.head = StoredSession(session, version, latest_line_bytes)

    async def write(self, pending: _PendingSession) -> bool:
        """Writes the head of a session; false where another writer was faster. Raises StoreError."""
        key, head, cold = pending.key, pending.head, tuple(pending.cold)
        assert head is not None  # noqa: S101 - turns are applied to one
        put = SessionWrite(
            head.session,
            pending.base.version,
            self.limits.ttl,
            cold,
            pending.turns[0].at,
            new_version=head.version,
            latest_line_bytes=head.latest_line_bytes,
            instead_of=tuple(pending.head_versions[:-1]),
        )
        if await self.store.save(key, put):
            await self._refuse_erased(key, pending.base.session, put)
            pending.base = head
            del pending.cold[: len(cold)], pending.head_versions[: len(put.instead_of) + 1]
            self.notify(key, head.session)
            return True
        stored = await self.store.load(key, background=True)
        if stored is None and pending.base.version:
            # What has read a session is older than its deletion, whatever the clocks of two hosts say.
            deleted_at = await self.store.deleted(key)
            if deleted_at is not None and deleted_at > head.session.created:
                raise SessionDeleted("the session was deleted")
        async with pending.lock:  # nothing may be applied to the session as it was
            pending.has_lost_race = True
            pending.reset(stored)
        return False

    async def _refuse_erased(self, key: Key, base: Session, put: SessionWrite) -> None:
        """Erases what a write brought of users who were erased meanwhile, and raises SessionDeleted.

        An erasure is stored before it goes through the sessions: either it finds what was written, or it is
        found here. It changes each session that has anything of its user, which cannot be written over then.
        """
        former = users_of(base, base.entries) if base.updated < put.at else set()
        users = users_of(put.session, (*put.cold, *put.session.entries)) - former
        if not users:
            return
        if erased := await self._erased_since([Owner(key.tenant, user) for user in users], put.at):
            for owner in erased:
                await erase_from_session(self.store, key, owner.user)
            self.session_written(key, self.store.written_due(key))
            raise SessionDeleted("a user was erased")

    async def revise(self, key: Key, change: Callable[[Session], Session], *, at: float) -> bool:
        """Changes a session; false where another writer was faster. ``at`` is in seconds since 1970.

        Raises StoreError, and SessionDeleted where all that the change brings was deleted.
        """
        before, version, _ = await self._load(key)

        def work() -> SessionWrite:
            changed, cold = prepare_write(before, change(before), self.limits, now=at)
            return SessionWrite(changed, version, self.limits.ttl, cold, at)

        put = await asyncio.to_thread(work)  # the change may be the history of a call
        if not version and before.deletion and not put.session.entries:
            raise SessionDeleted("the session was deleted")  # and nothing in it is new
        written = await self.store.save(key, put)
        if written:
            self.health.write_failed = self.health.read_failed = False
            self.notify(key, put.session)
        return written

    def notify(self, key: Key, session: Session) -> None:
        """Calls the listeners with a session that was written."""
        for listener in self._listeners:
            listener(key, session)
        self.session_written(key, self.store.written_due(key))

    def session_written(self, key: Key, due: float) -> None:
        """Reports a session that this process or another has written, and when work on it is due."""
        for listener in self._write_listeners:
            listener(key, due)

    async def _load(
        self, key: Key, view: SessionView | None = None, *, at: float = math.inf
    ) -> StoredSession:
        """The session as it is stored, or as a turn read it.

        Raises SessionDeleted where the last one was deleted after ``at``, or had been read before that.
        """
        stored = NOT_STORED if view is None else self._base_of(key, view)
        if view is None or (view.version and not stored.version):
            stored = await self.store.load(key, background=True) or NOT_STORED
        if not stored.version and (deleted_at := await self.store.deleted(key)):
            # What has read a session is older than its deletion, whatever the clocks say.
            has_read = view is not None and view.version > 0 and view.session.created < deleted_at
            if has_read or at <= deleted_at <= wall_time() + CLOCK_TOLERANCE:
                raise SessionDeleted("the session was deleted")
            return StoredSession(deleted_session(deleted_at), 0)
        return stored

    def _base_of(self, key: Key, view: SessionView) -> StoredSession:
        """The session that a turn read, or the one that replaced it since."""
        written = self.store.written_instead_of(key, view.version)
        return written or StoredSession(view.session, view.version)

    def _scale(self, model: str, turn: TurnRecord) -> float | None:
        """The scale of a model's token counts, after this turn's count."""
        if turn.had_tool_rounds or not turn.prompt or not self.scales.wants_sample(model):
            return self.scales.learn(model)
        counted = usage_of(turn.answer).input or 0
        estimated = estimate_tokens(turn.prompt, turn.tools) if counted else 0
        return self.scales.learn(model, estimated, counted)


def within_bounds(transcript: Transcript, *, cut: bool = False) -> Transcript:
    """A transcript as it is remembered: beyond 250,000 characters it counts as broken off there.

    ``cut`` is whether there was more of the answer than the transcript was made of.
    """
    text, calls, reasoning = transcript.text, transcript.tool_calls, transcript.reasoning
    if calls and weight(Message(role="assistant", tool_calls=calls)) > MAX_SPEECH:
        calls = None
    elif len(text) <= MAX_SPEECH and len(reasoning or "") <= MAX_SPEECH and not cut:
        return transcript
    return Transcript(
        text[:MAX_SPEECH], calls, reasoning and reasoning[:MAX_SPEECH], finished=False, cut=True
    )


class HealthCheck:
    """Whether a store takes writes and answers reads, judged by the writes of turns and by a periodic read.

    ``write_failed`` is about the last write, ``read_failed`` about the last periodic read; a write that
    succeeds clears both. A write is late after ``patience`` seconds. ``writing`` are the writes under way, as
    in ``SessionStore``.
    """

    def __init__(
        self, store: SessionStore, writing: Mapping[Key, float], *, patience: float = WRITE_TOLERANCE
    ) -> None:
        self.write_failed = False
        self.read_failed = False
        self._store = store
        self._writing = writing
        self._patience = patience

    @property
    def write_late(self) -> bool:
        """Whether the oldest write under way is late."""
        for began in self._writing.values():
            return time.monotonic() - began > self._patience
        return False

    async def run(self) -> None:
        """Reads every few seconds until cancelled, as there may be no call for hours."""
        while True:
            try:
                await self._store.read(_CHECK_KEY, background=True)
                self.read_failed = False
            except StoreError as error:
                self.read_failed = not isinstance(error, Unreadable)
            await asyncio.sleep(_CHECK_AGAIN if self.read_failed else _CHECK_EVERY)


class Backlog:
    """The sessions whose turns wait to be written; logs when an outage of the store begins and ends.

    ``sessions`` says of each whether the store failed. Otherwise the session itself cannot be read, perhaps
    for good.
    """

    def __init__(self) -> None:
        self.sessions: dict[Key, bool] = {}
        self._waiting = self._lost = 0
        self._overflow = MinuteLog("turns lost: there is no room for more that wait to be written", "tenant")
        self._outage = Outage(
            "Memory cannot be written: %s", "Memory is written again (turns that waited: %d, lost: %d)"
        )

    def add_refused(self, key: Key, error: StoreError, turns: int) -> None:
        """Adds a session of so many turns whose write failed."""
        if isinstance(error, Unreadable):
            if False not in self.sessions.values():
                _log.warning("A session cannot be written: %s", error)
            self.sessions[key] = False
            self._end_outage()
        elif not self.sessions.get(key):
            self._outage.begin(str(error))
            self.sessions[key] = True
            self._waiting += turns

    def add_turn(self, key: Key) -> None:
        """Counts one more turn, if its session waits already."""
        if self.sessions.get(key):
            self._waiting += 1

    def count_loss(self, tenant: str) -> None:
        """Counts a turn that was lost for want of room; without an outage that is logged, once a minute."""
        if self._outage.active:
            self._lost += 1
        else:
            self._overflow.add(tenant)

    def flush(self) -> None:
        """Logs the losses that were counted since the last line."""
        self._overflow.flush()

    def remove(self, key: Key) -> None:
        """Removes a session whose first turn is written or dropped."""
        del self.sessions[key]
        self._end_outage()

    def _end_outage(self) -> None:
        if self._outage.active and True not in self.sessions.values():
            self._outage.end(self._waiting, self._lost)
            self._waiting = self._lost = 0
