"""Sessions on their way into the archive: after the calls, and again until they are there."""

import asyncio
import contextlib
import itertools
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec

from proxy.memory.archive.archive import Archive
from proxy.memory.errors import StoreError, Unreadable
from proxy.memory.session import UNREADABLE, Entry, Session, made_anew
from proxy.memory.stores.session_store import SessionStore
from proxy.memory.stores.store import CLOCK_TOLERANCE, Key, Owner

_log = logging.getLogger("turnkeeper")
_MOST_DUE: Final = 10_000
_SHORTEST, _LONGEST = 0.1, 5.0
_SWEEP_EVERY: Final = 60.0
_FAREWELL: Final = 3.0
_AT_ONCE: Final = 100
_TOGETHER: Final = 8
# A caller who is heard or answered has the machine to himself; one who never stops is kept all the same.
_QUIET: Final = 1.0
_LONGEST_DUE: Final = 20.0
# Servers are replaced one by one: the last of the old ones ends after the last start, and may leave something
# behind, or have kept it in the way of its version.
_LATER: Final = 180.0
# What was told last before a crash may carry a mark and not be kept; clocks of two machines differ.
_SLACK: Final = 60.0
_LOOKED_BACK: Final = 10
_MOST: Final = 10_000
# More than a session holds ready, unless its settings are far from what is shipped.
_UNSURE: Final = 200


class _Due(NamedTuple):
    """A session as it was told last, at ``mark``; due ``since``, and to be kept from ``at`` on.

    ``refused`` is whether it could not be kept so far.
    """

    session: Session
    mark: float
    since: float
    at: float
    refused: bool = False


