"""Who does a piece of work: one process at a time, as long as it lives."""

import asyncio
import contextlib
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
from proxy.memory.stores.store import BlobWrite, Key, Store, StoredBlob

# No key's name begins like this, so that no caller sees what stands here.
_TENANT: Final = "~leases"
TTL: Final = 10.0
"""How long a process that was killed still holds a lease, in seconds, where nobody sees that it has died."""
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_NUMBERED_IN: Final = Path("/proc/self/ns/pid")


@asynccontextmanager
async def lease(store: Store, work: str, key: Key, *, ttl: float = TTL) -> AsyncIterator[bool]:
    """Whether the work on a session is ours until we leave; False where another process has it."""
    name = hashlib.sha256("\n".join((work, *key)).encode()).hexdigest()
    own = Key(_TENANT, name)
    mark = holder_token()
    if not await _acquire(store, own, mark, ttl):
        yield False
        return
    renewing = asyncio.create_task(_renew(store, own, mark, ttl))
    try:
        yield True
    finally:
        renewing.cancel()
        await asyncio.wait({renewing})
        with suppress(StoreError):
            if await _read_own(store, own, mark):
                await store.delete(own)


async def _acquire(store: Store, own: Key, mark: bytes, ttl: float) -> bool:
    """Whether nobody had it, or one who has died."""
    if await store.write(own, BlobWrite(mark, version=0, ttl=ttl, background=True)):
        return True
    held = await store.read(own, background=True)
    if held is None or not holder_is_dead(held.blob):
        return False
    return await store.write(own, BlobWrite(mark, version=held.version, ttl=ttl, background=True))


async def _renew(store: Store, own: Key, mark: bytes, ttl: float) -> None:
    while True:
        await asyncio.sleep(ttl / 4)
        with suppress(StoreError):
            if held := await _read_own(store, own, mark):
                await store.write(own, BlobWrite(mark, version=held.version, ttl=ttl, background=True))


async def _read_own(store: Store, own: Key, mark: bytes) -> StoredBlob | None:
    """The lease, unless it has ended, or ended and is another's by now."""
    held = await store.read(own, background=True)
    return held if held and held.blob == mark else None


def holder_token() -> bytes:
    """What tells a lease of this process from all others."""
    return f"{machine_id()}\n{os.getpid()}\n{secrets.token_hex(8)}".encode()


def holder_is_dead(marked: bytes) -> bool:
    """Whether the process that made a mark is surely no more; of another machine's nobody knows."""
    told = marked.decode("utf-8", "replace").split("\n")
    if len(told) != 3 or not told[0] or told[0] != machine_id():  # noqa: PLR2004 - as it is made
        return False
    with contextlib.suppress(ValueError, OverflowError, PermissionError):
        return not _is_alive(int(told[1]))
    return False


@cache
def machine_id() -> str:
    """Where processes have their numbers: a start of a machine, or a container on it; nothing elsewhere."""
    try:
        return f"{socket.gethostname()} {_BOOT.read_text().strip()} {_NUMBERED_IN.stat().st_ino}"
    except OSError:
        return ""


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
