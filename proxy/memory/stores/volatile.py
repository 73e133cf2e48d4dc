"""Sessions in this process's memory, for tests and for calls that need not be remembered."""

import math
import threading
import time
from collections.abc import Sequence

import msgspec

from proxy.clock import wall_time
from proxy.memory.errors import SessionDeleted
from proxy.memory.stores.store import (
    CLOCK_TOLERANCE,
    KEEP_EXPIRY,
    NEVER_DUE,
    TOMBSTONE_SECONDS,
    BlobWrite,
    DueSession,
    Key,
    ListedSession,
    Store,
    StoredBlob,
    draw_version,
)

_SWEEP_EVERY = 60.0


def open(url: str, *, deadline: float) -> Store:  # noqa: A001, ARG001 - what every driver's entry is called
    """Returns a new store for ``memory:``. Raises ValueError for any other address."""
    if url != "memory:":
        raise ValueError("write memory: without anything after it")
    return VolatileStore()


class _Row(msgspec.Struct, frozen=True):
    stored: StoredBlob
    updated: float
    expires: float
    cold: tuple[bytes, ...]


class VolatileStore:
    """Sessions in a dictionary, which is emptied when the store is closed."""

    def __init__(self) -> None:
        self._sessions: dict[Key, _Row] = {}
        self._deleted: dict[Key, float] = {}
        self._due: dict[Key, float] = {}
        self._leases: dict[str, tuple[bytes, float]] = {}
        self._swept = time.monotonic()
        self._swapping = threading.Lock()  # an agent's short-term memory may be used in several threads

    async def read(self, key: Key, *, background: bool = False) -> StoredBlob | None:  # noqa: ARG002 - it takes no time
        """Reads the hot part."""
        row = self._row(key)
        return row.stored if row else None

    async def write(self, key: Key, put: BlobWrite) -> bool:
        """Writes both parts; removes expired sessions once a minute."""
        now = wall_time()
        if time.monotonic() - self._swept >= _SWEEP_EVERY:
            self._swept = time.monotonic()
            self._sessions = {each: row for each, row in self._sessions.items() if row.expires > now}
            self._deleted = {k: at for k, at in self._deleted.items() if at > now - TOMBSTONE_SECONDS}
            self._due = {k: due for k, due in self._due.items() if k in self._sessions}
        if put.at <= self._deleted.get(key, -math.inf) <= now + CLOCK_TOLERANCE:
            raise SessionDeleted("the session was deleted")
        row = self._row(key)
        return self._swap(key, put, (*(row.cold if row else ()), *put.cold))

    async def replace(self, key: Key, put: BlobWrite) -> bool:
        """Replaces both parts."""
        return self._swap(key, put, tuple(put.cold))

    async def cold(self, key: Key, *, start: int = 0, limit: int = 1000) -> list[bytes]:
        """Reads entries of the cold part."""
        row = self._row(key)
        return list(row.cold[start : start + limit]) if row else []

    async def delete(self, key: Key) -> bool:
        """Removes the session, and remembers the time; returns whether there was a session."""
        row = self._row(key)
        self._sessions.pop(key, None)
        self._due.pop(key, None)
        self._deleted[key] = wall_time()
        return row is not None

    async def deleted(self, key: Key) -> float | None:
        """Returns when the session was deleted last, in seconds since 1970; ``None`` without a tombstone."""
        return self._deleted.get(key)

    async def list(self, tenant: str, *, after: str = "", limit: int = 100) -> list[ListedSession]:
        """Lists a tenant's sessions; looks at the sessions of all tenants."""
        now = wall_time()
        lines = [
            ListedSession(key.session, row.updated, len(row.stored.blob))
            for key, row in self._sessions.items()
            if key.tenant == tenant and key.session > after and row.expires > now
        ]
        return sorted(lines)[:limit]

    async def take_due(
        self,
        tenants: Sequence[str],  # noqa: ARG002 - there are no sessions of older versions
        *,
        limit: int,
        lease: float,
    ) -> Sequence[DueSession]:
        """Takes sessions that are due; looks at all sessions with work left."""
        now = wall_time()
        keys = sorted((key for key, due in self._due.items() if due <= now), key=self._due.__getitem__)
        self._due |= dict.fromkeys(keys[:limit], now + lease)
        return [DueSession(key, repr(now + lease)) for key in keys[:limit]]

    async def settle(self, session: DueSession, due: float) -> DueSession | None:
        """Sets when a taken session is due again; ``None`` if it was written or taken again since."""
        if repr(self._due.get(session.key)) != session.lease:
            return None
        self._schedule(session.key, due)
        return DueSession(session.key, repr(due))

    async def acquire(self, name: str, token: bytes, *, ttl: float, former: bytes = b"") -> bytes | None:
        """Takes or renews a lease; returns ``None``, or the token of another holder."""
        holder, expires = self._leases.get(name, (token, 0.0))
        if holder not in {token, former} and expires > time.monotonic():
            return holder
        self._leases[name] = token, time.monotonic() + ttl
        return None

    async def release(self, name: str, token: bytes) -> None:
        """Ends a lease if ``token`` holds it."""
        if self._leases.get(name, (b"", 0.0))[0] == token:
            del self._leases[name]

    async def ping(self) -> None:
        """Always returns."""

    async def aclose(self) -> None:
        """Removes everything from memory."""
        self._sessions.clear()
        self._deleted.clear()
        self._due.clear()
        self._leases.clear()

    def _schedule(self, key: Key, due: float) -> None:
        if due < NEVER_DUE:
            self._due[key] = due
        else:
            self._due.pop(key, None)

    def _row(self, key: Key) -> _Row | None:
        row = self._sessions.get(key)
        return row if row is not None and row.expires > wall_time() else None

    def _swap(self, key: Key, put: BlobWrite, cold: tuple[bytes, ...]) -> bool:
        with self._swapping:
            row = self._row(key)
            if put.version != (row.stored.version if row else 0):
                return False
            now = wall_time()
            expires = row.expires if row and put.ttl == KEEP_EXPIRY else now + put.ttl
            self._sessions[key] = _Row(
                StoredBlob(bytes(put.blob), put.new_version or draw_version()), now, expires, cold
            )
            self._schedule(key, put.due)
            return True
