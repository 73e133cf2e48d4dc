"""Sessions in this process's memory: for tests, and for calls that need not be remembered."""

import math
import secrets
import time
from collections.abc import Iterator

import msgspec

from proxy.memory.errors import SessionDeleted
from proxy.memory.stores.store import (
    CLOCK_TOLERANCE,
    KEEP_EXPIRY,
    TOMBSTONE_SECONDS,
    BlobWrite,
    Key,
    ListedSession,
    Store,
    StoredBlob,
)

_SWEEP_EVERY = 60.0


def open(url: str, *, deadline: float) -> Store:  # noqa: A001, ARG001 - what every driver's entry is called
    """The store at ``memory:``, a new one each time. Raises ValueError where more is written than that."""
    if url != "memory:":
        raise ValueError("write memory: and nothing behind it")
    return VolatileStore()


class _Kept(msgspec.Struct):
    held: StoredBlob
    updated: float
    expires: float
    cold: tuple[bytes, ...]


class VolatileStore:
    """A dictionary that forgets when it is closed."""

    def __init__(self) -> None:
        self._sessions: dict[Key, _Kept] = {}
        self._deleted: dict[Key, float] = {}
        self._swept = time.monotonic()

    async def read(self, key: Key, *, background: bool = False) -> StoredBlob | None:  # noqa: ARG002 - it takes no time
        """As the protocol has it."""
        kept = self._kept(key)
        return kept.held if kept else None

    async def write(self, key: Key, put: BlobWrite) -> bool:
        """As the protocol has it, and what has expired goes, now and then."""
        self._sweep()
        if put.at <= self._deleted.get(key, -math.inf) <= time.time() + CLOCK_TOLERANCE:
            raise SessionDeleted("the session was deleted")
        kept = self._kept(key)
        if put.version != (kept.held.version if kept else 0):
            return False
        self._keep(key, put, (*(kept.cold if kept else ()), *put.cold))
        return True

    async def replace(self, key: Key, put: BlobWrite) -> bool:
        """As the protocol has it."""
        kept = self._kept(key)
        if put.version != (kept.held.version if kept else 0):
            return False
        self._keep(key, put, tuple(put.cold))
        return True

    async def cold(self, key: Key, *, start: int = 0, limit: int = 1000) -> list[bytes]:
        """As the protocol has it."""
        kept = self._kept(key)
        return list(kept.cold[start : start + limit]) if kept else []

    async def delete(self, key: Key) -> bool:
        """As the protocol has it."""
        there = self._kept(key) is not None
        self._sessions.pop(key, None)
        self._deleted[key] = time.time()
        return there

    async def deleted(self, key: Key) -> float | None:
        """As the protocol has it."""
        return self._deleted.get(key)

    async def list(self, tenant: str, *, after: str = "", limit: int = 100) -> list[ListedSession]:
        """As the protocol has it; looks at every session that there is."""
        lines = sorted(line for line in self._lines(tenant) if line.session > after)
        return lines[:limit]

    async def ping(self) -> None:
        """Always returns."""

    async def aclose(self) -> None:
        """Forgets everything."""
        self._sessions.clear()
        self._deleted.clear()

    def _keep(self, key: Key, put: BlobWrite, cold: tuple[bytes, ...]) -> None:
        now, kept = time.time(), self._sessions.get(key)
        expires = kept.expires if kept and put.ttl == KEEP_EXPIRY else now + put.ttl
        self._sessions[key] = _Kept(StoredBlob(bytes(put.blob), secrets.randbits(53) + 1), now, expires, cold)

    def _kept(self, key: Key) -> _Kept | None:
        kept = self._sessions.get(key)
        return kept if kept is not None and kept.expires > time.time() else None

    def _lines(self, tenant: str) -> Iterator[ListedSession]:
        now = time.time()
        for key, kept in self._sessions.items():
            if key.tenant == tenant and kept.expires > now:
                yield ListedSession(key.session, kept.updated, len(kept.held.blob))

    def _sweep(self) -> None:
        if time.monotonic() - self._swept < _SWEEP_EVERY:
            return
        self._swept = time.monotonic()
        now = time.time()
        self._sessions = {key: kept for key, kept in self._sessions.items() if kept.expires > now}
        self._deleted = {key: at for key, at in self._deleted.items() if at > now - TOMBSTONE_SECONDS}
