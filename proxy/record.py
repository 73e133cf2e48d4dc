"""What was said is written down after the call, in its order, and again until it is written."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable

from proxy.memory.arrears import Arrears
from proxy.memory.faults import Deleted, Overgrown, StoreError
from proxy.memory.merge.turn import TurnRecord, without_view
from proxy.memory.session import Session
from proxy.memory.store import Key
from proxy.writer import Writer

_log = logging.getLogger("turnkeeper")
_SHORTEST, _LONGEST = 0.1, 2.0
_ATTEMPTS, _MOST_WAITING, _DRAINED_WITHIN = 20, 10_000, 3.0


class Recorder:
    """Has turns written in the background, those of one session one after the other."""

    def __init__(self, writer: Writer) -> None:
        self.lost_turns = 0
        self.arrears = Arrears()
        self._writer = writer
        self._pulse = writer.pulse
        self._waiting: dict[Key, deque[TurnRecord]] = {}
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

    async def revise(self, key: Key, change: Callable[[Session], Session], *, at: float) -> None:
        """Changes a session behind the turns that wait to be written, and tells of it; tries for two seconds.

        ``at`` is when what is written came about, in seconds since 1970. Raises StoreError, Deleted included.
        """
        fault = StoreError("others are writing this session")
        due = time.monotonic() + _ATTEMPTS * _SHORTEST
        while time.monotonic() < due:
            try:
                if key not in self._waiting and await self._writer.write(key, change, at=at):
                    return
            except Deleted:
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
        read, pause = turns[0].read, _SHORTEST
        while True:
            try:
                if await self._writer.add(turns[0], read):
                    return
            except Deleted:
                return
            except Overgrown as error:
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
