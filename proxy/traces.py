"""Traces: the newest turns of a process, kept in memory for the page."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from proxy.answer.transcript import transcript
from proxy.clock import wall_time
from proxy.memory.align.deletion import deleted_lines
from proxy.memory.archive.archive import Archive
from proxy.memory.archive.records import Tombstones
from proxy.memory.errors import StoreError
from proxy.memory.privacy import DataHolder
from proxy.memory.session import Session
from proxy.memory.speech import speech_of
from proxy.memory.stores.store import CLOCK_TOLERANCE, Key, Owner
from proxy.newest import Newest
from proxy.observe.feed import Feed
from proxy.observe.hour import Hour
from proxy.observe.observation import Observation, TurnReport
from proxy.shared_traces import SharedTraces
from proxy.trace import Trace

_MOST_BYTES = 16_000_000
_MOST_SESSIONS = 1000
_MOST_TENANTS: Final = 16
_WRITTEN_LATELY: Final = 60.0
_MOST_ERASURES: Final = 1000
# In seconds: longer than any turn, and short enough that a clock that was set back does little harm.
_ERASURES_FOR: Final = 900.0
_EVERY: Final = 5.0
# In seconds: the most by which two machines' clocks differ, plus the time until a turn is stored.
_SLACK: Final = 120.0


class Retention(msgspec.Struct, frozen=True):
    """How many turns are kept, and whether with their content."""

    turns: int = 0
    content: bool = False

    @property
    def with_content(self) -> bool:
        """Whether turns are kept with their content."""
        return self.content and self.turns > 0


class Traces(DataHolder):
    """The newest turns of all tenants: as many as ``retention`` says, and 16 MB at most.

    With ``shared``, the turns of all hosts are available too, after ``fetch``. ``feed`` and ``hour`` get
    every turn, also those that are not kept. It is a data holder; an erasure also removes turns from
    ``feed``, and through ``broadcast`` from the other processes.
    """

    def __init__(self) -> None:
        self.hour = Hour()
        self.feed = Feed()
        self.broadcast: Callable[[str, str | None, str | None], None] | None = None
        self.shared: SharedTraces | None = None
        self.retention = Retention()
        self._erasures = _RecentErasures()
        self._changed_sessions = _RecentErasures()
        self._numbers = itertools.count(1)
        self._traces: dict[int, Trace] = {}
        self._bytes = 0
        self._unwritten: dict[Key, set[int]] = {}
        self._sessions = Newest[Key, tuple[float, str | None]](_MOST_SESSIONS)
        self._deletions = Newest[Key, object](_MOST_SESSIONS)
        self._others = Newest[str, Sequence[Trace]](_MOST_TENANTS)
        self._settle: Callable[[], None] = lambda: None

    def before_reading(self, settle: Callable[[], None]) -> None:
        """Sets a function to call before each read; it must add the turns that have ended."""
        self._settle = settle

    def set_retention(self, retention: Retention) -> None:
        """Changes the retention; turns beyond it are removed at once."""
        self.retention = retention
        self.feed.keep_excerpts(retention.turns if retention.content else 0)
        traces, self._traces, self._bytes = self._traces, {}, 0
        for trace in traces.values():
            self._keep(trace)

    def add(self, report: TurnReport, observation: Observation) -> None:
        """Adds a turn that has ended."""
        self.hour.add(time.time(), report)
        if not self.retention.turns:
            return
        number, with_content = next(self._numbers), self.retention.content
        trace = Trace.of(report, observation, number=number, with_content=with_content)
        # Users are collected only if anything was erased lately, which is rare.
        if self._erasures.times or self._changed_sessions.times:
            if self._erasures.cover(report, trace.users):
                return
            if self._changed_sessions.cover(report, ()) or self._erasures.cover(
                report, trace.last_call_speakers
            ):
                trace = trace.without_content()
        if report.session is not None:
            key = Key(report.tenant, report.session)
            written, _ = self._sessions.get(key, (0.0, None))
            if written > trace.end:
                trace = msgspec.structs.replace(trace, written_at=written)
            else:
                self._unwritten.setdefault(key, set()).add(number)
        self._keep(trace)
        if self.shared:
            self.shared.add(trace, keep=self.retention.turns)

    def publish(self, report: TurnReport) -> None:
        """Publishes a turn of this process or of another one on the feed."""
        self.feed.publish(
            report, keep=not (self._erasures.times and self._erasures.cover(report, [report.user]))
        )

    def session_written(self, key: Key, session: Session) -> None:
        """Records when the turns of a session were written, and its user; a listener of the recorder.

        Turns whose messages contain deleted lines lose their content.
        """
        now = time.perf_counter()
        self._sessions.put(key, (now, session.user))
        if session.deletion and self.retention.content:
            self._remove_contents(
                key.tenant,
                lambda trace: (
                    trace.report.session == key.session
                    and bool(deleted_lines(session, speech_of(trace.messages).lines))
                ),
            )
            self.feed.remove_excerpts(key.tenant, key.session)
            if self.shared and self._deletions.get(key) != session.deletion:
                self._deletions.put(key, session.deletion)
                self.shared.remove_contents(key)
        for number in self._unwritten.pop(key, ()):
            trace = self._traces[number] = msgspec.structs.replace(self._traces[number], written_at=now)
            if self.shared:
                self.shared.set_written(trace)

    # --- reading

    def newest(self, tenant: str, session: str | None = None) -> Iterator[Trace]:
        """A tenant's turns, or those of one of its sessions, the newest first."""
        self._settle()
        local = reversed(self._traces.values())
        traces: Iterable[Trace] = [trace for trace in local if trace.report.tenant == tenant]
        if others := self._others.get(tenant):
            traces = sorted((*traces, *others), key=lambda trace: trace.report.at, reverse=True)
        for trace in traces:
            if session in {None, trace.report.session}:
                yield trace

    def ended(self, tenant: str) -> Iterator[TurnReport]:
        """A tenant's turns of all processes, the newest first, with excerpts where their content is kept."""
        self._settle()
        traces = {trace.report.id: trace for trace in self._traces.values()}
        self.feed.add_excerpts(lambda turn: traces[turn.id].excerpt if turn.id in traces else None)
        return self.feed.newest(tenant)

    async def fetch(self, tenant: str) -> None:
        """Reads the reports of a tenant's turns on all hosts; ignores a failing store."""
        if not self.shared:
            return
        with contextlib.suppress(StoreError):
            traces = await self.shared.reports(tenant)
            ids = {trace.report.id for trace in self._traces.values()}
            others = [
                trace
                for trace in traces
                if trace.report.id not in ids and not self._erasures.cover(trace.report, trace.users)
            ]
            self._others.put(tenant, others)
            self.feed.include(trace.report for trace in others)

    async def with_content(self, traces: Sequence[Trace]) -> Sequence[Trace]:
        """Returns the traces with their content, also from other processes; ignores a failing store."""
        elsewhere = [trace for trace in traces if trace.content is None and trace.named_users is not None]
        if not (self.shared and elsewhere):
            return traces
        full: dict[str, Trace] = {}
        with contextlib.suppress(StoreError):
            full = {trace.report.id: trace for trace in await self.shared.with_content(elsewhere)}
        return [full.get(trace.report.id, trace) for trace in traces]

    def failures(self, tenant: str) -> Mapping[str, str | None]:
        """By turn id, why each of a tenant's turns failed; ``None`` for those that did not."""
        return {trace.report.id: trace.failure_at_upstream for trace in self.newest(tenant)}

    def find(self, tenant: str, id: str) -> Trace | None:  # noqa: A002 - an id is called an id
        """A tenant's turn by its id, or ``None``."""
        return next((trace for trace in self.newest(tenant) if trace.report.id == id), None)

    def neighbours(self, trace: Trace) -> tuple[Trace | None, Trace | None]:
        """The turns before and after in the same session and pipeline, if they are kept."""
        report = trace.report
        if report.session is None:
            return None, None
        traces = self.newest(report.tenant, report.session)
        same = [each for each in traces if each.report.pipeline == report.pipeline]
        place = next((i for i, each in enumerate(same) if each.number == trace.number), None)
        if place is None:
            return None, None
        return (same[place + 1] if place + 1 < len(same) else None), (same[place - 1] if place else None)

    def user_of(self, trace: Trace) -> str | None:
        """The user of a turn's session, else the turn's user unless it has messages of others."""
        report = trace.report
        _, user = self._sessions.get(Key(report.tenant, report.session or ""), (0.0, None))
        return user or (report.user if trace.users <= {report.user} else None)

    def latest_session(self, owner: Owner) -> str | None:
        """The user's session that this process wrote last, within a minute, or ``None``.

        The archive may not have it yet.
        """
        since = time.perf_counter() - _WRITTEN_LATELY
        written = [
            (at, key.session)
            for key, (at, user) in self._sessions.items()
            if at > since and Owner(key.tenant, user or "") == owner
        ]
        return max(written)[1] if written else None

    def oldest(self) -> Mapping[str, float]:
        """The arrival of each tenant's oldest turn, here or in the feed, in seconds since 1970."""
        oldest = {**self.feed.oldest()}
        for trace in self._traces.values():
            tenant = trace.report.tenant
            oldest[tenant] = min(trace.arrival, oldest.get(tenant, trace.arrival))
        return oldest

    # --- forgetting

    async def export(self, owner: Owner) -> Mapping[str, Sequence[Any]]:
        """Returns a user's turns; of turns in other users' sessions, only this user's messages."""
        turns = []
        await self.fetch(owner.tenant)
        theirs = [trace for trace in self.newest(owner.tenant) if owner.user in trace.users]
        for trace in await self.with_content(theirs):
            is_own, report = self.user_of(trace) == owner.user, trace.report
            messages = trace.messages if is_own else trace.messages_by(owner.user)
            turns.append(
                {
                    "id": report.id,
                    "timestamp": report.at,
                    "session_id": report.session,
                    "messages": [{"role": m.role, "content": m.text} for m in messages],
                    "answer": transcript(trace.answer).text if is_own else "",
                }
            )
        return {"kept_turns": turns[::-1]}

    async def forget(self, owner: Owner, *, at: float) -> Mapping[str, int]:  # noqa: ARG002 - later turns are new ones
        """Removes the turns that involve a user."""
        return {"kept_turns": await self.erase(owner.tenant, user=owner.user)}

    async def forget_session(self, key: Key, *, at: float) -> Mapping[str, int]:  # noqa: ARG002 - as above
        """Removes the turns of a session."""
        return {"kept_turns": await self.erase(key.tenant, session=key.session)}

    async def erase(self, tenant: str, *, session: str | None = None, user: str | None = None) -> int:
        """Removes the turns of a session or of a user everywhere; returns how many this process knows of.

        With both, the user's turns of that session are removed, and other users' turns lose their content.
        Raises StoreError where the shared traces could not be removed.
        """
        count = self.remove(tenant, session=session, user=user)
        if self.broadcast:
            self.broadcast(tenant, session, user)
        if self.shared:
            count = max(count, await self.shared.erase(tenant, session=session, user=user))
        return count

    async def session_erased(self, key: Key, user: str) -> None:
        """Removes the content of a session's turns after a user was erased from it."""
        await self.erase(key.tenant, session=key.session, user=user)

    def remove(self, tenant: str, *, session: str | None = None, user: str | None = None) -> int:
        """Removes in this process what ``erase`` removes everywhere, also of turns that have not ended."""
        if session is not None and user is not None:
            self._changed_sessions.add(tenant, session=session, user=None)
            count = self._remove(tenant, lambda t: t.report.session == session and user in t.users)
            self._remove_contents(tenant, lambda trace: trace.report.session == session)
            self.feed.remove_excerpts(tenant, session)
            return count
        self._erasures.add(tenant, session=session, user=user)
        if user is None:
            count = self._remove(tenant, lambda trace: trace.report.session == session)
            self.feed.remove(tenant, lambda report, _: report.session == session)
        else:
            count = self._remove(tenant, lambda trace: user in trace.users)
            self._remove_contents(tenant, lambda trace: user in trace.last_call_speakers)
            self.feed.remove(tenant, lambda report, _: report.user == user)
        for key, (written, owner) in self._sessions.items():
            if key.tenant == tenant and owner == user:
                self._sessions[key] = written, None
        return count

    def remove_erased(self, tenant: str, tombstones: Tombstones) -> None:
        """Removes in this process the turns whose session or users were erased after their arrival."""
        if not tombstones.times:
            return

        def erased(report: TurnReport, users: Iterable[str | None], arrival: float) -> bool:
            times = [tombstones.user(user or "") for user in users]
            times.append(tombstones.session(report.session or ""))
            return any(at is not None and arrival <= at for at in times)

        self._remove(tenant, lambda trace: erased(trace.report, trace.users, trace.arrival))
        self._remove_contents(
            tenant, lambda trace: erased(trace.report, trace.last_call_speakers, trace.arrival)
        )
        self.feed.remove(tenant, lambda report, arrival: erased(report, [report.user], arrival))

    def _remove(self, tenant: str, matches: Callable[[Trace], bool]) -> int:
        """Removes a tenant's turns that match; returns how many."""
        self._settle()
        traces = (trace for trace in self._traces.values() if trace.report.tenant == tenant)
        removed = [trace.number for trace in traces if matches(trace)]
        for number in removed:
            self._drop(number)
        if others := self._others.get(tenant):
            self._others[tenant] = [trace for trace in others if not matches(trace)]
        if self.shared:
            self.shared.remove(tenant, removed)
        return len(removed)

    def _remove_contents(self, tenant: str, matches: Callable[[Trace], bool]) -> None:
        """Removes the content of a tenant's turns that match, also from the shared traces."""
        self._settle()
        traces = [trace for trace in self._traces.values() if trace.report.tenant == tenant and trace.content]
        for trace in filter(matches, traces):
            self._bytes -= trace.size
            self._traces[trace.number] = without = trace.without_content()
            self.feed.remove_excerpts(tenant, trace.report.session)
            if self.shared:
                self.shared.add(without, keep=self.retention.turns)

    def _keep(self, trace: Trace) -> None:
        if trace.size > _MOST_BYTES or not self.retention.content:
            trace = trace.without_content()
        self._traces[trace.number] = trace
        self._bytes += trace.size
        while len(self._traces) > self.retention.turns or self._bytes > _MOST_BYTES:
            self._drop(next(iter(self._traces)))

    def _drop(self, number: int) -> None:
        trace = self._traces.pop(number)
        self._bytes -= trace.size
        key = Key(trace.report.tenant, trace.report.session or "")
        unwritten = self._unwritten.get(key, set())
        unwritten.discard(number)
        if not unwritten:
            self._unwritten.pop(key, None)


