"""Writes turns to memory after they have ended, in order, and again until they are written."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec

from proxy.answer.transcript import transcript_off_loop
from proxy.circuit import Backoff, Outage
from proxy.memory.align.forgotten import deleted_session
from proxy.memory.compaction import Window
from proxy.memory.errors import SessionDeleted, StoreError, TurnTooLong, Unreadable
from proxy.memory.merge.request import repair_clock
from proxy.memory.redacted_view import UNREDACTED, WindowRedaction
from proxy.memory.session import Session
from proxy.memory.stores.session_store import NOT_STORED, SessionStore, SessionWrite
from proxy.memory.stores.store import Key
from proxy.memory.tasks import in_thread_if_long
from proxy.memory.token_scale import Scales, estimate_tokens, with_scale
from proxy.memory.turn_record import TurnRecord, apply_turn, prepare_write, without_view
from proxy.memory.view import SessionView
from proxy.observe.observation import usage_of

WRITE_TOLERANCE: Final = 0.2
"""Seconds by which a write may take longer than a call waits: stores gather what they write for a while."""

_BACKOFF: Final = Backoff(0.1, 2.0)
_REVISE_WITHIN: Final = 2.0
_MAX_PENDING: Final = 10_000
_DRAIN_WITHIN: Final = 3.0
_CHECK_EVERY: Final = 3.0
_CHECK_AGAIN: Final = 1.0
# No tenant has such a name, so that nothing is stored here.
_CHECK_KEY: Final = Key("~pulse", "")
_log: Final = logging.getLogger("turnkeeper")

SessionListener = Callable[[Key, Session], None]
"""Called with a session that was just written; it returns at once."""


class Recorder:
    """Writes turns in the background, those of one session one after the other."""

    def __init__(self, writer: "Writer") -> None:
        self.lost_turns = 0
        self.backlog = Backlog()
        self._writer = writer
        self._health = writer.health
        self._queues: dict[Key, deque[TurnRecord]] = {}
        self._pending = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._successor: Recorder | None = None

    @property
    def pending(self) -> int:
        """How many turns are yet to be written."""
        return self._pending

    @property
    def failing(self) -> bool:
        """Whether turns wait for a store that did not take them."""
        return bool(self.backlog.sessions) or self._health.write_late

    def is_behind(self, key: Key) -> bool:
        """Whether turns of this session wait for the store, or one that is recorded now would have to."""
        waiting = self.backlog.sessions
        return (bool(waiting) and (self._health.write_failed or key in waiting)) or self._health.write_late

    def put(self, turn: TurnRecord) -> None:
        """Takes a turn without waiting. Beyond 10,000 pending turns, the newest are lost, and counted."""
        if self._successor:
            self._successor.put(turn)
            return
        if self._pending >= _MAX_PENDING:
            self.lost_turns += 1
            self.backlog.lost()
            return
        self._pending += 1
        if turn.key in self._queues:
            self.backlog.joined(turn.key)
            self._queues[turn.key].append(without_view(turn))
            return
        self._queues[turn.key] = deque([turn])
        task = asyncio.get_running_loop().create_task(self._write_queue(turn.key))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def transfer(self, successor: "Recorder") -> None:
        """Leaves pending and later turns to another recorder; a turn that both write changes nothing."""
        for task in self._tasks:
            task.cancel()
        queues, self._queues, self._successor = self._queues, {}, successor
        self._pending = 0
        for queue in queues.values():
            for turn in queue:
                successor.put(turn)
        successor.backlog, self.backlog = self.backlog, Backlog()

    async def drain(self) -> None:
        """Waits until everything is written, for three seconds at most; what is left then is lost."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=_DRAIN_WITHIN)
            for task in late:
                task.cancel()
        self.lost_turns += self._pending
        if self.lost_turns:
            _log.error("%d turns could not be written to memory", self.lost_turns)

    async def revise(self, key: Key, change: Callable[[Session], Session], *, at: float) -> None:
        """Changes a session once its pending turns are written; tries for two seconds.

        ``at`` is the time of the change, in seconds since 1970. Raises StoreError.
        """
        error = StoreError("others are writing this session")
        until = time.monotonic() + _REVISE_WITHIN
        while time.monotonic() < until:
            try:
                if key not in self._queues and await self._writer.write(key, change, at=at):
                    return
            except SessionDeleted:
                raise
            except StoreError as failure:
                error = failure
            await asyncio.sleep(_BACKOFF.shortest)
        raise error

    async def _write_queue(self, key: Key) -> None:
        turns = self._queues[key]
        while turns:
            await self._write_first(turns)
            if key in self.backlog.sessions:
                self.backlog.settled(key)
            turns.popleft()
            self._pending -= 1
        del self._queues[key]

    async def _write_first(self, turns: deque[TurnRecord]) -> None:
        view, failures = turns[0].view, 0
        while True:
            try:
                if await self._writer.add(turns[0], view):
                    return
            except SessionDeleted:
                return
            except TurnTooLong as error:
                _log.error("A turn is not remembered: %s", error)
                self.lost_turns += 1
                return
            except StoreError as error:
                failures += 1
                self.backlog.refused(turns[0].key, error, len(turns))
                self._health.write_failed = not isinstance(error, Unreadable)
                turns[0] = without_view(turns[0])
                await asyncio.sleep(_BACKOFF.pause(failures))
            except Exception as error:  # noqa: BLE001 - one turn that cannot be written must not hold up the rest
                _log.error("A turn cannot be written: %s", type(error).__name__)
                self.lost_turns += 1
                return
            view = None


