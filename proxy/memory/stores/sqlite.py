"""What this process is about to write to a database file, and what it wrote there last."""

import asyncio
import contextlib
import math
import random
import sqlite3
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, cast

from proxy.memory.errors import SessionDeleted, StoreError
from proxy.memory.stores.sql import (
    APPEND,
    CLEAR,
    COLD,
    CREATE,
    DUE,
    EMPTY,
    ERASED_SINCE,
    EXPIRE,
    EXPIRE_COLD,
    LIST,
    READ,
    REPLACE,
    STATE,
    SWEEP,
    TOMBSTONE,
    Arguments,
    Statement,
    id_bytes,
    id_text,
    key_arguments,
    sweep_arguments,
)
from proxy.memory.stores.sqlite_file import PATIENCE, DatabaseFile, ForeignCommits, Reader, Work, Writer
from proxy.memory.stores.store import (
    BACKGROUND_DEADLINE,
    CLOCK_TOLERANCE,
    KEEP_EXPIRY,
    BlobWrite,
    Key,
    ListedSession,
    Store,
    StoredBlob,
)
from proxy.memory.tasks import retrieve_exception

T = TypeVar("T")
_MOST_HELD: Final = 32
_MOST_STATES: Final = 500
Outcome = bool | SessionDeleted
"""Whether anything was changed. A refusal is given back, not raised: the rest of the batch stands."""
_SWEPT_AT_ONCE: Final = 5
Rows = list[tuple[Any, ...]]
_VERSION_BITS: Final = 53
# The archive may write the same file. No call waits for the writer, and a write that fails costs another try.
_LOCKED: Final = 0.5


class State(NamedTuple):
    """The version that a write must name, 0 where there is no session, the last deletion, and the expiry."""

    version: int
    deleted: float
    expires: float


NOWHERE: Final = State(0, -math.inf, -math.inf)


class Pending(NamedTuple):
    """What a session is about to be: a batch in flight, read as if it were committed."""

    held: StoredBlob | None
    expires: float
    deleted: float

    def at(self, now: float) -> StoredBlob | None:
        """What will be held."""
        return self.held if self.expires > now else None

    def state(self, now: float) -> State:
        """What a write must name once it is committed."""
        held = self.at(now)
        return State(held.version if held else 0, self.deleted, self.expires)


class _Committed(NamedTuple):
    """What was written last of a session: what is held, as long as nobody else has written."""

    held: StoredBlob
    expires: float
    elsewhere: int


class OwnWrites:
    """Of the newest sessions that this process wrote, the newest few with all that they hold."""

    def __init__(self, elsewhere: ForeignCommits) -> None:
        self._elsewhere = elsewhere
        self._pending: dict[Key, Pending] = {}
        self._committed: dict[Key, _Committed] = {}
        self._states: dict[Key, State] = {}

    def __bool__(self) -> bool:
        """Whether anything is in flight."""
        return bool(self._pending)

    def pending(self, key: Key) -> Pending | None:
        """What is in flight of a session."""
        return self._pending.get(key)

    def committed(self, key: Key, now: float) -> StoredBlob | None:
        """What is held, where it is sure that nobody else has written since."""
        last = self._committed.get(key)
        if last is None or last.expires <= now or last.elsewhere != self._elsewhere.count_if_certain():
            return None
        return last.held

    def state(self, key: Key, version: int, now: float) -> State | None:
        """The state that a write names, if it is our own last one; whether it stands, the commit tells."""
        state = self._states.get(key)
        return state if state is not None and state.version == version and state.expires > now else None

    def begun(self, key: Key, pending: Pending, outcome: "asyncio.Future[bool | SessionDeleted]") -> None:
        """Takes in a write; what comes of it is told by its ``outcome``."""
        self._pending[key] = pending
        self._committed.pop(key, None)
        self._states.pop(key, None)
        outcome.add_done_callback(partial(self._landed, key, pending, self._elsewhere.count))

    def _landed(
        self, key: Key, pending: Pending, elsewhere: int, outcome: "asyncio.Future[bool | SessionDeleted]"
    ) -> None:
        if self._pending.get(key) is not pending:
            return
        del self._pending[key]
        if pending.held is not None and _succeeded(outcome):
            _keep(self._committed, key, _Committed(pending.held, pending.expires, elsewhere), _MOST_HELD)
            _keep(self._states, key, pending.state(0), _MOST_STATES)


