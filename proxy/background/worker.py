"""Runs background jobs on sessions that are due in the store, each in one process at a time."""

import asyncio
import contextlib
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final, Protocol

from proxy.background.backoff import JobCircuit, SessionFailures, concerns_model
from proxy.circuit import Outage
from proxy.clock import wall_time
from proxy.memory.archive.embeddings import EmbeddingWorker
from proxy.memory.errors import StoreError, Unreadable
from proxy.memory.session import Session
from proxy.memory.stores import lease
from proxy.memory.stores.session_store import SessionStore
from proxy.memory.stores.store import NEVER_DUE, DueSession, Key
from proxy.memory.tasks import Tasks, wait_for_event

EVERY: Final = 5.0
"""Seconds between two queries for due sessions."""

_AT_ONCE: Final = 4
_TAKEN_AT_ONCE: Final = 20
# While its job fails, a session becomes due again with each turn.
_TAKEN_EVERY: Final = 1.0
# A session whose job fails waits here in its back-off, so that other processes do not take it meanwhile.
_RESTING: Final = 30.0
# Further sessions wait in the store until the model answers.
_MOST_RESTING: Final = 100
_MOST_QUEUED: Final = 10_000
_UNREADABLE_FOR: Final = 3600.0
_SLACK: Final = 0.05
_FAREWELL: Final = 1.0


class SessionJob(Protocol):
    """A kind of background work on sessions, which must be idempotent."""

    @property
    def name(self) -> str:
        """The job's unique name."""
        ...

    def due_at(self, session: Session) -> float:
        """Returns when the job is due for a session, in seconds since 1970, or ``NEVER_DUE``.

        It must be cheap, because each write of a session calls it.
        """
        ...

    async def begin(self, key: Key, session: Session) -> Session:
        """Does the part of the job that is quick; returns the session after it.

        Several processes may call it at once. The rest, and whatever fails, is left to ``run``.
        """
        ...

    async def run(self, key: Key, unusable: int) -> bool:
        """Does one step of the job; returns whether there may be another.

        It is called again after an exception. ``unusable`` is how many of the models' answers to this step
        could not be used.
        """
        ...

    def fallback_is_due(self, session: Session) -> bool:
        """Whether ``run_fallback`` would change a session."""
        ...

    async def run_fallback(self, key: Key) -> None:
        """Does what is possible while ``run`` fails."""
        ...


