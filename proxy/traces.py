"""Turns as they went, kept for a while to be looked at.

``trace`` first: the values of one turn, that were there anyway. ``traces`` keeps a process's newest of
them, which ``kept`` shows as one of the places where a person's words are, and ``graves`` makes whoever was
forgotten elsewhere leave it.
"""

import asyncio
import contextlib
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Self

import msgspec

from filters.base import Messages
from proxy.answer.transcript import transcript
from proxy.memory.align.forgotten import forgotten_lines
from proxy.memory.archive.archive import Archive
from proxy.memory.archive.records import Tombstones
from proxy.memory.errors import StoreError
from proxy.memory.session import Session
from proxy.memory.speech import speech_lines
from proxy.memory.stores.store import CLOCK_TOLERANCE, Key, Owner
from proxy.observe.feed import Feed
from proxy.observe.hour import Hour
from proxy.observe.observation import Observation, TurnReport
from proxy.turn.state import Turn

_PRIVATE = frozenset({"authorization", "proxy-authorization", "api-key", "x-api-key", "cookie"})
_MOST_STAMPS = 200
_MOST: Final = 1000
# Longer than a turn takes, and no longer than a clock that was set back may mislead.
_FOR: Final = 900.0
_MOST_BYTES = 16_000_000
_MOST_SESSIONS = 1000
_EVERY: Final = 5.0
# How far the clocks of two machines may be apart, and how long a turn may take to be kept.
_SLACK: Final = 120.0