class Writer:
    """Writes one change of a session, once, and notifies the listeners.

    ``window`` is how much of a session is kept; ``health`` watches the writes that are under way.
    """

    def __init__(  # noqa: PLR0913 - where it writes, and what it minds
        self,
        store: SessionStore,
        window: Window,
        listeners: Sequence[SessionListener] = (),
        *,
        reasoning: bool = False,
        health: "HealthCheck | None" = None,
        redaction: WindowRedaction = UNREDACTED,
    ) -> None:
        self.window = window
        self.health = health or HealthCheck(store)
        self._store = store
        self._listeners = listeners
        self._reasoning = reasoning
        self._redaction = redaction
        self._scales = Scales()

    async def add(self, turn: TurnRecord, view: SessionView | None) -> bool:
        """Whether a turn is written; it is not where another writer was faster since ``view`` was read.

        Raises StoreError, SessionDeleted and TurnTooLong included.
        """
        transcript = await transcript_off_loop(turn.answer)
        if not transcript.has_content:
            return True  # a failed turn leaves memory as it was, and makes no session

        def change(session: Session) -> Session:
            session = repair_clock(session, time.time())
            session = apply_turn(
                session, turn, transcript, reasoning=self._reasoning, redaction=self._redaction
            )
            model, room = turn.model or session.model, 0 if turn.room is None else max(turn.room, 1)
            trimmed = room > 0 and (session.trimmed or not session.room)
            if (model, trimmed, room) != (session.model, session.trimmed, session.room):
                session = msgspec.structs.replace(session, model=model, trimmed=trimmed, room=room)
            return session if model is None else with_scale(session, self._scale(model, turn))

        return await self.write(turn.key, change, at=turn.at, view=view, lines=len(turn.window))

    async def write(
        self,
        key: Key,
        change: Callable[[Session], Session],
        *,
        at: float,
        view: SessionView | None = None,
        lines: int = 0,
    ) -> bool:
        """Whether a change of a session is written, by a window of so many ``lines``.

        ``view`` is what was read of it, where it was. ``at`` is the time of the change, in seconds since
        1970. Raises StoreError.
        """
        if view is None:
            session, version = await self._store.load(key, background=True) or NOT_STORED
        else:
            session, version = view.session, view.version
        if not version and (deleted_at := await self._store.deleted(key)):
            session = deleted_session(deleted_at)

        def work() -> SessionWrite:
            changed, cold = prepare_write(session, change(session), self.window, now=at)
            return SessionWrite(changed, version, self.window.ttl, cold, at)

        put = await in_thread_if_long(work, lines + len(session.entries))
        with self.health.writing(key):
            written = await self._store.save(key, put)
        if written:
            self.notify(key, put.session)
        return written

    def notify(self, key: Key, session: Session) -> None:
        """Calls the listeners with a session that was written."""
        for listener in self._listeners:
            listener(key, session)

    def _scale(self, model: str, turn: TurnRecord) -> float | None:
        """The scale of a model's token counts, once this turn's count is taken in."""
        if turn.had_tool_rounds or not self._scales.wants_sample(model):
            return self._scales.skip(model)
        counted = usage_of([turn.answer]).input
        return (
            self._scales.learn(model, estimate_tokens(turn.prompt, turn.tools), counted) if counted else None
        )