class Worker:
    """Runs jobs on the sessions of some tenants, and the worker that embeds the archive's texts."""

    def __init__(
        self,
        store: SessionStore,
        jobs: Sequence[SessionJob],
        tenants: Sequence[str],
        embedding: EmbeddingWorker | None = None,
    ) -> None:
        self._store = store
        self._jobs = jobs
        self._tenants = tenants
        self._embedding = embedding
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._tasks: dict[tuple[str, Key], asyncio.Task[None]] = {}
        self._queue: dict[tuple[str, Key], SessionJob] = {}
        self._leases: dict[Key, DueSession] = {}
        # Sessions whose job was due when they were written, and those that had a job running then.
        self._written: set[Key] = set()
        self._again: set[Key] = set()
        self._side_tasks = Tasks()
        self._circuits = {job.name: JobCircuit(job.name) for job in jobs}
        self._outage = Outage("Memory does not answer: %s", "Memory answers again")
        self._running = False
        self._look_at = 0.0
        self._woken = asyncio.Event()

    def session_written(self, key: Key, due: float) -> None:
        """Schedules a check of a session that was just written, at once or when its job is due."""
        if due > wall_time():
            self._take_at(due)
        elif not self._running:
            return
        elif self._works_on(key):
            self._again.add(key)
        else:
            if not self._written:
                self._spawn(self._check_written())
            self._written.add(key)

    @property
    def failing(self) -> Mapping[str, bool]:
        """Whether all of a job's latest runs failed, by the job's name."""
        return {name: circuit.failing for name, circuit in self._circuits.items()}

    async def run(self, *, every: float = EVERY) -> None:
        """Takes due sessions until cancelled; with none due, queries the store every ``every`` seconds."""
        self._running = True
        embedding = [asyncio.create_task(self._embedding.run())] if self._embedding else []
        try:
            while self._jobs or embedding:
                self._look_at = wall_time() + every
                if self._jobs:
                    self._look_at = wall_time() + await self._take(every)
                while (pause := self._look_at - wall_time()) > 0 or self._queue or self._slots.locked():
                    self._woken.clear()
                    await wait_for_event(self._woken, pause if pause > 0 else None)
        finally:
            self._running = False
            unfinished = [session for key, session in self._leases.items() if self._works_on(key)]
            self._queue.clear()
            tasks = [*self._tasks.values(), *self._side_tasks, *embedding]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            # Due at once, so that another worker need not wait for the end of their leases.
            with contextlib.suppress(StoreError, TimeoutError):
                async with asyncio.timeout(_FAREWELL):
                    for session in unfinished:
                        await self._store.settle(session, wall_time())

    def _take_at(self, due: float) -> None:
        """Schedules the next query of the store for ``due`` at the latest."""
        if due + _SLACK < self._look_at:
            self._look_at = due + _SLACK
            self._woken.set()

    async def _take(self, every: float) -> float:
        """Takes due sessions and starts their jobs; returns the seconds until the next query."""
        try:
            taken = await self._store.take_due(self._tenants, limit=_TAKEN_AT_ONCE, lease=lease.TTL)
            await asyncio.gather(*map(self._check_taken, taken))
        except StoreError as error:
            self._outage.begin(str(error))
            return every
        self._outage.end()
        if len(taken) == _TAKEN_AT_ONCE:
            return 0.0
        return min(every, _TAKEN_EVERY) if taken else every

    async def _check_taken(self, session: DueSession) -> None:
        key = session.key
        if key.tenant in self._tenants:
            due = await self._check(key)
            if (latest := await self._store.settle(session, due)) and self._works_on(key):
                self._leases[key] = latest

    async def _check_written(self) -> None:
        while self._written:
            keys = [self._written.pop() for _ in range(min(len(self._written), _TAKEN_AT_ONCE))]
            # Sessions that cannot be read now are taken from the store when they are due.
            for due in await asyncio.gather(*map(self._check, keys), return_exceptions=True):
                if isinstance(due, float):
                    self._take_at(due)

    async def _check(self, key: Key) -> float:
        """Starts the due jobs of a session; returns when it is to be checked again."""
        try:
            session = await self._store.session(key)
        except Unreadable:
            return wall_time() + _UNREADABLE_FOR
        first, now = NEVER_DUE, wall_time()
        if session is None:
            return first
        for job in self._jobs:
            due, circuit = job.due_at(session), self._circuits[job.name]
            is_new = (job.name, key) not in self._tasks and (job.name, key) not in self._queue
            if due <= now and is_new:
                with contextlib.suppress(Exception):  # ``run`` tries it again, and logs its failures
                    session = await job.begin(key, session)
                    due = job.due_at(session)
            if due <= now:
                # Other sessions stay due in the store, and are taken again.
                if is_new and len(self._queue) < _MOST_QUEUED and not self._is_full(job):
                    due = now + lease.TTL  # another process takes over soon if this one is killed
                    self._start(job, key)
                else:  # sessions wait in the back-off of a failing job, and for its model
                    due = now + _RESTING + circuit.pause
                    if circuit.failing and job.fallback_is_due(session):
                        self._spawn(self._run_fallback(job, key))
            first = min(first, due)
        return first

    def _works_on(self, key: Key) -> bool:
        """Whether a job of a session runs, waits in its back-off, or waits for a slot."""
        items = [(job.name, key) for job in self._jobs]
        return any(item in self._tasks or item in self._queue for item in items)

    def _is_full(self, job: SessionJob) -> bool:
        """Whether no more sessions may wait here until the model of a job answers again."""
        waiting = sum(name == job.name for name, _ in self._tasks) if self._circuits[job.name].open else 0
        return waiting >= _MOST_RESTING

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        async def tolerant() -> None:
            # Sessions that cannot be read or written now are taken again.
            with contextlib.suppress(StoreError):
                await work

        self._side_tasks.start(tolerant())

    def _start(self, job: SessionJob, key: Key) -> None:
        item = job.name, key
        if self._slots.locked():  # a name takes less memory than a task
            self._queue[item] = job
            return

        def ended(_: object) -> None:
            self._tasks.pop(item, None)
            self._leave(key)
            self._start_next()

        task = self._tasks[item] = asyncio.get_running_loop().create_task(self._run_until_done(job, key))
        task.add_done_callback(ended)

    def _start_next(self) -> None:
        while self._queue and self._running and not self._slots.locked():
            item, job = next(iter(self._queue.items()))
            del self._queue[item]
            if not self._is_full(job):
                self._start(job, item[1])
                break
            self._leave(item[1])
        self._woken.set()

    def _leave(self, key: Key) -> None:
        """Checks a session again that was written while its jobs ran, once none of them runs."""
        if not self._works_on(key):
            self._leases.pop(key, None)
            if key in self._again:
                self._again.discard(key)
                self.session_written(key, 0.0)

    async def _run_until_done(self, job: SessionJob, key: Key) -> None:
        circuit, failures = self._circuits[job.name], SessionFailures()
        while True:
            done, pause = None, 0.0
            try:
                done = await self._run_in_turn(job, key, failures)
            except Unreadable:
                return
            except Exception as error:  # noqa: BLE001 - the job is tried again after any error
                failures.add(error)
                circuit.note(error, key, failures)
                pause = failures.pause
            finally:
                self._start_next()
            # After the handler, so that the exception and the data in its frames are freed by now.
            if pause:
                await circuit.rest(pause)
            elif done:
                failures = SessionFailures()
                await asyncio.sleep(0)
            else:  # nothing is left to do, or another process runs the job
                return

    async def _run_in_turn(self, job: SessionJob, key: Key, failures: SessionFailures) -> bool | None:
        """Runs a job once its circuit admits the session; ``None`` if another process has the lease."""
        circuit = self._circuits[job.name]
        while True:
            if circuit.open or failures.repeated:
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
        session = await self._store.session(key)
        if session and job.fallback_is_due(session):
            async with lease.lease(self._store, job.name, key) as ours:
                if ours:
                    await job.run_fallback(key)
