"""Copies sessions into the archive in the background, with retries."""

import asyncio
import contextlib
import itertools
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from proxy.circuit import Backoff, Outage
from proxy.clock import wall_time
from proxy.memory.archive.archive import Archive
from proxy.memory.errors import StoreError, Unreadable
from proxy.memory.session import Entry, Session, made_anew
from proxy.memory.stores import lease
from proxy.memory.stores.session_store import SessionStore
from proxy.memory.stores.store import CLOCK_TOLERANCE, Key
from proxy.memory.tasks import cancel_and_wait, wait_for_event

_log = logging.getLogger("turnkeeper")
_BACKOFF: Final = Backoff(0.1, 5.0)
_MOST_PENDING: Final = 10_000
_TOGETHER: Final = 32
# Archiving waits for a pause, to leave the CPU to calls; after _LONGEST_DUE seconds it waits no longer.
QUIET: Final = 1.0
"""Seconds without a turn after which a session is archived."""
_LONGEST_DUE: Final = 20.0
# Sessions that become quiet soon after the first are saved with it; as a share of the quiet time.
_GATHER: Final = 0.25
_FAREWELL: Final = 3.0
_SWEEP_EVERY: Final = 60.0
_SWEEP_PAUSE: Final = 0.1
_IDLE_POLL: Final = 0.01
_PAGE: Final = 100
_LOOK_BACK: Final = 10
# In a rolling update, an old server may end after the last new one has started, and leave sessions unsaved
# or saved in its version's format.
_SECOND_COMPARISON: Final = 180.0
# A random factor, so that processes that start together do not compare together.
_SPREAD: Final = 2.0
_COMPARISON: Final = "archive"
_TURN_POLL: Final = 1.0
# Seconds of overlap: clocks differ, and a crash may come between a session's date and its saving.
_SLACK: Final = 60.0
_MOST_SETTLED: Final = 10_000
# More entries than the hot part of a session has, unless its settings are far from the defaults.
_UNSETTLED: Final = 200


class _Pending(NamedTuple):
    """A written session that is to be saved at ``due``.

    ``since`` is its first unsaved write, and ``failed`` whether saving has failed.
    """

    since: float
    due: float
    failed: bool = False


class Progress:
    """What is left to be done; another archivist of the same store and archive can go on with it."""

    def __init__(self) -> None:
        self.pending: dict[Key, _Pending] = {}
        # How many moved entries of a session are saved in their final form: entries that any process
        # saved while they were hot may have been corrected before they moved.
        self.settled: dict[Key, int] = {}
        self.incomplete = True
        self.compared_at = 0.0
        self.compare_again_at = time.monotonic() + _SECOND_COMPARISON * random.uniform(1, _SPREAD)  # noqa: S311
        self.sweep_at = 0.0


