"""Leases: a job on a session is done by one process at a time."""

import asyncio
import hashlib
import os
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Final

from proxy.memory.errors import StoreError
from proxy.memory.stores.store import BlobWrite, Key, Store

TTL: Final = 10.0
"""How long a killed process still holds a lease, in seconds, where no other sees that it is dead."""

# No tenant has such a name.
_TENANT: Final = "~leases"
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_PID_NAMESPACE: Final = Path("/proc/self/ns/pid")


@asynccontextmanager
async def lease(store: Store, work: str, key: Key, *, ttl: float = TTL) -> AsyncIterator[bool]:
    """Holds the lease of a job on a session; false where another process has it."""
    own = Key(_TENANT, hashlib.sha256("\n".join((work, *key)).encode()).hexdigest())
    token = f"{machine_id()}\n{os.getpid()}\n{secrets.token_hex(8)}".encode()
    if not await _acquire(store, own, token, ttl):
        yield False
        return
    renewing = asyncio.create_task(_renew(store, own, token, ttl))
    try:
        yield True
    finally:
        renewing.cancel()
        await asyncio.wait({renewing})
        with suppress(StoreError):
            stored = await store.read(own, background=True)
            if stored and stored.blob == token:
                await store.delete(own)


async def _acquire(store: Store, own: Key, token: bytes, ttl: float) -> bool:
    """Whether the lease was free, or its holder is dead."""
    if await store.write(own, BlobWrite(token, version=0, ttl=ttl, background=True)):
        return True
    stored = await store.read(own, background=True)
    if stored is None or not _holder_is_dead(stored.blob):
        return False
    return await store.write(own, BlobWrite(token, version=stored.version, ttl=ttl, background=True))


async def _renew(store: Store, own: Key, token: bytes, ttl: float) -> None:
    while True:
        await asyncio.sleep(ttl / 4)
        with suppress(StoreError):
            stored = await store.read(own, background=True)
            if stored and stored.blob == token:
                await store.write(own, BlobWrite(token, version=stored.version, ttl=ttl, background=True))


def _holder_is_dead(token: bytes) -> bool:
    """Whether the process that made a token is surely dead; on another machine that cannot be told."""
    machine, *rest = token.decode("utf-8", "replace").split("\n")
    if not machine or machine != machine_id():
        return False
    try:
        pid, _ = rest
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (ValueError, OverflowError, PermissionError):
        return False
    return False


@cache
def machine_id() -> str:
    """Where process ids are unique: one boot of a machine, or a container on it; empty where unknown."""
    try:
        return f"{socket.gethostname()} {_BOOT_ID.read_text().strip()} {_PID_NAMESPACE.stat().st_ino}"
    except OSError:
        return ""