class Trace(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A turn that has ended. ``began``, ``marks``, ``chunks`` and ``end`` are by ``time.perf_counter``.

    ``marks`` say when each stage began, and ``chunks`` when something went to the client, at most 200 times
    of ``count``. ``answer`` is what the client got, ``failure`` why it got no more, and ``size`` about
    how many bytes are kept.
    """

    report: TurnReport
    number: int
    start: float
    marks: Sequence[tuple[str, float]]
    chunks: Sequence[float]
    count: int
    end: float
    failure: str | None = None
    content: Turn | None = None
    answer: bytes = b""
    size: int = 0

    @classmethod
    def of(cls, account: TurnReport, watch: Observation, *, number: int, content: bool) -> Self:
        """What there is to keep of a turn that was watched; without ``content``, nothing that was said."""
        said = watch.content if content and isinstance(watch.content, Turn) else None
        return cls(
            report=account,
            number=number,
            start=watch.timer.start,
            marks=tuple(watch.timer.marks),
            chunks=watch.chunk_times[:: len(watch.chunk_times) // _MOST_STAMPS + 1],
            count=len(watch.chunk_times),
            end=watch.timer.start + watch.duration,
            failure=watch.failure,
            content=said and _without_keys(said),
            answer=b"".join(watch.chunks) if said else b"",
            size=watch.size + sum(map(len, watch.chunks)) if said else 0,
        )

    def involves(self, person: str) -> bool:
        """Whether somebody called, or said anything that was sent along."""
        return person in self.users

    @property
    def messages(self) -> Messages:
        """What the client sent, where that is kept."""
        return self.content.request.messages if self.content else ()

    def messages_by(self, person: str) -> Messages:
        """What a person said of it: what is marked as theirs, and the newest words, if they called."""
        users = [m for m in self.messages if m.role == "user"]
        newest = users[-1:] if self.report.user == person else []
        return [m for m in users if m.user == person or (m.user is None and any(m is one for one in newest))]

    @property
    def arrival(self) -> float:
        """When it arrived, in seconds since 1970, as the clock counts that now: it may have been set back."""
        return min(self.report.at, time.time() - (time.perf_counter() - self.start))

    def is_erased(self, buried: Tombstones) -> bool:
        """Whether its session, or one of its persons, was forgotten after it had arrived."""
        return buries(buried, self.users, self.report.session, self.arrival)

    @property
    def users(self) -> set[str]:
        """Who called, and whoever said anything that was sent along."""
        return {name for name in (self.report.user, *(m.user for m in self.messages)) if name is not None}


def exported(trace: Trace, person: str, is_theirs: bool) -> dict[str, Any]:  # noqa: FBT001 - whose session it is
    """A turn, of a session of a person's; of somebody else's, what they said in it."""
    account = trace.report
    said = [
        {"role": m.role, "content": m.text}
        for m in (trace.messages if is_theirs else trace.messages_by(person))
    ]
    return {
        "id": account.id,
        "timestamp": account.at,
        "session_id": account.session,
        "messages": said,
        "answer": transcript(trace.answer).text if is_theirs else "",
    }


def buries(buried: Tombstones, persons: Iterable[str | None], session: str | None, arrived: float) -> bool:
    """Whether a turn's session, or one of its persons, was forgotten after it had arrived."""
    times = [buried.users.get(name or "") for name in persons]
    times.append(buried.sessions.get(session or ""))
    return any(at is not None and arrived <= at for at in times)


def _without_keys(turn: Turn) -> Turn:
    """The turn without its client's keys, and without what it read of the session."""
    headers = {name: value for name, value in turn.request.headers.items() if name not in _PRIVATE}
    return msgspec.structs.replace(
        turn,
        request=msgspec.structs.replace(turn.request, headers=headers),
        view=None,
        shown_facts=None,
        chat=msgspec.structs.replace(turn.chat, headers=headers, tools=None),
    )


class _Letting(msgspec.Struct, frozen=True):
    """``at`` is in seconds since 1970, and ``noted`` by ``time.monotonic``."""

    at: float
    noted: float


class RecentErasures:
    """Sessions and persons of tenants, a thousand at the most, each for a quarter of an hour."""

    def __init__(self) -> None:
        self._lettings: dict[tuple[str, str | None, str | None], _Letting] = {}

    def __bool__(self) -> bool:
        """Whether anybody was let go of."""
        return bool(self._lettings)

    def add(self, tenant: str, *, session: str | None, user: str | None) -> None:
        """A session, or a person, is let go of now."""
        whose = tenant, session if user is None else None, user
        self._lettings.pop(whose, None)
        self._lettings[whose] = _Letting(time.time(), time.monotonic())
        while len(self._lettings) > _MOST:
            del self._lettings[next(iter(self._lettings))]

    def covers(self, tenant: str, session: str | None, persons: Iterable[str | None], arrived: float) -> bool:
        """Whether a turn that ``arrived`` then, in seconds since 1970, was under way."""
        since = time.monotonic() - _FOR
        found = [self._lettings.get((tenant, session, None))] if session is not None else []
        found += [self._lettings.get((tenant, None, name)) for name in persons if name is not None]
        return any(one is not None and arrived <= one.at and one.noted > since for one in found)


class Retention(msgspec.Struct, frozen=True):
    """How many turns are kept, and whether what was said in them is."""

    turns: int = 0
    content: bool = False


class Traces:
    """Turns of all tenants, as many as ``keeping`` says and 16 MB at most.

    ``feed`` tells of each turn, whether or not it is kept here; who is let go of here is so there, too.
    """

    def __init__(self) -> None:
        self.hour = Hour()
        self.feed = Feed()
        self.broadcast: Callable[[str, str | None, str | None], None] | None = None
        self.retention = Retention()
        self._gone = RecentErasures()
        self._numbers = itertools.count(1)
        self._ring: deque[Trace] = deque()
        self._bytes = 0
        self._unwritten: dict[Key, set[int]] = {}
        self._written: dict[int, float] = {}
        self._latest: dict[Key, tuple[float, str | None]] = {}
        self._settle: Callable[[], None] = lambda: None

    def before_reading(self, settle: Callable[[], None]) -> None:
        """Whoever looks calls ``settle`` first: it puts in what has ended by then."""
        self._settle = settle

    def set_retention(self, keeping: Retention) -> None:
        """From now on more is kept, or less; what is too much goes at once."""
        self.retention = keeping
        held = list(self._ring)
        self._ring.clear()
        self._bytes = 0
        for trace in held:
            self._take(trace)

    def add(self, account: TurnReport, watch: Observation) -> None:
        """Takes in a turn that has ended."""
        self.hour.add(time.time(), account)
        if self.retention.turns:
            trace = Trace.of(account, watch, number=next(self._numbers), content=self.retention.content)
            # Who spoke is only looked for where somebody was let go of: that is seldom.
            gone = self._gone and self._gone.covers(account.tenant, account.session, trace.users, account.at)
            if not gone:
                self._await(trace)
                self._take(trace)

    def publish(self, account: TurnReport) -> None:
        """Tells of a turn, of this process or of another."""
        gone = self._gone and self._gone.covers(account.tenant, account.session, [account.user], account.at)
        self.feed.publish(account, keep=not gone)

    def session_written(self, key: Key, session: Session) -> None:
        """Notes when the turns of a session were written, and whose it is; a recorder's listener.

        Turns that show what was forgotten are kept without what was said in them.
        """
        self._latest[key] = time.perf_counter(), session.user
        if session.forgotten and self.retention.content:
            self._settle()
            self._ring = deque(self._without_bygone(trace, key, session) for trace in self._ring)
        while len(self._latest) > _MOST_SESSIONS:
            del self._latest[next(iter(self._latest))]
        for number in self._unwritten.pop(key, ()):
            self._written[number] = time.perf_counter()

    def write_time(self, trace: Trace) -> float | None:
        """When a turn was written to memory, by ``time.perf_counter``; ``None`` where it was not."""
        return self._written.get(trace.number)

    def newest(self, tenant: str, session: str | None = None) -> Iterator[Trace]:
        """A tenant's turns, or those of one of its sessions, the newest first."""
        self._settle()
        for trace in reversed(self._ring):
            if trace.report.tenant == tenant and session in {None, trace.report.session}:
                yield trace

    def user_of(self, trace: Trace) -> str | None:
        """Whose session a turn is of: as whose it is held, else who called, where nobody else spoke."""
        account = trace.report
        _, held = self._latest.get(Key(account.tenant, account.session or ""), (0.0, None))
        return held or (account.user if trace.users <= {account.user} else None)

    def oldest(self) -> Mapping[str, float]:
        """When the oldest turn arrived that is told of each tenant, in seconds since 1970."""
        found = {**self.feed.oldest()}
        for trace in self._ring:
            tenant = trace.report.tenant
            found[tenant] = min(trace.arrival, found.get(tenant, trace.arrival))
        return found

    def find(self, tenant: str, id: str) -> Trace | None:  # noqa: A002 - an id is called an id
        """A tenant's turn by its id."""
        return next((trace for trace in self.newest(tenant) if trace.report.id == id), None)

    def neighbours(self, trace: Trace) -> tuple[Trace | None, Trace | None]:
        """The turns of the same session and pipeline before and after, where they are still kept."""
        account = trace.report
        if account.session is None:
            return None, None
        same = [
            each
            for each in self.newest(account.tenant, account.session)
            if each.report.pipeline == account.pipeline
        ]
        place = next((i for i, each in enumerate(same) if each.number == trace.number), None)
        if place is None:
            return None, None
        return (same[place + 1] if place + 1 < len(same) else None), (same[place - 1] if place else None)

    def forget(self, tenant: str, *, session: str | None = None, user: str | None = None) -> None:
        """Tells no more of any turn of a session, or of a person; here, and in other processes."""
        self.remove(tenant, session=session, user=user)
        if self.broadcast:
            self.broadcast(tenant, session, user)

    def remove(self, tenant: str, *, session: str | None = None, user: str | None = None) -> None:
        """The same, here alone."""
        self._gone.add(tenant, session=session, user=user)
        self._sort_out(
            tenant, lambda one: one.report.session == session if user is None else one.involves(user)
        )
        self.feed.remove(tenant, lambda one, _: one.session == session if user is None else one.user == user)
        for key in [key for key, (_, held) in self._latest.items() if key.tenant == tenant and held == user]:
            self._latest[key] = self._latest[key][0], None

    def remove_erased(self, tenant: str, buried: Tombstones) -> None:
        """Tells no more, here alone, of any turn of whoever was forgotten after it had arrived."""
        self._sort_out(tenant, lambda one: one.is_erased(buried))
        self.feed.remove(tenant, lambda one, arrived: buries(buried, {one.user}, one.session, arrived))

    def ids(self, tenant: str) -> set[str]:
        """The ids of a tenant's turns that can be looked at."""
        return {trace.report.id for trace in self.newest(tenant)}

    def _sort_out(self, tenant: str, goes: Callable[[Trace], bool]) -> None:
        """Lets go of some of a tenant's turns; the ring is gone through once, however many they are."""
        self._settle()
        kept: deque[Trace] = deque()
        for trace in self._ring:
            if trace.report.tenant == tenant and goes(trace):
                self._let_go(trace)
            else:
                kept.append(trace)
        self._ring = kept

    def _without_bygone(self, trace: Trace, key: Key, session: Session) -> Trace:
        account = trace.report
        if (account.tenant, account.session) != key or not forgotten_lines(
            session, speech_lines(trace.messages)
        ):
            return trace
        self._bytes -= trace.size
        return msgspec.structs.replace(trace, content=None, answer=b"", size=0)

    def _await(self, trace: Trace) -> None:
        """Its turn is written from now on, or has been since it ended."""
        account = trace.report
        if account.session is None:
            return
        key = Key(account.tenant, account.session)
        written, _ = self._latest.get(key, (0.0, None))
        if written > trace.end:
            self._written[trace.number] = written
        else:
            self._unwritten.setdefault(key, set()).add(trace.number)

    def _take(self, trace: Trace) -> None:
        if trace.size > _MOST_BYTES or not self.retention.content:
            trace = msgspec.structs.replace(trace, content=None, answer=b"", size=0)
        self._ring.append(trace)
        self._bytes += trace.size
        while len(self._ring) > self.retention.turns or self._bytes > _MOST_BYTES:
            self._let_go(self._ring.popleft())

    def _let_go(self, trace: Trace) -> None:
        self._bytes -= trace.size
        self._written.pop(trace.number, None)
        if trace.report.session is None:
            return
        key = Key(trace.report.tenant, trace.report.session)
        waiting = self._unwritten.get(key, set())
        waiting.discard(trace.number)
        if not waiting:
            self._unwritten.pop(key, None)


class TraceHolder:
    """What the ring holds of persons, as a place that holds their words."""

    def __init__(self, traces: Traces) -> None:
        self._traces = traces

    async def exported(self, person: Owner) -> Mapping[str, Sequence[Any]]:
        """The turns of a person; of a turn of somebody else's, what the person said in it."""
        found = [t for t in self._traces.newest(person.tenant) if t.involves(person.user)]
        told = [exported(t, person.user, self._traces.user_of(t) == person.user) for t in reversed(found)]
        return {"kept_turns": told}

    async def forget(self, person: Owner, *, at: float) -> Mapping[str, int]:  # noqa: ARG002 - what comes later is no longer theirs
        """Lets go of all turns in which a person spoke; how many there were."""
        before = sum(1 for _ in self._traces.newest(person.tenant))
        self._traces.forget(person.tenant, user=person.user)
        return {"kept_turns": before - sum(1 for _ in self._traces.newest(person.tenant))}

    async def forget_session(self, key: Key, *, at: float) -> Mapping[str, int]:  # noqa: ARG002 - what comes later is another's
        """Lets go of all turns of a session; how many there were."""
        count = sum(1 for _ in self._traces.newest(key.tenant, key.session))
        self._traces.forget(key.tenant, session=key.session)
        return {"kept_turns": count}

    async def scrub(self) -> None:
        """Nothing was ever in a file."""


class TombstoneWatch:
    """What an archive knows of the forgotten, for the turns that a process keeps."""

    def __init__(self, archive: Archive, traces: Traces) -> None:
        self._archive = archive
        self._traces = traces
        self._seen = 0.0

    async def run(self) -> None:
        """Looks every few seconds, until it is cancelled; an archive that is away is asked again."""
        while True:
            with contextlib.suppress(StoreError):
                await self._look()
            await asyncio.sleep(_EVERY)

    async def _look(self) -> None:
        now = time.time()
        for tenant, oldest in self._traces.oldest().items():
            since = max(oldest, self._seen - _SLACK)
            buried = await self._archive.tombstones(tenant, since=since, until=now + CLOCK_TOLERANCE)
            self._traces.remove_erased(tenant, buried)
        self._seen = now
