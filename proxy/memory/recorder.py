"""Turns that wait because the store did not take them."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec

from proxy.answer.transcript import transcript_off_loop
from proxy.memory.align.forgotten import deleted_session
from proxy.memory.errors import SessionDeleted, StoreError, TurnTooLong, Unreadable
from proxy.memory.merge.request import repair_clock
from proxy.memory.merge.turn import SessionWrite, TurnRecord, apply_turn, prepare_write, without_view
from proxy.memory.redaction.view import UNREDACTED, WindowRedaction
from proxy.memory.session import Session
from proxy.memory.stores.session_store import Recent
from proxy.memory.stores.store import BlobWrite, Key, Store
from proxy.memory.summaries.compaction import Window
from proxy.memory.summaries.scale import Scales, estimate_tokens, with_scale
from proxy.memory.tasks import in_thread_if_long
from proxy.memory.view import SessionView
from proxy.observe.observation import usage_of

WRITE_TOLERANCE: Final = 0.2
"""Seconds by which a write may take longer than a call waits: stores gather what they write for a while."""
_EVERY: Final = 3.0
_AGAIN: Final = 1.0
# No key's name begins like this, so that nothing is ever held here.
_NOBODY: Final = Key("~pulse", "")
SessionListener = Callable[[Key, Session], None]
"""Told of a session as it was just written; it returns at once, and what takes time it does elsewhere."""
_log = logging.getLogger("turnkeeper")
_SHORTEST, _LONGEST = 0.1, 2.0
_ATTEMPTS, _MOST_WAITING, _DRAINED_WITHIN = 20, 10_000, 3.0


class Backlog:
    """The sessions whose turns wait; the log tells when the store takes nothing, and when that is over.

    A session that nobody can read is at fault itself: it says nothing of the store, and may stay so for good.
    """

    def __init__(self) -> None:
        self._of_store: set[Key] = set()
        self._of_their_own: set[Key] = set()
        self._waited = self._lost = 0

    def __bool__(self) -> bool:
        return bool(self._of_store or self._of_their_own)

    def __contains__(self, key: Key) -> bool:
        return key in self._of_store or key in self._of_their_own

    def refused(self, key: Key, error: StoreError, turns: int) -> None:
        """So many turns of a session wait now, as the first of them was not taken."""
        if isinstance(error, Unreadable):
            self._faulty(key, error)
        elif key not in self._of_store:
            if not self._of_store:
                _log.warning("Memory cannot be written: %s", error)
            self._of_their_own.discard(key)
            self._of_store.add(key)
            self._waited += turns

    def joined(self, key: Key) -> None:
        """One more turn waits, if others of its session do."""
        self._waited += key in self._of_store

    def lost(self) -> None:
        """A turn found no room to wait."""
        self._lost += bool(self._of_store)

    def settled(self, key: Key) -> None:
        """The first turn of a session waits no more."""
        self._of_their_own.discard(key)
        if key in self._of_store:
            self._of_store.discard(key)
            self._told_if_over()

    def _faulty(self, key: Key, error: Unreadable) -> None:
        if not self._of_their_own:
            _log.warning("A session cannot be written: %s", error)
        self._of_their_own.add(key)
        if key in self._of_store:
            self._of_store.discard(key)
            self._told_if_over()

    def _told_if_over(self) -> None:
        if not self._of_store:
            _log.warning(
                "Memory is written again (turns that waited: %d, lost: %d)", self._waited, self._lost
            )
            self._waited = self._lost = 0


class HealthCheck:
    """How one store fares. A write is late once it has taken longer than ``patience`` seconds.

    ``refusing`` is whether the last write failed, and ``silent`` whether the last look did.
    """

    def __init__(self, store: Store, *, patience: float = WRITE_TOLERANCE) -> None:
        self.refusing = False
        self.silent = False
        self._store = store
        self._patience = patience
        self._writing: dict[Key, float] = {}

    @property
    def late(self) -> bool:
        """Whether the oldest write under way has taken longer than ``patience`` seconds."""
        began = next(iter(self._writing.values()), None)
        return began is not None and time.monotonic() - began > self._patience

    @contextmanager
    def writing(self, key: Key) -> Iterator[None]:
        """A write that is under way. One that fails for a reason of its session's own tells nothing."""
        self._writing[key] = time.monotonic()
        try:
            yield
        finally:
            self._writing.pop(key, None)
        self.refusing = self.silent = False

    def refused(self, error: StoreError) -> None:
        """A turn could not be written."""
        self.refusing = not isinstance(error, Unreadable)

    async def run(self) -> None:
        """Looks every few seconds until it is cancelled: nobody may call for hours."""
        while True:
            self.silent = not await self._answers()
            await asyncio.sleep(_AGAIN if self.silent else _EVERY)

    async def _answers(self) -> bool:
        try:
            await self._store.read(_NOBODY, background=True)
        except StoreError as error:
            return isinstance(error, Unreadable)
        return True