class Archivist:
    """Keeps in the archive what the sessions hold.

    It is told of sessions, and keeps one that it was told nothing new of for ``quiet`` seconds; what it was
    not told of, or lost, it finds by comparing the store with the archive: at the start and soon after,
    and when too much was due. ``keep`` is for how many seconds turns are kept, 0 is for ever; facts are kept
    until they expire.
    """

    def __init__(
        self,
        store: SessionStore,
        archive: Archive,
        tenants: Sequence[str],
        *,
        keep: float,
        quiet: float = _QUIET,
    ) -> None:
        self.failing = False
        self._store = store
        self._archive = archive
        self._keeping = Keeping(store, archive)
        self._tenants = tenants
        self._keep_for = keep
        self._quiet = quiet
        self._hurried = False
        self._due: dict[Key, _Due] = {}
        self._taken: dict[Key, _Due] = {}
        self._missed = True
        self._swept = 0.0
        self._later = time.monotonic() + _LATER
        self._compared = 0.0
        self._awake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def enqueue(self, key: Key, session: Session) -> None:
        """Takes note of a session; it never waits. The newest state counts."""
        if len(self._due) >= _MOST_DUE and key not in self._due:
            self._missed = True
            return
        now = time.time()
        former = self._due.pop(key, None)
        since = former.since if former else now
        self._due[key] = _Due(session, now, since, min(now + self._quiet, since + _LONGEST_DUE))
        if not former:
            self._awake.set()

    def unsaved_session(self, person: Owner) -> str | None:
        """The newest session of a person that is still to be kept, or being kept, if there is any."""
        for key, due in (*reversed(self._due.items()), *self._taken.items()):
            if key.tenant == person.tenant and due.session.user == person.user:
                return key.session
        return None

    def start(self) -> None:
        """From now on what is due is kept, first of all what was lost."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def aclose(self, within: float = _FAREWELL) -> None:
        """What is due is kept, within so many seconds; the rest is found again at the next start."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait({self._task})
        try:
            async with asyncio.timeout(within):
                await self._keep_due(all_=True)
        except (StoreError, TimeoutError):
            _log.warning("%d sessions are yet to be archived", len(self._due))

    async def idle(self) -> None:
        """Returns once all is kept; until then nobody's quiet is waited for."""
        self._hurried = True
        while self._due or self._taken or self._missed:
            self._awake.set()
            await asyncio.sleep(_SHORTEST / 10)
        self._hurried = False

    async def _run(self) -> None:
        pause = _SHORTEST
        while True:
            try:
                await self._round()
                self._kept_again()
                pause = _SHORTEST
                await self._wait()
            except StoreError as error:
                if not self.failing:
                    _log.warning("The archive cannot be written: %s", error)
                self.failing = True
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST)

    def _kept_again(self) -> None:
        if self.failing:
            _log.warning("The archive is written again")
        self.failing = False

    async def _round(self) -> None:
        await self._keep_due()
        if time.monotonic() >= self._later:
            self._missed, self._later = True, math.inf
        if self._missed:
            await self._catch_up()
            self._missed = False
        if time.monotonic() >= self._swept:
            await self._sweep()

    async def _wait(self) -> None:
        """Returns when something may be due, or has come to an archivist who had nothing to do."""
        first = next(iter(self._due.values()), None)
        due = _SWEEP_EVERY if first is None else first.at - time.time()
        self._awake.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, min(due, self._later - time.monotonic()))):
                await self._awake.wait()

    async def _keep_due(self, *, all_: bool = False) -> None:
        while keys := self._ripe(all_=all_ or self._hurried):
            outcomes = await asyncio.gather(*map(self._take, keys), return_exceptions=True)
            for failure in filter(None, outcomes):
                raise failure

    def _ripe(self, *, all_: bool) -> list[Key]:
        """The next few sessions to be kept."""
        now = time.time()
        told_first = itertools.islice(self._due.items(), _TOGETHER)
        return [key for key, due in told_first if all_ or not now < due.at <= now + self._quiet]

    async def _take(self, key: Key) -> None:
        # Not before: a task that is cancelled before it begins puts nothing back.
        due = self._taken[key] = self._due.pop(key)
        try:
            # Others may have kept what came since, and a correction bears the time of what it corrects.
            session = await self._newest(key, due.session) if due.refused else due.session
            await self._keeping.keep(key, session, mark=due.mark)
        except StoreError:
            self._due.setdefault(key, due._replace(refused=True))
            raise
        except asyncio.CancelledError:
            self._due.setdefault(key, due)
            raise
        finally:
            del self._taken[key]

    async def _newest(self, key: Key, told: Session) -> Session:
        """What is held of a session now, if it is one that goes on from what was told."""
        with contextlib.suppress(StoreError, *UNREADABLE):
            stored = await self._store.load(key, background=True)
            session = stored.session if stored else told
            return told if made_anew(session, told) or session.updated < told.updated else session
        return told

    async def _catch_up(self) -> None:
        began = time.time()
        since = self._compared - _SLACK if self._compared <= began else 0.0
        for tenant in self._tenants:
            marks = await self._archive.saved_times(tenant)
            ahead = time.time() + CLOCK_TOLERANCE
            after = ""
            while page := await self._store.list(tenant, after=after, limit=_AT_ONCE):
                for line in page:
                    mark = marks.get(line.session, 0.0)
                    if line.updated > since and (line.updated > mark - _SLACK or mark > ahead):
                        await self._keep_held(Key(tenant, line.session), line.updated)
                after = page[-1].session
        self._compared = began

    async def _keep_held(self, key: Key, mark: float) -> None:
        try:
            stored = await self._store.load(key, background=True)
            session = stored.session if stored else None
        except (StoreError, msgspec.DecodeError) as error:
            _log.warning("A session cannot be read for the archive: %s", error)
            return
        if session is not None and key not in self._due:
            await self._keeping.keep(key, session, mark=mark)

    async def _sweep(self) -> None:
        """What has expired or is too old goes, a few at a time; in between, what is due is kept.

        Then what was indexed by an older Turnkeeper is indexed anew.
        """
        now = time.time()
        sweeps: list[Callable[[], Awaitable[int]]] = [partial(self._archive.expire, now=now)]
        if self._keep_for:
            sweeps.append(partial(self._archive.sweep, before=now - self._keep_for))
        for sweep in (*sweeps, self._archive.reindex):
            while await sweep():
                self._kept_again()
                await asyncio.sleep(_SHORTEST)
                await self._keep_due()
        self._swept = time.monotonic() + _SWEEP_EVERY


