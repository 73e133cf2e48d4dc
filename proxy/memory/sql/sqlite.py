"""Sessions in one SQLite file: the memory that needs no server."""

import asyncio
import contextlib
import math
import random
import time
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from proxy.memory.faults import Deleted, StoreError
from proxy.memory.patience import seen
from proxy.memory.sql import change
from proxy.memory.sql.elsewhere import Elsewhere
from proxy.memory.sql.file import File
from proxy.memory.sql.reader import Reader
from proxy.memory.sql.statement import COLD, LIST, READ, STATE, Arguments, Statement, shown, stored, whose
from proxy.memory.sql.writer import PATIENCE, Work, Writer
from proxy.memory.sql.written import NOWHERE, OwnWrites, Pending, State
from proxy.memory.store import APART, LEISURE, UNRENEWED, Held, Key, Listed, Put, Store

T = TypeVar("T")
Rows = list[tuple[Any, ...]]

_VERSION_BITS: Final = 53
# The archive may write the same file. No call waits for the writer, and a write that fails costs another try.
_LOCKED: Final = 0.5


def open(  # noqa: A001 - what every driver's entry is called
    url: str, *, deadline: float, elsewhere: Elsewhere | None = None
) -> Store:
    """The store at ``sqlite:PATH``; the file is opened, and made where it is missing, at first use.

    ``elsewhere`` is shared with whoever else of this process writes to the same file. Raises ValueError for
    an address that names no file.
    """
    path = url.removeprefix("sqlite:")
    if not path or path.startswith("//") or "\0" in path:
        raise ValueError("write sqlite:PATH, such as sqlite:turnkeeper.db or sqlite:/data/turnkeeper.db")
    if path == ":memory:":
        raise ValueError("for sessions that need not outlive the process, write memory:")
    return SqliteStore(Path(path), deadline=deadline, elsewhere=elsewhere)


