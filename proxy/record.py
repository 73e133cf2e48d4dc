"""What was said is written down after the call, in its order, and again until it is written."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from proxy.aftermath import Kept, after, kept
from proxy.answer.transcript import read_back
from proxy.memory.apart import apart
from proxy.memory.arrears import Arrears
from proxy.memory.faults import Deleted, Overgrown, StoreError
from proxy.memory.pulse import Pulse
from proxy.memory.recent import Recent
from proxy.memory.reconcile.overtaken import settled
from proxy.memory.redaction.veil import BARE, Veil
from proxy.memory.replay.bygone import deleted
from proxy.memory.session.session import Session
from proxy.memory.sight import Reading
from proxy.memory.store import Key, Put
from proxy.memory.summaries.plan import Window
from proxy.memory.summaries.scale import Scales, estimated, scaled
from proxy.said import Said, alone
from proxy.telemetry.usage import usage_of

Listener = Callable[[Key, Session], None]
"""Told of a session as it was just written; it returns at once, and what takes time it does elsewhere."""

_log = logging.getLogger("turnkeeper")
_SHORTEST, _LONGEST = 0.1, 2.0
_ATTEMPTS, _MOST_WAITING, _DRAINED_WITHIN = 20, 10_000, 3.0


class Recorder:
    """Writes turns down in the background, those of one session one after the other.

    ``pulse`` tells how the store fares, and is told of what it takes and refuses.
    """

    def __init__(  # noqa: PLR0913 - where it writes, and what it minds
        self,
        store: Recent,
        window: Window,
        listeners: Sequence[Listener] = (),
        *,
        reasoning: bool = False,
        pulse: Pulse | None = None,
        veil: Veil = BARE,
    ) -> None:
        self.lost_turns = 0
        self.window = window
        self._store = store
        self._listeners = listeners
        self._reasoning = reasoning
        self._pulse = pulse or Pulse(store)
        self._veil = veil
        self._waiting: dict[Key, deque[Said]] = {}
        self.arrears = Arrears()
        self._scales = Scales()
        self._count = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._heir: Recorder | None = None

    @property
    def waiting(self) -> int:
        """How many turns are yet to be written."""
        return self._count

    @property
    def failing(self) -> bool:
        """Whether turns wait for a store that did not take them."""
        return bool(self.arrears) or self._pulse.late

    def lags(self, key: Key) -> bool:
        """Whether turns of this session wait for the store, or one that is recorded now would have to."""
        refusing = bool(self.arrears) and self._pulse.refusing
        return refusing or key in self.arrears or self._pulse.late

    def put(self, said: Said) -> None:
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
            self._waiting[said.key].append(alone(said))
            return
        self._waiting[said.key] = deque([said])
        task = asyncio.get_running_loop().create_task(self._write(said.key))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def hand_over(self, heir: "Recorder") -> None:
        """Leaves what waits and what is still to come to another one; what both write changes nothing."""
        for task in self._tasks:
            task.cancel()
        waiting, self._waiting, self._heir = self._waiting, {}, heir
        self._count = 0
        for said in (said for turns in waiting.values() for said in turns):
            heir.put(said)
        heir.arrears, self.arrears = self.arrears, Arrears()

    async def drain(self) -> None:
        """Waits until everything is written, for three seconds at most; what is left then is lost."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=_DRAINED_WITHIN)
            for task in late:
                task.cancel()
        self.lost_turns += self._count
        if self.lost_turns:
            _log.error("%d turns could not be written to memory", self.lost_turns)

    async def _write(self, key: Key) -> None:
        turns = self._waiting[key]
        while turns:
            await self._first_written(turns)
            self.arrears.settled(key)
            turns.popleft()
            self._count -= 1
        del self._waiting[key]

    async def _first_written(self, turns: deque[Said]) -> None:
        said = turns[0]
        pause, read = _SHORTEST, said.read
        while True:
            try:
                if await self._attempt(said, read):
                    return
                read = None
            except Deleted:
                return
            except Overgrown as error:
                _log.error("A turn is not remembered: %s", error)
                self.lost_turns += 1
                return
            except StoreError as error:
                self.arrears.refused(said.key, error, len(turns))
                self._pulse.refused(error)
                turns[0] = said = alone(said)
                read = None
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST)
            except Exception as error:  # noqa: BLE001 - one turn that cannot be written must not hold up the rest
                _log.error("A turn cannot be written: %s", type(error).__name__)
                self.lost_turns += 1
                return

    async def revise(self, key: Key, change: Callable[[Session], Session], *, at: float) -> None:
        """Changes a session behind the turns that wait to be written, and tells of it; tries for two seconds.

        ``at`` is when what is written came about, in seconds since 1970. Raises StoreError, Deleted included.
        """
        fault = StoreError("others are writing this session")
        due = time.monotonic() + _ATTEMPTS * _SHORTEST
        while time.monotonic() < due:
            try:
                if key not in self._waiting and await self._changed(key, change, at=at):
                    return
            except Deleted:
                raise
            except StoreError as error:
                fault = error
            await asyncio.sleep(_SHORTEST)
        raise fault

    async def _attempt(self, said: Said, read: Reading | None) -> bool:
        told = await read_back(said.answer)
        if not told.reached:
            return True  # a failed turn leaves memory as it was, be it without this session

        def change(held: Session) -> Session:
            held = settled(held, time.time())
            known = after(held, said, told, reasoning=self._reasoning, veil=self._veil)
            return self._asking(known, said)

        return await self._changed(said.key, change, at=said.at, read=read, lines=len(said.window))

    def _asking(self, session: Session, said: Said) -> Session:
        """The session with what is known of how it is asked."""
        model, room = said.model or session.model, 0 if said.room is None else max(said.room, 1)
        trimmed = room > 0 and (session.trimmed or not session.room)
        if (model, trimmed, room) != (session.model, session.trimmed, session.room):
            session = msgspec.structs.replace(session, model=model, trimmed=trimmed, room=room)
        return session if model is None else scaled(session, self._scale(model, said))

    def _scale(self, model: str, said: Said) -> float | None:
        if said.again or not self._scales.wants(model):
            return self._scales.passed_over(model)
        counted = usage_of([said.answer]).input
        return self._scales.learned(model, estimated(said.shown, said.tools), counted) if counted else None

    async def _changed(
        self,
        key: Key,
        change: Callable[[Session], Session],
        *,
        at: float,
        read: Reading | None = None,
        lines: int = 0,
    ) -> bool:
        """Whether a session is held as it was changed, by a window of so many ``lines``."""
        if read is None:
            session, version = self._store.opened(key, await self._store.read(key, leisure=True))
        else:
            session, version = read.session, read.version
        if not version and (forgotten := await self._store.deleted(key)):
            session = deleted(forgotten)

        def work() -> Kept:
            return kept(session, change(session), self.window, now=at)

        made = await apart(work, lines + len(session.entries))
        if written := await self._written(key, made, version=version, at=at):
            self.tell(key, made.session)
        return written

    async def _written(self, key: Key, made: Kept, *, version: int, at: float) -> bool:
        with self._pulse.writing(key):
            put = Put(made.blob, version, self.window.ttl, made.cold, at)
            written = await self._store.write(key, put)
        if written:
            self._store.keep(key, made.blob, made.session)
        return written

    def tell(self, key: Key, session: Session) -> None:
        """Tells the listeners of a session that was written."""
        for told in self._listeners:
            told(key, session)
