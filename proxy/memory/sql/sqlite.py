"""Sessions in one SQLite file: the memory that needs no server."""

import asyncio
import contextlib
import secrets
import sqlite3
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, cast

from proxy.memory.sql.file import File
from proxy.memory.sql.reader import Reader
from proxy.memory.sql.statement import (
    APPEND,
    CLEAR,
    COLD,
    CREATE,
    DELETE,
    DUE,
    EMPTY,
    EXPIRE,
    LIST,
    READ,
    REPLACE,
    SWEEP,
    VERSION,
    Arguments,
    Statement,
    shown,
    stored,
    whose,
)
from proxy.memory.sql.writer import PATIENCE, Work, Writer
from proxy.memory.store import Held, Key, Listed, Store, StoreError

T = TypeVar("T")
Rows = list[tuple[Any, ...]]

_Swap = Callable[[Arguments, Sequence[bytes], sqlite3.Connection], bool]

_SWEPT_AT_ONCE: Final = 5
_VERSION_BITS: Final = 53


def open(url: str, *, deadline: float) -> Store:  # noqa: A001 - what every driver's entry is called
    """The store at ``sqlite:PATH``; the file is opened, and made where it is missing, at first use.

    Raises ValueError for an address that names no file.
    """
    path = url.removeprefix("sqlite:")
    if not path or path.startswith("//") or "\0" in path:
        raise ValueError("write sqlite:PATH, such as sqlite:turnkeeper.db or sqlite:/data/turnkeeper.db")
    if path == ":memory:":
        raise ValueError("for sessions that need not outlive the process, write memory:")
    return SqliteStore(Path(path), deadline=deadline)


class _Pending(NamedTuple):
    """What a session is about to be: a batch in flight, read as if it were committed."""

    held: Held | None
    expires: float


class SqliteStore:
    """Reads inline, writes in batches; what is in flight is read back by this process at once.

    Versions are drawn at random, so that a version names one state of one session for good: a session that
    was deleted and made anew, or another process's write, is never taken for what was read.
    """

    def __init__(self, path: Path, *, deadline: float) -> None:
        self._file = File(path, wait=deadline)
        self._writer = Writer(self._file, chore=_sweep)
        self._reader = Reader(self._file)
        self._deadline = deadline
        self._pending: dict[Key, _Pending] = {}
        self._closed = False

    async def read(self, key: Key) -> Held | None:
        """Of what is in flight, else of the file: one look-up by key, some 30 microseconds."""
        pending = self._pending.get(key)
        now = time.time()
        if pending is not None:
            return pending.held if pending.expires > now else None
        reader, due = await self._opened()
        row = await reader.row(READ, {**whose(key), "now": now}, due=due)
        return None if row is None else Held(*cast("tuple[bytes, int]", row))

    async def write(
        self, key: Key, blob: bytes, *, version: int, ttl: float, cold: Sequence[bytes] = ()
    ) -> bool:
        """Waits for the commit, 0.1 s at the most where nothing is wrong."""
        return await self._swap(key, _append, _arguments(key, blob, version, ttl), cold)

    async def replace(
        self, key: Key, blob: bytes, *, version: int, ttl: float, cold: Sequence[bytes]
    ) -> bool:
        """Waits as ``write`` does."""
        return await self._swap(key, _replace, _arguments(key, blob, version, ttl), cold)

    async def cold(self, key: Key, *, start: int = 0, limit: int = 1000) -> list[bytes]:
        """On a thread: thousands of entries would keep the loop."""
        rows = await self._fetch(COLD, {**whose(key), "start": start, "limit": limit})
        return [blob for (blob,) in rows]

    async def delete(self, key: Key) -> bool:
        """What is in flight goes as well: it is committed first."""
        return await self._change(
            key, _Pending(None, 0.0), partial(_delete, whose(key) | {"now": time.time()})
        )

    async def list(self, tenant: str, *, after: str = "", limit: int = 100) -> list[Listed]:
        """On a thread, too, and in the order of code points."""
        rows = await self._fetch(LIST, {"tenant": stored(tenant), "after": stored(after), "limit": limit})
        return [Listed(shown(session), updated, size) for session, updated, size in rows]

    async def ping(self) -> None:
        """Really writes something: a full disk shows in nothing less."""
        await self._awaited(self._writer.submit(_touch))

    async def aclose(self) -> None:
        """The writer's connection closes last, and so moves what the log holds into the file."""
        self._closed = True
        self._reader.close()
        await self._writer.aclose()

    async def _swap(self, key: Key, work: _Swap, arguments: dict[str, Any], cold: Sequence[bytes]) -> bool:
        if await self._version(key) != arguments["version"]:
            return False
        pending = _Pending(Held(arguments["blob"], arguments["fresh"]), arguments["expires"])
        return await self._change(key, pending, partial(work, arguments | {"count": len(cold)}, tuple(cold)))

    async def _opened(self) -> tuple[Reader, float]:
        """The reader on a file that is there, and when its patience ends."""
        due = asyncio.get_running_loop().time() + self._deadline
        if self._closed:
            raise StoreError("The memory has been closed.")
        if self._file.identity is None:
            await self._awaited(self._writer.submit(_nothing), within=self._deadline)
        return self._reader, due

    async def _version(self, key: Key) -> int:
        """The version that a write must name now; 0 where there is no session."""
        now = time.time()
        row = None
        if key not in self._pending:
            reader, due = await self._opened()
            row = await reader.row(VERSION, {**whose(key), "now": now}, due=due)
        pending = self._pending.get(key)  # which may have come while the file was being read
        if pending is not None:
            return pending.held.version if pending.held is not None and pending.expires > now else 0
        return 0 if row is None else cast("int", row[0])

    async def _change(self, key: Key, pending: _Pending, work: Work[T]) -> T:
        outcome = self._writer.submit(work)
        self._pending[key] = pending
        outcome.add_done_callback(partial(self._landed, key, pending))
        return await self._awaited(outcome)

    def _landed(self, key: Key, pending: _Pending, _outcome: object) -> None:
        if self._pending.get(key) is pending:
            del self._pending[key]

    async def _awaited(self, outcome: asyncio.Future[T], within: float = PATIENCE) -> T:
        """The outcome; whoever stops waiting stops nothing."""
        outcome.add_done_callback(_seen)
        done, _ = await asyncio.wait({outcome}, timeout=within)
        if not done:
            raise StoreError(f"The memory file {self._file.path} is too slow.")
        return outcome.result()

    async def _fetch(self, statement: Statement, arguments: Arguments) -> Rows:
        await self._opened()
        if self._pending:
            with contextlib.suppress(StoreError):  # then nothing is in flight any more
                await self._awaited(self._writer.submit(_nothing))
        return await asyncio.to_thread(self._file.fetch, statement, {**arguments, "now": time.time()})


