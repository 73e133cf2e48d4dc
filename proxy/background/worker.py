"""What is done while no caller waits."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, Protocol

from proxy.background.backoff import Lull, Setbacks
from proxy.errors import UpstreamError
from proxy.memory.errors import NoModel, StoreError, SummaryFailed, UnusableAnswer, WriteConflict
from proxy.memory.session import UNREADABLE, Session
from proxy.memory.stores import lease
from proxy.memory.stores.session_store import SessionStore
from proxy.memory.stores.store import Key

_log = logging.getLogger("turnkeeper")
EVERY: Final = 60.0
"""How often the store is looked through by a process that is told of each turn, in seconds."""
ALONE_EVERY: Final = 5.0
"""The same for a process that is told of nothing."""
_AT_ONCE: Final = 4
_PAGE: Final = 100
# How far the clocks of two machines may be apart.
_CLOCKS: Final = 120.0
_SLACK: Final = 0.05


class SessionJob(Protocol):
    """One kind of work on sessions; the same again changes nothing."""

    @property
    def name(self) -> str:
        """What tells it from other kinds."""
        ...

    @property
    def delay(self) -> float:
        """How many seconds after a session was written last something may still become due, by itself."""
        ...

    def is_due(self, session: Session) -> bool:
        """Whether there is something to do for a session; it costs no more than a look at it."""
        ...

    async def run(self, key: Key, unusable: int) -> bool:
        """Does what is due now; whether there was anything. What it raises is tried again, after pauses.

        ``unusable`` is how many answers a model has given in vain.
        """
        ...

    @property
    def has_fallback(self) -> bool:
        """Whether anything can stand in for what it does."""
        ...

    async def run_fallback(self, key: Key) -> None:
        """Does for now what can be done while ``do`` fails."""
        ...


class Service(Protocol):
    """Work that finds by itself what is due."""

    async def run(self) -> None:
        """Works until it is cancelled."""
        ...


class Outage:
    """It is said when it begins, and when it is over."""

    def __init__(self) -> None:
        self._on = False

    def begun(self, fault: Exception) -> None:
        """Memory did not answer."""
        if not self._on:
            _log.warning("Memory does not answer: %s", fault)
        self._on = True

    def over(self) -> None:
        """Memory has answered."""
        if self._on:
            _log.warning("Memory answers again")
        self._on = False


class Worker:
    """Does all kinds of work on the sessions of some tenants while it runs, and ``chores`` beside it."""

    def __init__(
        self,
        store: SessionStore,
        works: Sequence[SessionJob],
        tenants: Sequence[str],
        chores: Sequence[Service] = (),
    ) -> None:
        self._store = store
        self._works = works
        self._tenants = tenants
        self._chores = chores
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._tasks: dict[tuple[str, Key], asyncio.Task[None]] = {}
        self._queue: dict[tuple[str, Key], SessionJob] = {}
        self._lulls = {work.name: Lull(work.name) for work in works}
        self._late: set[tuple[str, Key]] = set()
        self._beside: set[asyncio.Task[None]] = set()
        self._outage = Outage()
        self._running, self._seen = False, 0.0

    def session_written(self, key: Key, session: Session) -> None:
        """Tells of a session that was just written; what is due is done soon, while the worker runs."""
        for work in self._works if self._running else ():
            job = work.name, key
            if job in self._tasks or job in self._queue:
                self._late.add(job)  # it may be past its last look
                if work.has_fallback and self._lulls[work.name].failing and work.is_due(session):
                    self._aside(self._stood_in(work, key))
            elif work.is_due(session):
                self._begin(work, key)

    def check(self, key: Key) -> None:
        """Tells of a session that may have become due; what it holds is read once more."""
        if self._running:
            self._aside(self._consider(key))

    @property
    def failing(self) -> Mapping[str, bool]:
        """Which kinds of work have failed of late, and nothing else."""
        return {name: lull.failing for name, lull in self._lulls.items()}

    async def run(self, *, every: float = EVERY) -> None:
        """Works until it is cancelled; looks through the store at once and then every few seconds."""
        self._running = True
        chores = [asyncio.create_task(chore.run()) for chore in self._chores]
        try:
            while self._works or chores:
                done = not self._works or await self._look_through()
                await asyncio.sleep(every if done else min(every, ALONE_EVERY))
        finally:
            self._running = False
            await self._stop(chores)

    async def _stop(self, chores: Sequence[asyncio.Task[None]]) -> None:
        self._queue.clear()
        tasks = [*self._tasks.values(), *self._beside, *chores]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _look_through(self) -> bool:
        """Looks at what was written since; whether the store let itself be looked through."""
        began = time.time()
        try:
            for tenant in self._tenants:
                await self._look_at(tenant)
        except StoreError as error:
            self._outage.begun(error)
            return False
        self._outage.over()
        self._seen = began - _CLOCKS - max((work.delay for work in self._works), default=0.0)
        return True

    async def _look_at(self, tenant: str) -> None:
        after = ""
        while page := await self._store.list(tenant, after=after, limit=_PAGE):
            for line in page:
                if line.updated >= self._seen:
                    await self._consider(Key(tenant, line.session))
            after = page[-1].session

    async def _consider(self, key: Key) -> None:
        try:
            await asyncio.sleep(0)  # calls come first
            stored = await self._store.load(key, background=True)
        except UNREADABLE:
            return
        if stored:
            self.session_written(key, stored.session)

    def _aside(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(_tolerated(work))
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    def _begin(self, work: SessionJob, key: Key) -> None:
        job = work.name, key
        if self._slots.locked():  # a name takes less to keep than a task does
            self._queue[job] = work
            return
        self._late.discard(job)
        task = asyncio.get_running_loop().create_task(self._until_done(work, key))
        self._tasks[job] = task
        task.add_done_callback(lambda _: self._ended(work, key))

    def _begin_next(self) -> None:
        if self._queue and self._running and not self._slots.locked():
            (_, key), work = next(iter(self._queue.items()))
            del self._queue[work.name, key]
            self._begin(work, key)

    def _ended(self, work: SessionJob, key: Key) -> None:
        job = work.name, key
        self._tasks.pop(job, None)
        if self._running and job in self._late:
            self._begin(work, key)
        self._late.discard(job)
        self._begin_next()

    async def _until_done(self, work: SessionJob, key: Key) -> None:
        lull, setbacks = self._lulls[work.name], Setbacks()
        while True:
            failed = setbacks.count
            done = await self._noted(work, key, setbacks)
            if done is False:
                return
            if done:
                setbacks = Setbacks()
            if setbacks.count > failed:
                # The failure itself is gone by now, and with it all that had been read.
                await lull.rest(setbacks.rest)
            else:
                await asyncio.sleep(0 if done else lease.TTL / 4)

    async def _noted(self, work: SessionJob, key: Key, setbacks: Setbacks) -> bool | None:
        """Whether there was anything to do; ``None`` where others do it, or it is to be tried again."""
        try:
            return await self._tried(work, key, setbacks)
        except UNREADABLE:
            return False
        except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again
            setbacks.add(error)
            self._note(self._lulls[work.name], setbacks, key, error)
            return None
        finally:
            self._begin_next()

    def _note(self, lull: Lull, setbacks: Setbacks, key: Key, error: Exception) -> None:
        if isinstance(error, NoModel):
            return
        if isinstance(error, UnusableAnswer):
            lull.succeeded()  # whoever answers is not away
        elif _tells_of_models(error):
            lull.failed(key, setbacks.fault, wanted=setbacks.wanted)
        if setbacks.have_become_many:
            lull.fails_alone(setbacks.fault)

    async def _tried(self, work: SessionJob, key: Key, setbacks: Setbacks) -> bool | None:
        """Whether there was anything to do, when it is this session's turn; ``None`` where others do it."""
        lull = self._lulls[work.name]
        while True:
            if work.has_fallback and (lull.on or setbacks.are_many):
                await self._stood_in(work, key)
            if lull.on:
                self._begin_next()  # who waits for its end takes no slot
            for_all = await lull.over()
            async with self._slots:
                if lull.on and not for_all:
                    continue  # a lull began while all slots were taken
                return await self._attempt(work, key, setbacks.unusable, for_all=for_all)

    async def _attempt(self, work: SessionJob, key: Key, unusable: int, *, for_all: bool) -> bool | None:
        lull = self._lulls[work.name]
        asked: bool | None = True
        try:
            async with lease.lease(self._store, work.name, key) as ours:
                asked = await work.run(key, unusable) if ours else None
        except Exception as error:
            asked = True if _tells_of_models(error) else None
            raise
        finally:
            if for_all and not asked:
                lull.returned()
        if asked:
            lull.succeeded()
        return asked

    async def _stood_in(self, work: SessionJob, key: Key) -> None:
        async with lease.lease(self._store, work.name, key) as ours:
            if ours:
                await work.run_fallback(key)


def _tells_of_models(error: Exception) -> bool:
    """Whether it says anything of a model; a store that fails, or a fault of ours, does not."""
    return isinstance(error, (UpstreamError, SummaryFailed, UnusableAnswer)) and not isinstance(
        error, NoModel
    )


async def _tolerated(work: Coroutine[Any, Any, None]) -> None:
    # What cannot be read or written now is found when the store is looked through.
    with contextlib.suppress(StoreError, WriteConflict, *UNREADABLE):
        await work


class IdleTimer:
    """Tells ``listener`` of a session ``after`` so many seconds, unless it is written again before.

    What is waited for in a process that ends is found from the store.
    """

    def __init__(self, listener: Callable[[Key], None], *, after: float) -> None:
        self._listener = listener
        self._after = after + _SLACK
        # The one that was told longest ago comes first: one timer will do.
        self._waiting: dict[Key, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def session_written(self, key: Key, _: Session) -> None:
        """Takes note of a session that was just written; only its name is kept."""
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
