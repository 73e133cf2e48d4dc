"""Leases, with which one process at a time runs a job on a session."""

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
from proxy.memory.stores.store import Key, Store
from proxy.memory.tasks import cancel_and_wait

TTL: Final = 10.0
"""Seconds after which the lease of a killed process ends, unless another process detects its death."""

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_PID_NAMESPACE: Final = Path("/proc/self/ns/pid")


@asynccontextmanager
async def lease(store: Store, work: str, key: Key, *, ttl: float = TTL) -> AsyncIterator[bool]:
    """Holds the lease of a job on a session; yields false if another process has it."""
    name = hashlib.sha256("\n".join((work, *key)).encode("utf-8", "surrogatepass")).hexdigest()
    token = f"{machine_id()}\n{os.getpid()}\n{secrets.token_hex(8)}".encode()
    holder = await store.acquire(name, token, ttl=ttl)
    if holder is not None and _holder_is_dead(holder):
        holder = await store.acquire(name, token, ttl=ttl, former=holder)
    if holder is not None:
        yield False
        return
    renewing = asyncio.create_task(_renew(store, name, token, ttl))
    try:
        yield True
    finally:
        await cancel_and_wait(renewing)
        with suppress(StoreError):
            await store.release(name, token)


async def _renew(store: Store, name: str, token: bytes, ttl: float) -> None:
    while True:
        await asyncio.sleep(ttl / 4)
        with suppress(StoreError):
            await store.acquire(name, token, ttl=ttl)


def _holder_is_dead(token: bytes) -> bool:
    """Whether the process that made a token is surely dead; always false for other machines."""
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
    """Identifies the scope of process ids: a boot of a machine, or a container; empty if unknown."""
    try:
        return f"{socket.gethostname()} {_BOOT_ID.read_text().strip()} {_PID_NAMESPACE.stat().st_ino}"
    except OSError:
        return ""