class TombstoneWatch:
    """Removes turns from ``traces`` that were erased elsewhere, by the archive's tombstones."""

    def __init__(self, archive: Archive, traces: Traces) -> None:
        self._archive = archive
        self._traces = traces

    async def run(self) -> None:
        """Reads the tombstones every few seconds, until it is cancelled; a failed read is repeated."""
        last = 0.0
        while True:
            with contextlib.suppress(StoreError):
                now = wall_time()
                for tenant, oldest in self._traces.oldest().items():
                    since = max(oldest, last - _SLACK)
                    tombstones = await self._archive.tombstones(
                        tenant, since=since, until=now + CLOCK_TOLERANCE
                    )
                    self._traces.remove_erased(tenant, tombstones)
                last = now
            await asyncio.sleep(_EVERY)


class _RecentErasures:
    """Sessions and users that were erased in the last quarter of an hour, a thousand at most.

    Their turns that were being answered then are not kept when they end.
    """

    def __init__(self) -> None:
        # The time of each, in seconds since 1970 and by ``time.monotonic``.
        self.times = Newest[tuple[str, str | None, str | None], tuple[float, float]](_MOST_ERASURES)

    def add(self, tenant: str, *, session: str | None, user: str | None) -> None:
        """Records that a session, or a user, is erased now."""
        key = tenant, session if user is None else None, user
        self.times.put(key, (wall_time(), time.monotonic()))

    def cover(self, report: TurnReport, users: Iterable[str | None]) -> bool:
        """Whether a turn had arrived before its session, or one of these users, was erased."""
        since, tenant, session = time.monotonic() - _ERASURES_FOR, report.tenant, report.session
        times = [self.times.get((tenant, session, None))] if session is not None else []
        times += [self.times.get((tenant, None, user)) for user in users if user is not None]
        return any(each is not None and report.at <= each[0] and each[1] > since for each in times)
