"""A session is read, changed and written, and whoever minds is told of it."""

import time
from collections.abc import Callable, Sequence

import msgspec

from proxy.answer.transcript import read_back
from proxy.memory.align.forgotten import deleted_session
from proxy.memory.apart import apart
from proxy.memory.merge.request import repair_clock
from proxy.memory.merge.turn import SessionWrite, TurnRecord, apply_turn, prepare_write
from proxy.memory.pulse import Pulse
from proxy.memory.recent import Recent
from proxy.memory.redaction.view import UNREDACTED, WindowRedaction
from proxy.memory.session import Session
from proxy.memory.store import Key, Put
from proxy.memory.summaries.compaction import Window
from proxy.memory.summaries.scale import Scales, estimated, scaled
from proxy.memory.view import SessionView
from proxy.observe.observation import usage_of

Listener = Callable[[Key, Session], None]
"""Told of a session as it was just written; it returns at once, and what takes time it does elsewhere."""


class Writer:
    """Writes one change of a session, once; whoever has it written again minds what it raises.

    ``window`` is how much of a session is kept, and ``pulse`` is told of each write that is under way.
    """

    def __init__(  # noqa: PLR0913 - where it writes, and what it minds
        self,
        store: Recent,
        window: Window,
        listeners: Sequence[Listener] = (),
        *,
        reasoning: bool = False,
        pulse: Pulse | None = None,
        veil: WindowRedaction = UNREDACTED,
    ) -> None:
        self.window = window
        self.pulse = pulse or Pulse(store)
        self._store = store
        self._listeners = listeners
        self._reasoning = reasoning
        self._veil = veil
        self._scales = Scales()

    async def add(self, said: TurnRecord, read: SessionView | None) -> bool:
        """Whether a turn is held now; not where others wrote its session since it was ``read``.

        Raises StoreError, Deleted and Overgrown included.
        """
        told = await read_back(said.answer)
        if not told.reached:
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

        ``at`` is when what is written came about, in seconds since 1970. Raises StoreError, Deleted included.
        """
        session, version = await self._held(key) if read is None else (read.session, read.version)
        if not version and (forgotten := await self._store.deleted(key)):
            session = deleted_session(forgotten)

        def work() -> SessionWrite:
            return prepare_write(session, change(session), self.window, now=at)

        made = await apart(work, lines + len(session.entries))
        if written := await self._written(key, made, version=version, at=at):
            self.tell(key, made.session)
        return written

    def tell(self, key: Key, session: Session) -> None:
        """Tells the listeners of a session that was written."""
        for told in self._listeners:
            told(key, session)

    async def _held(self, key: Key) -> tuple[Session, int]:
        return self._store.opened(key, await self._store.read(key, leisure=True))

    async def _written(self, key: Key, made: SessionWrite, *, version: int, at: float) -> bool:
        with self.pulse.writing(key):
            put = Put(made.blob, version, self.window.ttl, made.cold, at)
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
        return session if model is None else scaled(session, self._scale(model, said))

    def _scale(self, model: str, said: TurnRecord) -> float | None:
        if said.again or not self._scales.wants(model):
            return self._scales.passed_over(model)
        counted = usage_of([said.answer]).input
        return self._scales.learned(model, estimated(said.shown, said.tools), counted) if counted else None
