"""Traces in the Redis of the sessions, so that each host shows the turns of all, even of a dead one."""

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from proxy.clock import wall_time
from proxy.memory.errors import StoreError, Unreadable
from proxy.memory.stores.codec import Codec
from proxy.memory.stores.store import KeptTurn, Key
from proxy.memory.tasks import Tasks
from proxy.trace import Trace, TraceRecord
from proxy.turn.state import TurnContent

if TYPE_CHECKING:
    from proxy.memory.stores.redis_turns import RedisTurns

_BATCH_TIME: Final = 0.5
# In bytes: the largest content of a turn, and the largest batch.
_LARGEST_CONTENT: Final = 500_000
_LARGEST_BATCH: Final = 2_000_000
# All of a tenant's turns are in one slot of a cluster, and few are kept: sending all would exceed the
# sessions.
_BYTES_A_SECOND: Final = 250_000
_MOST_TURNS: Final = 500
_HASH_BYTES: Final = 16
_PURPOSE: Final = b"kept turns"
_LENGTH: Final = 4


_encode_report = msgspec.msgpack.Encoder().encode
_decode_report = msgspec.msgpack.Decoder(TraceRecord).decode
_encode_content = msgspec.json.Encoder().encode
_decode_content = msgspec.json.Decoder(TurnContent).decode