def _arguments(key: Key, blob: bytes, version: int, ttl: float) -> dict[str, Any]:
    now = time.time()
    fresh = secrets.randbits(_VERSION_BITS) + 1
    return whose(key) | {"blob": blob, "version": version, "fresh": fresh, "now": now, "expires": now + ttl}


def _seen(outcome: asyncio.Future[Any]) -> None:
    """Whoever waited may have left: the error is known all the same."""
    if not outcome.cancelled():
        outcome.exception()


# --- what the writer's thread does


def _append(arguments: Arguments, cold: Sequence[bytes], connection: sqlite3.Connection) -> bool:
    if arguments["version"] == 0:
        connection.execute(EXPIRE.named, arguments)
        changed = connection.execute(CREATE.named, arguments).rowcount
    else:
        changed = connection.execute(REPLACE.named, arguments).rowcount
    if changed and cold:
        entries = ({**arguments, "index": index, "entry": entry} for index, entry in enumerate(cold))
        connection.executemany(APPEND.named, entries)
    return bool(changed)


def _replace(arguments: Arguments, cold: Sequence[bytes], connection: sqlite3.Connection) -> bool:
    for statement in (EMPTY, CLEAR):
        connection.execute(statement.named, arguments)
    return _append(arguments, cold, connection)


def _delete(arguments: Arguments, connection: sqlite3.Connection) -> bool:
    connection.execute(EXPIRE.named, arguments)
    return bool(connection.execute(DELETE.named, arguments).rowcount)


def _sweep(connection: sqlite3.Connection) -> bool:
    """Removes a few sessions that have expired; a look is free, a transaction is not."""
    arguments = {"now": time.time(), "limit": _SWEPT_AT_ONCE}
    due = connection.execute(DUE.named, arguments).fetchall()
    if due:
        connection.execute(SWEEP.named, arguments)
    return len(due) == _SWEPT_AT_ONCE


def _touch(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE turnkeeper_migrations SET name = name")


def _nothing(_connection: sqlite3.Connection) -> None:
    """Done when all before it is done."""