class Archivist:
    """Saves sessions in the archive.

    A session is saved once it has not changed for ``quiet`` seconds. Comparing the store with the archive
    finds missed sessions: at the start, again soon after, and after an overflow. Only one process compares at
    a time, page by page, on behalf of all. Turns are stored for ``keep`` seconds, with 0 for ever; facts
    until they expire.
    """

    def __init__(
        self,
        store: SessionStore,
        archive: Archive,
        tenants: Sequence[str],
        *,
        keep: float,
        quiet: float = QUIET,
    ) -> None:
        self._store = store
        self._archive = archive
        self._tenants = tenants
        self._keep = keep
        self._quiet = quiet
        self._outage = Outage("The archive cannot be written: %s", "The archive is written again")
        self._hurried = False
        self.progress = Progress()
        self._saving: dict[Key, _Pending] = {}
        # Whether another comparison is needed because sessions were missed during this one.
        self._compare_anew = False
        # The number of comparisons by any process when this one became due.
        self._former_comparisons: int | None = None
        self._compare_at = 0.0
        self._awake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def failing(self) -> bool:
        """Whether the last write to the archive failed."""
        return self._outage.active

    @property
    def unsaved(self) -> int:
        """How many sessions are not saved yet, including those being saved."""
        return len(self.progress.pending) + len(self._saving)

    def enqueue(self, key: Key, due: float = 0.0) -> None:  # noqa: ARG002 - jobs are due, the archive is always
        """Schedules a written session to be read from the store and saved."""
        former = self.progress.pending.pop(key, None)
        if former is None and len(self.progress.pending) >= _MOST_PENDING:
            self.progress.incomplete = self._compare_anew = True
            return
        now = wall_time()
        since = former.since if former else now
        self.progress.pending[key] = _Pending(since, min(now + self._quiet, since + _LONGEST_DUE))
        if not former:
            self._awake.set()

    def compare(self) -> None:
        """Schedules a comparison, which saves sessions that were written and not enqueued."""
        self.progress.incomplete = self._compare_anew = True
        self._awake.set()

    def start(self) -> None:
        """Starts saving; missed sessions come first."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def aclose(self, within: float = _FAREWELL) -> None:
        """Saves pending sessions for up to ``within`` seconds; the next start finds the rest."""
        if self._task is None:
            return
        await cancel_and_wait(self._task)
        try:
            async with asyncio.timeout(within):
                await self._save_pending(all_=True)
        except (StoreError, TimeoutError):
            _log.warning("%d sessions are yet to be archived", len(self.progress.pending))

    async def idle(self) -> None:
        """Returns once everything is saved, without waiting for sessions to be quiet."""
        self._hurried = True
        while self.progress.pending or self._saving or self.progress.incomplete:
            self._awake.set()
            await asyncio.sleep(_IDLE_POLL)
        self._hurried = False

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                await self._save_pending()
                if time.monotonic() >= self.progress.compare_again_at:
                    self.progress.incomplete, self.progress.compare_again_at = True, math.inf
                if self.progress.incomplete and time.monotonic() >= self._compare_at:
                    await self._compare_in_turn()
                if time.monotonic() >= self.progress.sweep_at:
                    await self._sweep()
            except StoreError as error:
                self._outage.begin(str(error))
                failures += 1
                await asyncio.sleep(_BACKOFF.pause(failures))
                continue
            self._outage.end()
            failures = 0
            first = next(iter(self.progress.pending.values()), None)
            pause = _SWEEP_EVERY if first is None else first.due - wall_time() + _GATHER * self._quiet
            compare_at = self._compare_at if self.progress.incomplete else self.progress.compare_again_at
            self._awake.clear()
            await wait_for_event(self._awake, max(0.0, min(pause, compare_at - time.monotonic())))

    async def _save_pending(self, *, all_: bool = False) -> None:
        """Saves due sessions in groups, and those that failed before one by one. Raises StoreError."""
        while True:
            now = wall_time()
            due = {
                key: pending.failed
                for key, pending in itertools.islice(self.progress.pending.items(), _TOGETHER)
                # A later due time is from before a clock was set back.
                if all_ or self._hurried or not now < pending.due <= now + self._quiet
            }
            if not due:
                return
            groups = [[key] for key, failed in due.items() if failed]
            if together := [key for key, failed in due.items() if not failed]:
                groups.append(together)
            outcomes = await asyncio.gather(*map(self._save_next, groups), return_exceptions=True)
            for failure in filter(None, outcomes):
                raise failure

    async def _save_next(self, keys: Sequence[Key]) -> None:
        # Not before the task begins: one that is cancelled earlier would not put them back.
        group = {key: self.progress.pending.pop(key) for key in keys}
        self._saving |= group
        try:
            await self._save_stored(keys)
        except StoreError:
            for key, pending in group.items():
                self.progress.pending.setdefault(key, pending._replace(failed=True))
            raise
        except asyncio.CancelledError:
            for key, pending in group.items():
                self.progress.pending.setdefault(key, pending)
            raise
        finally:
            for key in group:
                del self._saving[key]

    async def _save_stored(self, keys: Sequence[Key]) -> None:
        """Saves the current state of sessions; skips unreadable ones. Raises StoreError."""
        as_of = wall_time()
        stored = await asyncio.gather(*map(self._stored, keys))
        states = zip(keys, stored, strict=True)
        await self._save([(key, session, as_of) for key, session in states if session is not None])

    async def _stored(self, key: Key) -> Session | None:
        """Reads a session from the store; ``None`` if it cannot be decoded. Raises StoreError."""
        try:
            return await self._store.session(key)
        except Unreadable as error:
            _log.warning("A session cannot be read for the archive: %s", error)
            return None

    async def _save(self, states: Sequence[tuple[Key, Session, float]]) -> None:
        """Saves sessions and their moved entries. Raises StoreError; logs other errors."""
        try:
            saved = await self._archive.save_sessions(states)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - one session that cannot be saved must not hold up the rest
            if len(states) > 1:
                for state in states:
                    await self._save([state])
            else:
                _log.error("A session cannot be archived: %s", type(error).__name__)
            return
        for (key, session, _), moved in zip(states, saved, strict=True):
            await self._settle(key, session, moved)

    async def _settle(self, key: Key, session: Session, saved: int) -> None:
        """Saves the moved entries of a session, of which the first ``saved`` may be saved already."""
        try:
            settled = min(saved, self.progress.settled.get(key, max(0, saved - _UNSETTLED)))
            if settled < session.cold_count:
                try:
                    await self._save_moved(key, session, settled)
                except Unreadable:  # perhaps of an entry that is saved already
                    await self._save_moved(key, session, saved)
            self.progress.settled.pop(key, None)
            self.progress.settled[key] = session.cold_count
            if len(self.progress.settled) > _MOST_SETTLED:
                del self.progress.settled[next(iter(self.progress.settled))]
        except Unreadable as error:
            _log.warning("Entries that moved out of a session cannot be read for the archive: %s", error)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - as above
            _log.error("Entries that moved out of a session cannot be archived: %s", type(error).__name__)

    async def _save_moved(self, key: Key, session: Session, start: int) -> None:
        """Saves the moved entries of a session from ``start`` on, page by page.

        Each page begins with a whole turn. Stops if the session was created again under the same name.
        """
        while start < session.cold_count:
            try:
                stored = await self._store.load(key, background=True)
                if stored is None or made_anew(stored.session, session):
                    return
            except Unreadable:
                return
            limit = min(_PAGE, session.cold_count - start)
            entries = await self._store.cold_entries(key, start=start, limit=limit)
            if not entries:
                return
            head = await self._turn_head(key, start, entries[0])
            await self._archive.save_moved(key, session, [*head, *entries], start=start - len(head))
            start += len(entries)

    async def _turn_head(self, key: Key, end: int, entry: Entry) -> list[Entry]:
        """Reads the entries of a turn that come before ``entry``, which is at index ``end``."""
        head: list[Entry] = []
        while end > 0:
            before: list[Entry] = []
            # A turn moves whole, under one encryption key, so unreadable entries belong to another turn.
            for count in (min(end, _LOOK_BACK), 1):
                with contextlib.suppress(Unreadable):
                    before = await self._store.cold_entries(key, start=end - count, limit=count)
                    break
            same = [*itertools.takewhile(lambda one: one.turn_ref == entry.turn_ref, reversed(before))]
            head = [*reversed(same), *head]
            end = end - len(same) if same and len(same) == len(before) else 0
        return head

    async def _compare_in_turn(self) -> None:
        """Compares, unless another process does so now or has done so since the comparison became due."""
        if self._former_comparisons is None:
            self._former_comparisons = await self._archive.comparisons()
        async with lease.lease(self._store, _COMPARISON, Key("", _COMPARISON)) as acquired:
            if not acquired:
                pause = _IDLE_POLL if self._hurried else _TURN_POLL * random.uniform(1, _SPREAD)  # noqa: S311
                self._compare_at = time.monotonic() + pause
                return
            self._compare_anew = False
            comparisons = await self._archive.comparisons()
            # The first of these may have begun before this one became due.
            if comparisons < self._former_comparisons + 2:
                await self._compare()
                await self._archive.set_comparisons(comparisons + 1)
        self.progress.incomplete = self._compare_anew
        self._former_comparisons = None

    async def _compare(self) -> None:
        """Saves the sessions of the store that are newer than their saved state."""
        began = wall_time()
        since = self.progress.compared_at - _SLACK if self.progress.compared_at <= began else 0.0
        for tenant in self._tenants:
            after = ""
            while page := await self._store.list(tenant, after=after, limit=_PAGE):
                after = page[-1].session
                written = {listed.session: listed.updated for listed in page if listed.updated > since}
                saved = await self._archive.saved_times(tenant, [*written])
                ahead = wall_time() + CLOCK_TOLERANCE
                due = [
                    Key(tenant, name)
                    for name, updated in written.items()
                    if updated > (as_of := saved.get(name, 0.0)) - _SLACK or as_of > ahead
                ]
                for keys in (due[i : i + _TOGETHER] for i in range(0, len(due), _TOGETHER)):
                    # Pending sessions are saved once they are quiet.
                    await self._save_stored([key for key in keys if key not in self.progress.pending])
                await self._save_pending()
        self.progress.compared_at = began

    async def _sweep(self) -> None:
        """Deletes expired rows and indexes texts of an older lexicon anew; saves due sessions in between."""
        now = wall_time()
        sweeps: list[Callable[[], Awaitable[int]]] = [partial(self._archive.expire, now=now)]
        if self._keep:
            sweeps.append(partial(self._archive.sweep, before=now - self._keep))
        for sweep in (*sweeps, self._archive.rename_tombstones, self._archive.reindex):
            while await sweep():
                self._outage.end()
                await asyncio.sleep(_SWEEP_PAUSE)
                await self._save_pending()
        self.progress.sweep_at = time.monotonic() + _SWEEP_EVERY