def _succeeded(outcome: "asyncio.Future[bool | SessionDeleted]") -> bool:
    return not outcome.cancelled() and outcome.exception() is None and outcome.result() is True


def _keep(newest: dict[Key, T], key: Key, value: T, most: int) -> None:
    newest[key] = value
    if len(newest) > most:
        del newest[next(iter(newest))]


Swap = Callable[[Arguments, Sequence[bytes], sqlite3.Connection], Outcome]


def _append(arguments: Arguments, cold: Sequence[bytes], connection: sqlite3.Connection) -> Outcome:
    """Replaces a hot part, or makes it, and appends to its cold part."""
    if arguments["version"] == 0:
        connection.execute(EXPIRE_COLD.named, arguments)
        connection.execute(EXPIRE.named, arguments)
        changed = connection.execute(CREATE.named, arguments).rowcount
    else:
        changed = connection.execute(REPLACE.named, arguments).rowcount
    if not changed and connection.execute(ERASED_SINCE.named, arguments).fetchall():
        return SessionDeleted("The session was deleted.")
    if changed and cold:
        entries = ({**arguments, "index": index, "entry": entry} for index, entry in enumerate(cold))
        connection.executemany(APPEND.named, entries)
    return bool(changed)


def _replace(arguments: Arguments, cold: Sequence[bytes], connection: sqlite3.Connection) -> Outcome:
    """Replaces both parts."""
    for statement in (EMPTY, CLEAR):
        connection.execute(statement.named, arguments)
    return _append(arguments, cold, connection)


def _delete(arguments: Arguments, connection: sqlite3.Connection) -> bool:
    """Leaves nothing but when it was; whether there was anything."""
    there = connection.execute(READ.named, arguments).fetchall()
    connection.execute(TOMBSTONE.named, arguments)
    connection.execute(EXPIRE_COLD.named, arguments)
    return bool(there)


def _sweep(connection: sqlite3.Connection) -> bool:
    """Removes a few sessions that have expired; a look is free, a transaction is not."""
    arguments = sweep_arguments(_SWEPT_AT_ONCE)
    found = connection.execute(DUE.named, arguments).fetchall()
    if found:
        connection.execute(SWEEP.named, arguments)
    return len(found) == _SWEPT_AT_ONCE


def _touch(connection: sqlite3.Connection) -> None:
    """Writes what is there already."""
    connection.execute("UPDATE turnkeeper_migrations SET name = name")


def _no_operation(_connection: sqlite3.Connection) -> None:
    """Done when all before it is done."""


