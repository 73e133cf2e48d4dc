"""Background jobs on sessions: found in the store, and run by one process at a time."""

import asyncio
import contextlib
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final, Protocol

from proxy.background.backoff import JobCircuit, SessionFailures, concerns_model
from proxy.circuit import Outage
from proxy.clock import wall_time
from proxy.memory.errors import StoreError, WriteConflict
from proxy.memory.session import UNREADABLE, Session
from proxy.memory.stores import lease
from proxy.memory.stores.session_store import SessionStore, first_due
from proxy.memory.stores.store import NEVER_DUE, DueSession, Key

EVERY: Final = 5.0
"""How often a process asks the store for sessions whose work is due, in seconds."""

_AT_ONCE: Final = 4
_TAKEN_AT_ONCE: Final = 20
# Work that fails rests here, in its back-off, and is not taken by others all the time.
_RESTING: Final = 30.0
# More sessions than that wait in the store for a model that is away, or for a slot.
_MOST_RESTING: Final = 100
_MOST_QUEUED: Final = 10_000
_UNREADABLE_FOR: Final = 3600.0
_SLACK: Final = 0.05
_FAREWELL: Final = 1.0


class SessionJob(Protocol):
    """A kind of background work on sessions. It is idempotent."""

    @property
    def name(self) -> str:
        """A name of its own."""
        ...

    def due_at(self, session: Session) -> float:
        """From when on there is something to do for a session, in seconds since 1970; ``NEVER_DUE``.

        This is cheap: each write of a session asks it.
        """
        ...

    async def run(self, key: Key, unusable: int) -> bool:
        """Does one step of what is due; returns whether there may be another.

        After an exception it is run again. ``unusable`` counts the answers of models to this
        step that could not be used.
        """
        ...

    @property
    def has_fallback(self) -> bool:
        """Whether ``run_fallback`` does anything."""
        ...

    async def run_fallback(self, key: Key) -> None:
        """Does what can be done while ``run`` fails."""
        ...


class Service(Protocol):
    """Background work that finds by itself what is due."""

    async def run(self) -> None:
        """Works until it is cancelled."""
        ...