class Writer:
    """Writes one change of a session, once; whoever has it written again minds what it raises.

    ``window`` is how much of a session is kept, and ``pulse`` is told of each write that is under way.
    """

    def __init__(  # noqa: PLR0913 - where it writes, and what it minds
        self,
        store: Recent,
        window: Window,
        listeners: Sequence[SessionListener] = (),
        *,
        reasoning: bool = False,
        pulse: HealthCheck | None = None,
        veil: WindowRedaction = UNREDACTED,
    ) -> None:
        self.window = window
        self.pulse = pulse or HealthCheck(store)
        self._store = store
        self._listeners = listeners
        self._reasoning = reasoning
        self._veil = veil
        self._scales = Scales()

    async def add(self, said: TurnRecord, read: SessionView | None) -> bool:
        """Whether a turn is held now; not where others wrote its session since it was ``read``.

        Raises StoreError, Deleted and TurnTooLong included.
        """
        told = await transcript_off_loop(said.answer)
        if not told.has_content:
            return True  # a failed turn leaves memory as it was, be it without this session

        def change(held: Session) -> Session:
            held = repair_clock(held, time.time())
            known = apply_turn(held, said, told, reasoning=self._reasoning, veil=self._veil)
            return self._asking(known, said)

        return await self.write(said.key, change, at=said.at, read=read, lines=len(said.window))

    async def write(
        self,
        key: Key,
        change: Callable[[Session], Session],
        *,
        at: float,
        read: SessionView | None = None,
        lines: int = 0,
    ) -> bool:
        """Whether a session is held as it was changed, by a window of so many ``lines``.

        ``at`` is when what is written came about, in seconds since 1970. Raises StoreError.
        """
        session, version = await self._held(key) if read is None else (read.session, read.version)
        if not version and (forgotten := await self._store.deleted(key)):
            session = deleted_session(forgotten)

        def work() -> SessionWrite:
            return prepare_write(session, change(session), self.window, now=at)

        made = await in_thread_if_long(work, lines + len(session.entries))
        if written := await self._written(key, made, version=version, at=at):
            self.notify(key, made.session)
        return written

    def notify(self, key: Key, session: Session) -> None:
        """Tells the listeners of a session that was written."""
        for told in self._listeners:
            told(key, session)

    async def _held(self, key: Key) -> tuple[Session, int]:
        return self._store.opened(key, await self._store.read(key, background=True))

    async def _written(self, key: Key, made: SessionWrite, *, version: int, at: float) -> bool:
        with self.pulse.writing(key):
            put = BlobWrite(made.blob, version, self.window.ttl, made.cold, at)
            written = await self._store.write(key, put)
        if written:
            self._store.keep(key, made.blob, made.session)
        return written

    def _asking(self, session: Session, said: TurnRecord) -> Session:
        """The session with what is known of how it is asked."""
        model, room = said.model or session.model, 0 if said.room is None else max(said.room, 1)
        trimmed = room > 0 and (session.trimmed or not session.room)
        if (model, trimmed, room) != (session.model, session.trimmed, session.room):
            session = msgspec.structs.replace(session, model=model, trimmed=trimmed, room=room)
        return session if model is None else with_scale(session, self._scale(model, said))

    def _scale(self, model: str, said: TurnRecord) -> float | None:
        if said.again or not self._scales.wants_sample(model):
            return self._scales.skip(model)
        counted = usage_of([said.answer]).input
        return (
            self._scales.learn(model, estimate_tokens(said.shown, said.tools), counted) if counted else None
        )