def open(  # noqa: A001 - what every driver's entry is called
    url: str, *, deadline: float, elsewhere: ForeignCommits | None = None
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

    def __init__(self, path: Path, *, deadline: float, elsewhere: ForeignCommits | None = None) -> None:
        self._file = DatabaseFile(path, wait=max(deadline, _LOCKED))
        self._elsewhere = elsewhere or ForeignCommits(path)
        self._writer = Writer(self._file, chore=_sweep, elsewhere=self._elsewhere)
        self._reader = Reader(self._file)
        self._deadline = deadline
        self._written = OwnWrites(self._elsewhere)
        self._closed = False

    async def read(self, key: Key, *, background: bool = False) -> StoredBlob | None:
        """Of what is in flight or was written last, else of the file: one look-up by key, some 30 µs."""
        now = time.time()
        if (pending := self._written.pending(key)) is not None:
            return pending.at(now)
        if (held := self._written.committed(key, now)) is not None:
            return held
        reader, due = await self._opened(BACKGROUND_DEADLINE if background else self._deadline)
        row = await reader.row(READ, key_arguments(key) | {"now": now}, due=due)
        return None if row is None else StoredBlob(*cast("tuple[bytes, int]", row))

    async def write(self, key: Key, put: BlobWrite) -> bool:
        """Waits for the commit, 0.1 s at the most where nothing is wrong."""
        return await self._swap(key, _append, put)

    async def replace(self, key: Key, put: BlobWrite) -> bool:
        """Waits as ``write`` does, and longer where there is much to write."""
        return await self._swap(key, _replace, put._replace(at=math.inf))

    async def cold(self, key: Key, *, start: int = 0, limit: int = 1000) -> list[bytes]:
        """On a thread: thousands of entries would keep the loop."""
        rows = await self._fetch(COLD, {**key_arguments(key), "start": start, "limit": limit})
        return [blob for (blob,) in rows]

    async def delete(self, key: Key) -> bool:
        """What is in flight goes as well: it is committed first."""
        now = time.time()
        work = partial(_delete, key_arguments(key) | {"blob": b"", "now": now})
        return await self._change(key, Pending(None, 0.0, now), work, BACKGROUND_DEADLINE)

    async def deleted(self, key: Key) -> float | None:
        """Of what is in flight, else of the file."""
        state = await self._state(key)
        return state.deleted if state.deleted > 0 else None

    async def list(self, tenant: str, *, after: str = "", limit: int = 100) -> list[ListedSession]:
        """On a thread, too, and in the order of code points."""
        rows = await self._fetch(LIST, {"tenant": id_bytes(tenant), "after": id_bytes(after), "limit": limit})
        return [ListedSession(id_text(session), updated, size) for session, updated, size in rows]

    async def ping(self) -> None:
        """Really writes something: a full disk shows in nothing less."""
        await self._awaited(self._writer.submit(_touch))

    async def aclose(self) -> None:
        """The writer's connection closes last, and so moves what the log holds into the file."""
        self._closed = True
        self._reader.close()
        await self._writer.aclose()

    async def _swap(self, key: Key, work: Swap, put: BlobWrite) -> bool:
        now = time.time()
        state = self._written.state(key, put.version, now) or await self._state(key)
        if put.at <= state.deleted <= now + CLOCK_TOLERANCE:
            raise SessionDeleted("The session was deleted.")
        if state.version != put.version:
            return False
        # Python's own dice are thrown anew in a forked process, and cost no call of the system's.
        fresh = random.getrandbits(_VERSION_BITS) + 1
        expires = state.expires if put.ttl == KEEP_EXPIRY else now + put.ttl
        arguments = _arguments(key, put, now) | {"fresh": fresh, "expires": expires}
        pending = Pending(StoredBlob(put.blob, fresh), expires, state.deleted)
        within = BACKGROUND_DEADLINE if work is _replace else PATIENCE
        return await self._change(key, pending, partial(work, arguments, tuple(put.cold)), within)

    async def _opened(self, within: float) -> tuple[Reader, float]:
        """The reader on a file that is there, and when its patience ends."""
        due = asyncio.get_running_loop().time() + within
        if self._closed:
            raise StoreError("The memory has been closed.")
        if self._file.identity is None:
            await self._awaited(self._writer.submit(_no_operation), within)
        return self._reader, due

    async def _state(self, key: Key) -> State:
        """The state that a write must name now."""
        now = time.time()
        row = None
        if self._written.pending(key) is None:
            reader, due = await self._opened(PATIENCE)
            row = await reader.row(STATE, {**key_arguments(key), "now": now}, due=due)
        pending = self._written.pending(key)  # which may have come while the file was being read
        if pending is not None:
            return pending.state(now)
        return NOWHERE if row is None else State(*cast("tuple[int, float, float]", row))

    async def _change(
        self, key: Key, pending: Pending, work: Work[bool | SessionDeleted], within: float
    ) -> bool:
        outcome = self._writer.submit(work)
        self._written.begun(key, pending, outcome)
        changed = await self._awaited(outcome, within)
        if isinstance(changed, SessionDeleted):
            raise changed
        return changed

    async def _awaited(self, outcome: asyncio.Future[T], within: float = PATIENCE) -> T:
        """The outcome; whoever stops waiting stops nothing."""
        outcome.add_done_callback(retrieve_exception)
        done, _ = await asyncio.wait({outcome}, timeout=within)
        if not done:
            raise StoreError(f"The memory file {self._file.path} is too slow.")
        return outcome.result()

    async def _fetch(self, statement: Statement, arguments: Arguments) -> Rows:
        await self._opened(BACKGROUND_DEADLINE)
        if self._written:
            with contextlib.suppress(StoreError):  # then nothing is in flight any more
                await self._awaited(self._writer.submit(_no_operation), BACKGROUND_DEADLINE)
        return await asyncio.to_thread(self._file.fetch, statement, {**arguments, "now": time.time()})


def _arguments(key: Key, put: BlobWrite, now: float) -> dict[str, Any]:
    own = {"blob": put.blob, "version": put.version, "at": put.at, "count": len(put.cold), "now": now}
    return key_arguments(key) | own