class SharedTraces:
    """Collects traces, and adds them half a second later with one command for each tenant.

    At a high rate the next batch is delayed, and has only the newest traces. A batch that fails is sent again
    with the next one, as far as its traces are still among the newest. Without ``with_text``, traces have no
    text.
    """

    def __init__(self, turns: "RedisTurns", codec: Codec, *, with_text: bool) -> None:
        self._turns = turns
        self._codec = codec
        self._with_text = with_text
        self._hash_keys = codec.derived(_PURPOSE) or (b"",)
        self._pending: dict[str, dict[int, Trace]] = {}
        self._keep = 0
        self._timer: asyncio.TimerHandle | None = None
        self._next_at = 0.0
        self._tasks = Tasks()

    def add(self, trace: Trace, *, keep: int) -> None:
        """Adds or replaces a trace; ``keep`` is how many each tenant keeps, 500 at most."""
        keep = min(keep, _MOST_TURNS)
        pending = self._pending.setdefault(trace.report.tenant, {})
        pending[trace.number] = trace
        self._keep = keep
        if len(pending) > keep:
            del pending[next(iter(pending))]
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_BATCH_TIME, self._start)

    def set_written(self, trace: Trace) -> None:
        """Replaces a trace whose turn was written to memory, if it is still pending."""
        pending = self._pending.get(trace.report.tenant, {})
        if trace.number in pending:
            pending[trace.number] = trace

    async def flush(self) -> None:
        """Sends the collected traces."""
        self._timer, loop = None, asyncio.get_running_loop()
        for tenant, pending in list(self._pending.items()):
            del self._pending[tenant]
            turns, room = list[KeptTurn](), _LARGEST_BATCH
            for trace in reversed(pending.values()):  # the newest first, since not all may fit
                with contextlib.suppress(ValueError, TypeError, OverflowError):  # it cannot be encoded
                    turn = self._encoded(trace)
                    room -= len(turn.report) + len(turn.content)
                    if room < 0:
                        break
                    turns.append(turn)
                await asyncio.sleep(0)
            sent = sum(len(turn.report) + len(turn.content) for turn in turns)
            self._next_at = max(self._next_at, loop.time()) + sent / _BYTES_A_SECOND
            try:
                await self._turns.add(tenant, turns, keep=self._keep)
            except StoreError:
                unsent = pending | self._pending.get(tenant, {})
                self._pending[tenant] = dict([*unsent.items()][-self._keep :])

    async def reports(self, tenant: str) -> Sequence[Trace]:
        """Reads the traces of all hosts, without content, the newest first. Raises StoreError."""
        traces = []
        for number, (id_, data) in enumerate((await self._turns.reports(tenant)).items(), 1):
            with contextlib.suppress(Unreadable, msgspec.DecodeError):
                record = _decode_report(self._codec.decode(_key(tenant, id_), data))
                start = time.perf_counter() - (wall_time() - record.report.at)
                fields = msgspec.structs.asdict(record.shifted(start))
                traces.append(Trace(**fields, number=-number, start=start))
        return traces

    async def with_content(self, traces: Sequence[Trace]) -> Sequence[Trace]:
        """Returns the traces with their content, if it is stored. Raises StoreError."""
        if not traces:
            return ()
        tenant, ids = traces[0].report.tenant, [trace.report.id for trace in traces]
        full = []
        for trace, data in zip(traces, await self._turns.contents(tenant, ids), strict=True):
            content, answer = None, b""
            with contextlib.suppress(Unreadable, msgspec.DecodeError):
                if data:
                    plain = self._codec.decode(_key(tenant, trace.report.id), data)
                    end = _LENGTH + int.from_bytes(plain[:_LENGTH], "big")
                    content, answer = _decode_content(plain[_LENGTH:end]), plain[end:]
            full.append(msgspec.structs.replace(trace, content=content, answer=answer))
            await asyncio.sleep(0)
        return full

    async def erase(self, tenant: str, *, session: str | None = None, user: str | None = None) -> int:
        """Removes the turns of a session or of a user; returns how many. Raises StoreError.

        With both, only the content of the session's turns is removed.
        """
        if session is not None and user is not None:
            await self._turns.remove_contents(tenant, self._names(session, ()))
            return 0
        count = await self._turns.erase(tenant, self._names(session, [user]))
        if user is not None:
            await self._turns.remove_contents(tenant, self._names(None, (), last_call_speakers=[user]))
        return count

    def remove(self, tenant: str, numbers: Iterable[int]) -> None:
        """Drops traces that were not sent yet."""
        pending = self._pending.get(tenant, {})
        for number in numbers:
            pending.pop(number, None)

    def remove_contents(self, key: Key) -> None:
        """Starts to remove the content of a session's turns."""

        async def work() -> None:
            with contextlib.suppress(StoreError):
                await self.flush()
                await self._turns.remove_contents(key.tenant, self._names(key.session, ()))

        self._tasks.start(work())

    async def aclose(self) -> None:
        """Adds the turns that are still pending."""
        if self._timer is not None:
            self._timer.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self.flush()

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() < self._next_at:
            self._timer = loop.call_at(self._next_at, self._start)
        else:
            self._tasks.start(self.flush())

    def _encoded(self, trace: Trace) -> KeptTurn:
        report, users = trace.report, frozenset(trace.users)
        content = trace.content if self._with_text and trace.size <= _LARGEST_CONTENT else None
        record = TraceRecord(**{name: getattr(trace, name) for name in TraceRecord.__struct_fields__})
        record = msgspec.structs.replace(
            record.shifted(-trace.start),
            report=msgspec.structs.replace(report, excerpt=trace.excerpt if self._with_text else None),
            named_users=users,
            size=trace.size if content else 0,
        )
        key, text = _key(report.tenant, report.id), b""
        if content:
            data = _encode_content(content)
            text = self._codec.encode(key, len(data).to_bytes(_LENGTH, "big") + data + trace.answer)
        return KeptTurn(
            id=report.id,
            age=wall_time() - trace.arrival,
            names=self._names(report.session, users, last_call_speakers=trace.last_call_speakers),
            report=self._codec.encode(key, _encode_report(record)),
            content=text,
        )

    def _names(
        self, session: str | None, users: Iterable[str | None], *, last_call_speakers: Iterable[str] = ()
    ) -> Sequence[str]:
        """The hashes of a session, of users and of speakers of the last call, with each of the keys."""
        names = [] if session is None else [b"s" + session.encode("utf-8", "surrogatepass")]
        names += [b"u" + user.encode("utf-8", "surrogatepass") for user in users if user is not None]
        names += [b"t" + speaker.encode("utf-8", "surrogatepass") for speaker in last_call_speakers]
        return [
            hashlib.blake2b(name, key=key, digest_size=_HASH_BYTES).hexdigest()
            for name in names
            for key in self._hash_keys
        ]


def _key(tenant: str, id_: str) -> Key:
    # No tenant can have this name, so that a turn is never taken for a session.
    return Key(f"~turns {tenant}", id_)