class SqliteStore:
    """Reads inline, writes in batches; what is in flight is read back by this process at once.

    Versions are drawn at random, so that a version names one state of one session for good: a session that
    was deleted and made anew, or another process's write, is never taken for what was read.
    """

    def __init__(self, path: Path, *, deadline: float, elsewhere: Elsewhere | None = None) -> None:
        self._file = File(path, wait=max(deadline, _LOCKED))
        self._elsewhere = elsewhere or Elsewhere(path)
        self._writer = Writer(self._file, chore=change.sweep, elsewhere=self._elsewhere)
        self._reader = Reader(self._file)
        self._deadline = deadline
        self._written = OwnWrites(self._elsewhere)
        self._closed = False

    async def read(self, key: Key, *, leisure: bool = False) -> Held | None:
        """Of what is in flight or was written last, else of the file: one look-up by key, some 30 µs."""
        now = time.time()
        if (pending := self._written.pending(key)) is not None:
            return pending.at(now)
        if (held := self._written.committed(key, now)) is not None:
            return held
        reader, due = await self._opened(LEISURE if leisure else self._deadline)
        row = await reader.row(READ, whose(key) | {"now": now}, due=due)
        return None if row is None else Held(*cast("tuple[bytes, int]", row))

    async def write(self, key: Key, put: Put) -> bool:
        """Waits for the commit, 0.1 s at the most where nothing is wrong."""
        return await self._swap(key, change.append, put)

    async def replace(self, key: Key, put: Put) -> bool:
        """Waits as ``write`` does, and longer where there is much to write."""
        return await self._swap(key, change.replace, put._replace(at=math.inf))

    async def cold(self, key: Key, *, start: int = 0, limit: int = 1000) -> list[bytes]:
        """On a thread: thousands of entries would keep the loop."""
        rows = await self._fetch(COLD, {**whose(key), "start": start, "limit": limit})
        return [blob for (blob,) in rows]

    async def delete(self, key: Key) -> bool:
        """What is in flight goes as well: it is committed first."""
        now = time.time()
        work = partial(change.delete, whose(key) | {"blob": b"", "now": now})
        return await self._change(key, Pending(None, 0.0, now), work, LEISURE)

    async def deleted(self, key: Key) -> float | None:
        """Of what is in flight, else of the file."""
        state = await self._state(key)
        return state.deleted if state.deleted > 0 else None

    async def list(self, tenant: str, *, after: str = "", limit: int = 100) -> list[Listed]:
        """On a thread, too, and in the order of code points."""
        rows = await self._fetch(LIST, {"tenant": stored(tenant), "after": stored(after), "limit": limit})
        return [Listed(shown(session), updated, size) for session, updated, size in rows]

    async def ping(self) -> None:
        """Really writes something: a full disk shows in nothing less."""
        await self._awaited(self._writer.submit(change.touch))

    async def aclose(self) -> None:
        """The writer's connection closes last, and so moves what the log holds into the file."""
        self._closed = True
        self._reader.close()
        await self._writer.aclose()

    async def _swap(self, key: Key, work: change.Swap, put: Put) -> bool:
        now = time.time()
        state = self._written.state(key, put.version, now) or await self._state(key)
        if put.at <= state.deleted <= now + APART:
            raise Deleted("The session was deleted.")
        if state.version != put.version:
            return False
        # Python's own dice are thrown anew in a forked process, and cost no call of the system's.
        fresh = random.getrandbits(_VERSION_BITS) + 1
        expires = state.expires if put.ttl == UNRENEWED else now + put.ttl
        arguments = _arguments(key, put, now) | {"fresh": fresh, "expires": expires}
        pending = Pending(Held(put.blob, fresh), expires, state.deleted)
        within = LEISURE if work is change.replace else PATIENCE
        return await self._change(key, pending, partial(work, arguments, tuple(put.cold)), within)

    async def _opened(self, within: float) -> tuple[Reader, float]:
        """The reader on a file that is there, and when its patience ends."""
        due = asyncio.get_running_loop().time() + within
        if self._closed:
            raise StoreError("The memory has been closed.")
        if self._file.identity is None:
            await self._awaited(self._writer.submit(change.nothing), within)
        return self._reader, due

    async def _state(self, key: Key) -> State:
        """The state that a write must name now."""
        now = time.time()
        row = None
        if self._written.pending(key) is None:
            reader, due = await self._opened(PATIENCE)
            row = await reader.row(STATE, {**whose(key), "now": now}, due=due)
        pending = self._written.pending(key)  # which may have come while the file was being read
        if pending is not None:
            return pending.state(now)
        return NOWHERE if row is None else State(*cast("tuple[int, float, float]", row))

    async def _change(self, key: Key, pending: Pending, work: Work[bool | Deleted], within: float) -> bool:
        outcome = self._writer.submit(work)
        self._written.begun(key, pending, outcome)
        changed = await self._awaited(outcome, within)
        if isinstance(changed, Deleted):
            raise changed
        return changed

    async def _awaited(self, outcome: asyncio.Future[T], within: float = PATIENCE) -> T:
        """The outcome; whoever stops waiting stops nothing."""
        outcome.add_done_callback(seen)
        done, _ = await asyncio.wait({outcome}, timeout=within)
        if not done:
            raise StoreError(f"The memory file {self._file.path} is too slow.")
        return outcome.result()

    async def _fetch(self, statement: Statement, arguments: Arguments) -> Rows:
        await self._opened(LEISURE)
        if self._written:
            with contextlib.suppress(StoreError):  # then nothing is in flight any more
                await self._awaited(self._writer.submit(change.nothing), LEISURE)
        return await asyncio.to_thread(self._file.fetch, statement, {**arguments, "now": time.time()})


def _arguments(key: Key, put: Put, now: float) -> dict[str, Any]:
    own = {"blob": put.blob, "version": put.version, "at": put.at, "count": len(put.cold), "now": now}
    return whose(key) | own
