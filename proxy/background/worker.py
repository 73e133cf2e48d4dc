"""Background jobs on sessions: found in the store, and run by one process at a time."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, Protocol

from proxy.background.backoff import JobCircuit, SessionFailures, concerns_model
from proxy.circuit import Outage
from proxy.memory.errors import StoreError, WriteConflict
from proxy.memory.session import UNREADABLE, Session
from proxy.memory.stores import lease
from proxy.memory.stores.session_store import SessionStore
from proxy.memory.stores.store import Key

EVERY: Final = 60.0
"""How often a process that hears which sessions were written scans the store, in seconds."""
ALONE_EVERY: Final = 5.0
"""The same for a process that hears of none."""

_AT_ONCE: Final = 4
_PAGE: Final = 100
# How far the clocks of two machines may be apart.
_CLOCKS: Final = 120.0
_SLACK: Final = 0.05


class SessionJob(Protocol):
    """A kind of background work on sessions. It is idempotent."""

    @property
    def name(self) -> str:
        """A name of its own."""
        ...

    @property
    def delay(self) -> float:
        """How many seconds after a session's last write the job may still become due."""
        ...

    def is_due(self, session: Session) -> bool:
        """Whether there is something to do for a session; this is cheap."""
        ...

    async def run(self, key: Key, unusable: int) -> bool:
        """Does one step of what is due; returns whether there was one. After an exception it is run again.

        ``unusable`` counts the answers of models to this step that could not be used.
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
        self._tenants = tenants
        self._services = services
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._tasks: dict[tuple[str, Key], asyncio.Task[None]] = {}
        self._queue: dict[tuple[str, Key], SessionJob] = {}
        self._again: set[tuple[str, Key]] = set()
        self._side_tasks: set[asyncio.Task[None]] = set()
        self._circuits = {job.name: JobCircuit(job.name) for job in jobs}
        self._outage = Outage("Memory does not answer: %s", "Memory answers again")
        self._running, self._since = False, 0.0
        self._is_complete = False

    @property
    def scanned_until(self) -> float:
        """From when on another worker with these jobs is to scan; 0 where this one ended with work undone."""
        return self._since if self._is_complete else 0.0

    def resume(self, scanned_until: float) -> None:
        """Scans, at the start, what was written since then."""
        self._since = scanned_until

    def session_written(self, key: Key, session: Session) -> None:
        """Starts the jobs that are due for a session that was just written, while the worker runs."""
        for job in self._jobs if self._running else ():
            item = job.name, key
            if item in self._tasks or item in self._queue:
                self._again.add(item)  # it may be past its last look
                if job.has_fallback and self._circuits[job.name].failing and job.is_due(session):
                    self._spawn(self._run_fallback(job, key))
            elif job.is_due(session):
                self._start(job, key)

    def check(self, key: Key) -> None:
        """Reads a session that may have become due, and starts the jobs that are."""
        if self._running:
            self._spawn(self._check(key))

    @property
    def failing(self) -> Mapping[str, bool]:
        """By the names of jobs, whether all of their last tries failed."""
        return {name: circuit.failing for name, circuit in self._circuits.items()}

    async def run(self, *, every: float = EVERY) -> None:
        """Works until it is cancelled; scans the store at once and then every few seconds."""
        self._running = True
        services = [asyncio.create_task(service.run()) for service in self._services]
        try:
            while self._jobs or services:
                done = not self._jobs or await self._scan()
                await asyncio.sleep(every if done else min(every, ALONE_EVERY))
        finally:
            self._running = False
            self._is_complete = not (self._tasks or self._queue or self._side_tasks)
            self._queue.clear()
            tasks = [*self._tasks.values(), *self._side_tasks, *services]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _scan(self) -> bool:
        """Checks the sessions that were written since the last scan; returns whether the store answered."""
        start = time.time()
        try:
            for tenant in self._tenants:
                after = ""
                while page := await self._store.list(tenant, after=after, limit=_PAGE):
                    for line in page:
                        if line.updated >= self._since:
                            await self._check(Key(tenant, line.session))
                    after = page[-1].session
        except StoreError as error:
            self._outage.begin(error)
            return False
        self._outage.end()
        self._since = start - _CLOCKS - max((job.delay for job in self._jobs), default=0.0)
        return True

    async def _check(self, key: Key) -> None:
        try:
            await asyncio.sleep(0)  # turns come first
            stored = await self._store.load(key, background=True)
        except UNREADABLE:
            return
        if stored:
            self.session_written(key, stored.session)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        async def tolerant() -> None:
            # What cannot be read or written now is found by the next scan.
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
            self._start_next()

        self._again.discard(item)
        task = self._tasks[item] = asyncio.get_running_loop().create_task(self._run_until_done(job, key))
        task.add_done_callback(ended)

    def _start_next(self) -> None:
        if self._queue and self._running and not self._slots.locked():
            item, job = next(iter(self._queue.items()))
            del self._queue[item]
            self._start(job, item[1])

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
            if done is False:
                return
            if pause:
                await circuit.rest(pause)
            elif done:
                failures = SessionFailures()
                await asyncio.sleep(0)
            else:
                await asyncio.sleep(lease.TTL / 4)

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


class IdleTimer:
    """Calls ``listener`` once a session has not been written for ``after`` seconds.

    Timers end with the process; a scan of the store finds what they would have.
    """

    def __init__(self, listener: Callable[[Key], None], *, after: float) -> None:
        self._listener = listener
        self._after = after + _SLACK
        # In the order of their times: one timer is enough.
        self._waiting: dict[Key, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def session_written(self, key: Key, _: Session) -> None:
        """Restarts the timer of a session; only its name is kept."""
        loop = asyncio.get_running_loop()
        self._waiting.pop(key, None)
        self._waiting[key] = loop.time() + self._after
        if self._timer is None:
            self._timer = loop.call_later(self._after, self._ring)

    def _ring(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        for key, at in [*self._waiting.items()]:
            if at > loop.time():
                self._timer = loop.call_at(at, self._ring)
                return
            del self._waiting[key]
            self._listener(key)