class HealthCheck:
    """Whether a store takes writes and answers reads, as turns find it and as it is asked in between.

    ``write_failed`` is of the last write, ``read_failed`` of the last read of the check's own. A write is
    late after ``patience`` seconds.
    """

    def __init__(self, store: SessionStore, *, patience: float = WRITE_TOLERANCE) -> None:
        self.write_failed = False
        self.read_failed = False
        self._store = store
        self._patience = patience
        self._writing: dict[Key, float] = {}

    @property
    def write_late(self) -> bool:
        """Whether the oldest write under way is late."""
        for began in self._writing.values():
            return time.monotonic() - began > self._patience
        return False

    @contextmanager
    def writing(self, key: Key) -> Iterator[None]:
        """A write that is under way."""
        self._writing[key] = time.monotonic()
        try:
            yield
        finally:
            self._writing.pop(key, None)
        self.write_failed = self.read_failed = False

    async def run(self) -> None:
        """Reads every few seconds until it is cancelled: there may be no call for hours."""
        while True:
            try:
                await self._store.read(_CHECK_KEY, background=True)
                self.read_failed = False
            except StoreError as error:
                self.read_failed = not isinstance(error, Unreadable)
            await asyncio.sleep(_CHECK_AGAIN if self.read_failed else _CHECK_EVERY)


class Backlog:
    """The sessions whose turns wait; the log tells when the store takes nothing, and when that is over.

    ``sessions`` tells of each whether the store is at fault. A session that cannot be read is not the
    store's fault, and may stay so for good.
    """

    def __init__(self) -> None:
        self.sessions: dict[Key, bool] = {}
        self._waiting = self._lost = 0
        self._outage = Outage(
            "Memory cannot be written: %s", "Memory is written again (turns that waited: %d, lost: %d)"
        )

    def refused(self, key: Key, error: StoreError, turns: int) -> None:
        """So many turns of a session wait, as the first of them was not taken."""
        if isinstance(error, Unreadable):
            if False not in self.sessions.values():
                _log.warning("A session cannot be written: %s", error)
            self.sessions[key] = False
            self._end_outage()
        elif not self.sessions.get(key):
            self._outage.begin(error)
            self.sessions[key] = True
            self._waiting += turns

    def joined(self, key: Key) -> None:
        """One more turn waits, if others of its session do."""
        self._waiting += self.sessions.get(key, False)

    def lost(self) -> None:
        """A turn found no room to wait."""
        self._lost += self._outage.active

    def settled(self, key: Key) -> None:
        """The first turn of a session waits no more."""
        del self.sessions[key]
        self._end_outage()

    def _end_outage(self) -> None:
        if self._outage.active and True not in self.sessions.values():
            self._outage.end(self._waiting, self._lost)
            self._waiting = self._lost = 0