class Keeping:
    """Keeps sessions of a store in an archive, each as it stands."""

    def __init__(self, store: SessionStore, archive: Archive) -> None:
        self._store = store
        self._archive = archive
        self._settled = Settled()

    async def keep(self, key: Key, session: Session, *, mark: float) -> None:
        """Keeps a session as it was told at ``mark``. Raises StoreError; what else is wrong the log tells."""
        try:
            reach = await self._archive.save_session(key, session, as_of=mark)
            await self._keep_moved(key, session, reach)
            self._settled.add(key, session.cold_count)
        except Unreadable as error:
            _log.warning("What moved out of a session cannot be read for the archive: %s", error)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - one session that cannot be kept must not hold up the rest
            _log.error("A session cannot be archived: %s", type(error).__name__)

    async def _keep_moved(self, key: Key, session: Session, reach: int) -> None:
        try:
            await self._keep_pages(key, session, self._settled.within(key, reach))
        except Unreadable:  # of what is kept already, perhaps
            await self._keep_pages(key, session, reach)

    async def _keep_pages(self, key: Key, session: Session, reach: int) -> None:
        async for start, moved in pages(self._store, key, session, reach):
            await self._archive.save_moved(key, session, moved, start=start)


class Settled:
    """How many moved entries of a session are kept as they will stay.

    What was hot when it was kept last, by whichever process, may have been put right before it moved out.
    """

    def __init__(self) -> None:
        self._moved: dict[Key, int] = {}

    def within(self, key: Key, reach: int) -> int:
        """How many of those that are kept, ``reach`` of them, are settled."""
        return min(reach, self._moved.get(key, max(0, reach - _UNSURE)))

    def add(self, key: Key, moved: int) -> None:
        """To be told when all that had moved was kept."""
        self._moved.pop(key, None)
        self._moved[key] = moved
        if len(self._moved) > _MOST:
            del self._moved[next(iter(self._moved))]


async def pages(
    store: SessionStore, key: Key, session: Session, start: int
) -> AsyncIterator[tuple[int, Sequence[Entry]]]:
    """The moved entries from one on, each page whole from the first entry of its turn; where each begins.

    None of a session that was made anew under its name: they are not this one's.
    """
    while start < session.cold_count and await _is_held(store, key, session):
        moved = await store.cold_entries(key, start=start, limit=min(_AT_ONCE, session.cold_count - start))
        if not moved:
            return
        begun = await _begun(store, key, start, moved[0])
        yield start - len(begun), [*begun, *moved]
        start += len(moved)


async def _is_held(store: SessionStore, key: Key, session: Session) -> bool:
    try:
        stored = await store.load(key, background=True)
        return stored is not None and not made_anew(stored.session, session)
    except UNREADABLE:
        return False


async def _begun(store: SessionStore, key: Key, end: int, entry: Entry) -> list[Entry]:
    """What stands before an entry, the one at ``end``, in its own turn."""
    begun: list[Entry] = []
    while end > 0:
        before = await _before(store, key, end)
        same = [*itertools.takewhile(lambda one: one.turn_ref == entry.turn_ref, reversed(before))]
        begun = [*reversed(same), *begun]
        end = end - len(same) if same and len(same) == len(before) else 0
    return begun


async def _before(store: SessionStore, key: Key, end: int) -> list[Entry]:
    """A few entries, the last of which stands before ``end``; none where that one cannot be read."""
    # A turn moves whole, so that all of it is under one key: what cannot be read belongs to another.
    for count in (min(end, _LOOKED_BACK), 1):
        with contextlib.suppress(Unreadable):
            return await store.cold_entries(key, start=end - count, limit=count)
    return []
