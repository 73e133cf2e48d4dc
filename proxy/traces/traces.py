"""The newest turns of a process, to be looked at."""

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping

import msgspec

from proxy.memory.archive.archive import Buried
from proxy.memory.replay.bygone import bygone
from proxy.memory.session.session import Session
from proxy.memory.speech.speech import speech
from proxy.memory.store import Key
from proxy.telemetry.account import Account
from proxy.telemetry.feed import Feed
from proxy.telemetry.gone import Gone
from proxy.telemetry.hour import Hour
from proxy.telemetry.watch import Watch
from proxy.traces.trace import Trace, buries

_MOST_BYTES = 16_000_000
_MOST_SESSIONS = 1000


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
        self.others: Callable[[str, str | None, str | None], None] | None = None
        self.keeping = Retention()
        self._gone = Gone()
        self._numbers = itertools.count(1)
        self._ring: deque[Trace] = deque()
        self._bytes = 0
        self._unwritten: dict[Key, set[int]] = {}
        self._written: dict[int, float] = {}
        self._latest: dict[Key, tuple[float, str | None]] = {}
        self._settle: Callable[[], None] = lambda: None

    def filled_by(self, settle: Callable[[], None]) -> None:
        """Whoever looks calls ``settle`` first: it puts in what has ended by then."""
        self._settle = settle

    def keep(self, keeping: Retention) -> None:
        """From now on more is kept, or less; what is too much goes at once."""
        self.keeping = keeping
        held = list(self._ring)
        self._ring.clear()
        self._bytes = 0
        for trace in held:
            self._take(trace)

    def put(self, account: Account, watch: Watch) -> None:
        """Takes in a turn that has ended."""
        self.hour.add(time.time(), account)
        if self.keeping.turns:
            trace = Trace.of(account, watch, number=next(self._numbers), content=self.keeping.content)
            # Who spoke is only looked for where somebody was let go of: that is seldom.
            gone = self._gone and self._gone.covers(
                account.tenant, account.session, trace.persons, account.at
            )
            if not gone:
                self._await(trace)
                self._take(trace)

    def show(self, account: Account) -> None:
        """Tells of a turn, of this process or of another."""
        gone = self._gone and self._gone.covers(account.tenant, account.session, [account.user], account.at)
        self.feed.publish(account, keep=not gone)

    def recorded(self, key: Key, session: Session) -> None:
        """Notes when the turns of a session were written, and whose it is; a recorder's listener.

        Turns that show what was forgotten are kept without what was said in them.
        """
        self._latest[key] = time.perf_counter(), session.user
        if session.forgotten and self.keeping.content:
            self._settle()
            self._ring = deque(self._without_bygone(trace, key, session) for trace in self._ring)
        while len(self._latest) > _MOST_SESSIONS:
            del self._latest[next(iter(self._latest))]
        for number in self._unwritten.pop(key, ()):
            self._written[number] = time.perf_counter()

    def written(self, trace: Trace) -> float | None:
        """When a turn was written to memory, by ``time.perf_counter``; ``None`` where it was not."""
        return self._written.get(trace.number)

    def newest(self, tenant: str, session: str | None = None) -> Iterator[Trace]:
        """A tenant's turns, or those of one of its sessions, the newest first."""
        self._settle()
        for trace in reversed(self._ring):
            if trace.account.tenant == tenant and session in {None, trace.account.session}:
                yield trace

    def person(self, trace: Trace) -> str | None:
        """Whose session a turn is of: as whose it is held, else who called, where nobody else spoke."""
        account = trace.account
        _, held = self._latest.get(Key(account.tenant, account.session or ""), (0.0, None))
        return held or (account.user if trace.persons <= {account.user} else None)

    def oldest(self) -> Mapping[str, float]:
        """When the oldest turn arrived that is told of each tenant, in seconds since 1970."""
        found = {**self.feed.oldest()}
        for trace in self._ring:
            tenant = trace.account.tenant
            found[tenant] = min(trace.arrived, found.get(tenant, trace.arrived))
        return found

    def find(self, tenant: str, id: str) -> Trace | None:  # noqa: A002 - an id is called an id
        """A tenant's turn by its id."""
        return next((trace for trace in self.newest(tenant) if trace.account.id == id), None)

    def beside(self, trace: Trace) -> tuple[Trace | None, Trace | None]:
        """The turns of the same session and pipeline before and after, where they are still kept."""
        account = trace.account
        if account.session is None:
            return None, None
        same = [
            each
            for each in self.newest(account.tenant, account.session)
            if each.account.pipeline == account.pipeline
        ]
        place = next((i for i, each in enumerate(same) if each.number == trace.number), None)
        if place is None:
            return None, None
        return (same[place + 1] if place + 1 < len(same) else None), (same[place - 1] if place else None)

    def forget(self, tenant: str, *, session: str | None = None, user: str | None = None) -> None:
        """Tells no more of any turn of a session, or of a person; here, and in other processes."""
        self.let_go(tenant, session=session, user=user)
        if self.others:
            self.others(tenant, session, user)

    def let_go(self, tenant: str, *, session: str | None = None, user: str | None = None) -> None:
        """The same, here alone."""
        self._gone.add(tenant, session=session, user=user)
        self._sort_out(
            tenant, lambda one: one.account.session == session if user is None else one.concerns(user)
        )
        self.feed.let_go(tenant, lambda one, _: one.session == session if user is None else one.user == user)
        for key in [key for key, (_, held) in self._latest.items() if key.tenant == tenant and held == user]:
            self._latest[key] = self._latest[key][0], None

    def let_go_buried(self, tenant: str, buried: Buried) -> None:
        """Tells no more, here alone, of any turn of whoever was forgotten after it had arrived."""
        self._sort_out(tenant, lambda one: one.is_buried(buried))
        self.feed.let_go(tenant, lambda one, arrived: buries(buried, {one.user}, one.session, arrived))

    def kept(self, tenant: str) -> set[str]:
        """The ids of a tenant's turns that can be looked at."""
        return {trace.account.id for trace in self.newest(tenant)}

    def _sort_out(self, tenant: str, goes: Callable[[Trace], bool]) -> None:
        """Lets go of some of a tenant's turns; the ring is gone through once, however many they are."""
        self._settle()
        kept: deque[Trace] = deque()
        for trace in self._ring:
            if trace.account.tenant == tenant and goes(trace):
                self._let_go(trace)
            else:
                kept.append(trace)
        self._ring = kept

    def _without_bygone(self, trace: Trace, key: Key, session: Session) -> Trace:
        account = trace.account
        if (account.tenant, account.session) != key or not bygone(session, speech(trace.messages)):
            return trace
        self._bytes -= trace.size
        return msgspec.structs.replace(trace, content=None, answer=b"", size=0)

    def _await(self, trace: Trace) -> None:
        """Its turn is written from now on, or has been since it ended."""
        account = trace.account
        if account.session is None:
            return
        key = Key(account.tenant, account.session)
        written, _ = self._latest.get(key, (0.0, None))
        if written > trace.end:
            self._written[trace.number] = written
        else:
            self._unwritten.setdefault(key, set()).add(trace.number)

    def _take(self, trace: Trace) -> None:
        if trace.size > _MOST_BYTES or not self.keeping.content:
            trace = msgspec.structs.replace(trace, content=None, answer=b"", size=0)
        self._ring.append(trace)
        self._bytes += trace.size
        while len(self._ring) > self.keeping.turns or self._bytes > _MOST_BYTES:
            self._let_go(self._ring.popleft())

    def _let_go(self, trace: Trace) -> None:
        self._bytes -= trace.size
        self._written.pop(trace.number, None)
        if trace.account.session is None:
            return
        key = Key(trace.account.tenant, trace.account.session)
        waiting = self._unwritten.get(key, set())
        waiting.discard(trace.number)
        if not waiting:
            self._unwritten.pop(key, None)