class Worker:
    """Runs jobs on the sessions of some tenants, and ``services`` beside them."""

    def __init__(
        self,
        store: SessionStore,
        jobs: Sequence[SessionJob],
        tenants: Sequence[str],
        services: Sequence[Service] = (),
    ) -> None:
        self._store = store
        self._jobs = jobs
        self._due = [job.due_at for job in jobs]
        self._tenants = tenants
        self._services = services
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._tasks: dict[tuple[str, Key], asyncio.Task[None]] = {}
        self._queue: dict[tuple[str, Key], SessionJob] = {}
        self._taken: dict[Key, DueSession] = {}
        self._again: set[tuple[str, Key]] = set()
        self._side_tasks: set[asyncio.Task[None]] = set()
        self._circuits = {job.name: JobCircuit(job.name) for job in jobs}
        self._outage = Outage("Memory does not answer: %s", "Memory answers again")
        self._running = False
        self._look_at = 0.0
        self._woken = asyncio.Event()

    def session_written(self, key: Key, session: Session) -> None:
        """Starts the jobs that are due for a session that was just written, while the worker runs."""
        now = wall_time()
        for job in self._jobs if self._running else ():
            item, due = (job.name, key), job.due_at(session)
            if item in self._tasks or item in self._queue:
                self._again.add(item)  # it may be past its last look
            elif due > now:
                if due + _SLACK < self._look_at:
                    self._look_at = due + _SLACK
                    self._woken.set()
            elif self._has_room(job):
                self._start(job, key)
                continue
            if job.has_fallback and self._circuits[job.name].failing and due <= now:
                self._spawn(self._run_fallback(job, key))

    @property
    def failing(self) -> Mapping[str, bool]:
        """By the names of jobs, whether all of their last tries failed."""
        return {name: circuit.failing for name, circuit in self._circuits.items()}

    async def run(self, *, every: float = EVERY) -> None:
        """Works until it is cancelled; takes what is due while there is any, else looks every few seconds."""
        self._running = True
        services = [asyncio.create_task(service.run()) for service in self._services]
        try:
            while self._jobs or services:
                self._look_at = wall_time() + every
                if self._jobs and await self._take():
                    self._look_at = 0.0
                while (pause := self._look_at - wall_time()) > 0 or self._is_busy:
                    self._woken.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(pause if pause > 0 else None):
                            await self._woken.wait()
        finally:
            self._running = False
            unfinished = [taken for key, taken in self._taken.items() if self._works_on(key)]
            self._queue.clear()
            tasks = [*self._tasks.values(), *self._side_tasks, *services]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._give_back(unfinished)

    @property
    def _is_busy(self) -> bool:
        return bool(self._queue) or self._slots.locked()

    async def _take(self) -> bool:
        """Takes sessions that are due and starts their jobs; returns whether there were any."""
        try:
            taken = await self._store.take_due(self._tenants, limit=_TAKEN_AT_ONCE, lease=lease.TTL)
            for each in taken:
                await self._check(each)
        except StoreError as error:
            self._outage.begin(error)
            return False
        self._outage.end()
        return bool(taken)

    async def _check(self, due_session: DueSession) -> None:
        """Starts the jobs that are due for a session; it is taken again after the lease, until none is."""
        key, now = due_session.key, wall_time()
        try:
            await asyncio.sleep(0)  # turns come first
            stored = await self._store.load(key, background=True)
        except UNREADABLE:
            await self._store.settle(due_session, now + _UNREADABLE_FOR)
            return
        if stored is None:
            await self._store.settle(due_session, NEVER_DUE)
        elif key.tenant in self._tenants:
            rests = self._works_on(key) or self._is_left(stored.session, now)
            due = now + _RESTING if rests else first_due(self._due, stored.session)
            latest = await self._store.settle(due_session, due) if due > now else due_session
            self.session_written(key, stored.session)
            if latest and self._works_on(key):
                self._taken[key] = latest

    async def _give_back(self, unfinished: Sequence[DueSession]) -> None:
        """Has sessions due now that were taken: another worker need not wait until their leases end."""
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(_FAREWELL):
                for taken in unfinished:
                    await self._store.settle(taken, wall_time())

    def _works_on(self, key: Key) -> bool:
        """Whether jobs of a session run, rest after a failure, or wait for a slot."""
        items = [(job.name, key) for job in self._jobs]
        return any(item in self._tasks or item in self._queue for item in items)

    def _is_left(self, session: Session, now: float) -> bool:
        """Whether some of what is due for a session is not begun yet, as too many others wait for it."""
        return any(job.due_at(session) <= now and not self._has_room(job) for job in self._jobs)

    def _has_room(self, job: SessionJob) -> bool:
        """Whether one more session may wait here; others are due in the store, and are taken again."""
        return len(self._queue) < _MOST_QUEUED and not self._is_full(job)

    def _is_full(self, job: SessionJob) -> bool:
        """Whether no more sessions may rest until the model of a job answers again."""
        waiting = sum(name == job.name for name, _ in self._tasks) if self._circuits[job.name].open else 0
        return waiting >= _MOST_RESTING

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        async def tolerant() -> None:
            # What cannot be read or written now is taken again.
            with contextlib.suppress(StoreError, WriteConflict, *UNREADABLE):
                await work

        task = asyncio.get_running_loop().create_task(tolerant())
        self._side_tasks.add(task)
        task.add_done_callback(self._side_tasks.discard)

    def _start(self, job: SessionJob, key: Key) -> None:
        item = job.name, key
        if self._slots.locked():  # a name takes less memory than a task
            self._queue[item] = job
            return

        def ended(_: object) -> None:
            self._tasks.pop(item, None)
            if self._running and item in self._again:
                self._start(job, key)
            self._again.discard(item)
            if not self._works_on(key):
                self._taken.pop(key, None)
            self._start_next()

        self._again.discard(item)
        task = self._tasks[item] = asyncio.get_running_loop().create_task(self._run_until_done(job, key))
        task.add_done_callback(ended)

    def _start_next(self) -> None:
        while self._queue and self._running and not self._slots.locked():
            item, job = next(iter(self._queue.items()))
            del self._queue[item]
            if not self._is_full(job):
                self._start(job, item[1])
                break
            self._again.discard(item)
            if not self._works_on(item[1]):
                self._taken.pop(item[1], None)
        self._woken.set()

    async def _run_until_done(self, job: SessionJob, key: Key) -> None:
        circuit, failures = self._circuits[job.name], SessionFailures()
        while True:
            done, pause = None, 0.0
            try:
                done = await self._run_in_turn(job, key, failures)
            except UNREADABLE:
                return
            except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again
                failures.add(error)
                circuit.note(error, key, failures)
                pause = failures.pause
            finally:
                self._start_next()
            # The exception is freed by now, and with it all that had been read.
            if pause:
                await circuit.rest(pause)
            elif done:
                failures = SessionFailures()
                await asyncio.sleep(0)
            else:  # nothing is left, or another process works on it: what it leaves is taken again
                return

    async def _run_in_turn(self, job: SessionJob, key: Key, failures: SessionFailures) -> bool | None:
        """Runs a job once the circuit admits this session; ``None`` where another process has the lease."""
        circuit = self._circuits[job.name]
        while True:
            if job.has_fallback and (circuit.open or failures.repeated):
                await self._run_fallback(job, key)
            if circuit.open:
                self._start_next()  # a session that waits takes no slot
            probe = await circuit.admit(has_failed=failures.count > 0)
            async with self._slots:
                if circuit.open and not probe:
                    continue  # it opened while all slots were taken
                return await self._run(job, key, failures.unusable, probe=probe)

    async def _run(self, job: SessionJob, key: Key, unusable: int, *, probe: bool) -> bool | None:
        circuit = self._circuits[job.name]
        done: bool | None = True
        try:
            async with lease.lease(self._store, job.name, key) as ours:
                done = await job.run(key, unusable) if ours else None
        except Exception as error:
            done = True if concerns_model(error) else None
            raise
        finally:
            if probe and not done:
                circuit.return_probe()
        if done:
            circuit.succeeded()
        return done

    async def _run_fallback(self, job: SessionJob, key: Key) -> None:
        async with lease.lease(self._store, job.name, key) as ours:
            if ours:
                await job.run_fallback(key)