class Recorder:
    """Has turns written in the background, those of one session one after the other."""

    def __init__(self, writer: Writer) -> None:
        self.lost_turns = 0
        self.arrears = Backlog()
        self._writer = writer
        self._pulse = writer.pulse
        self._waiting: dict[Key, deque[TurnRecord]] = {}
        self._count = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._heir: Recorder | None = None

    @property
    def pending(self) -> int:
        """How many turns are yet to be written."""
        return self._count

    @property
    def failing(self) -> bool:
        """Whether turns wait for a store that did not take them."""
        return bool(self.arrears) or self._pulse.late

    def is_behind(self, key: Key) -> bool:
        """Whether turns of this session wait for the store, or one that is recorded now would have to."""
        refusing = bool(self.arrears) and self._pulse.refusing
        return refusing or key in self.arrears or self._pulse.late

    def put(self, said: TurnRecord) -> None:
        """Takes a turn over; it never waits. Beyond 10,000 waiting turns the newest are lost, and counted."""
        if self._heir:
            self._heir.put(said)
            return
        if self._count >= _MOST_WAITING:
            self.lost_turns += 1
            self.arrears.lost()
            return
        self._count += 1
        if said.key in self._waiting:
            self.arrears.joined(said.key)
            self._waiting[said.key].append(without_view(said))
            return
        self._waiting[said.key] = deque([said])
        task = asyncio.get_running_loop().create_task(self._write(said.key))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def transfer(self, heir: "Recorder") -> None:
        """Leaves what waits and what is still to come to another one; what both write changes nothing."""
        for task in self._tasks:
            task.cancel()
        waiting, self._waiting, self._heir = self._waiting, {}, heir
        self._count = 0
        for said in (said for turns in waiting.values() for said in turns):
            heir.put(said)
        heir.arrears, self.arrears = self.arrears, Backlog()

    async def drain(self) -> None:
        """Waits until everything is written, for three seconds at most; what is left then is lost."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=_DRAINED_WITHIN)
            for task in late:
                task.cancel()
        self.lost_turns += self._count
        if self.lost_turns:
            _log.error("%d turns could not be written to memory", self.lost_turns)

    async def revise(self, key: Key, change: Callable[[Session], Session], *, at: float) -> None:
        """Changes a session behind the turns that wait to be written, and tells of it; tries for two seconds.

        ``at`` is when what is written came about, in seconds since 1970. Raises StoreError.
        """
        fault = StoreError("others are writing this session")
        due = time.monotonic() + _ATTEMPTS * _SHORTEST
        while time.monotonic() < due:
            try:
                if key not in self._waiting and await self._writer.write(key, change, at=at):
                    return
            except SessionDeleted:
                raise
            except StoreError as error:
                fault = error
            await asyncio.sleep(_SHORTEST)
        raise fault

    async def _write(self, key: Key) -> None:
        turns = self._waiting[key]
        while turns:
            await self._first_written(turns)
            self.arrears.settled(key)
            turns.popleft()
            self._count -= 1
        del self._waiting[key]

    async def _first_written(self, turns: deque[TurnRecord]) -> None:
        read, pause = turns[0].view, _SHORTEST
        while True:
            try:
                if await self._writer.add(turns[0], read):
                    return
            except SessionDeleted:
                return
            except TurnTooLong as error:
                self._lost("is not remembered", error)
                return
            except StoreError as error:
                self._refused(turns, error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST)
            except Exception as error:  # noqa: BLE001 - one turn that cannot be written must not hold up the rest
                self._lost("cannot be written", type(error).__name__)
                return
            read = None

    def _lost(self, how: str, why: object) -> None:
        _log.error("A turn %s: %s", how, why)
        self.lost_turns += 1

    def _refused(self, turns: deque[TurnRecord], error: StoreError) -> None:
        """The first of a session's turns has to wait for the store, and the others with it."""
        self.arrears.refused(turns[0].key, error, len(turns))
        self._pulse.refused(error)
        turns[0] = without_view(turns[0])
