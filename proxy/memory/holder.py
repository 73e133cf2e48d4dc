"""Which process holds a lease, so that another one beside it can tell when it has died."""

import contextlib
import os
import secrets
import socket
from functools import cache
from pathlib import Path
from typing import Final

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_NUMBERED_IN: Final = Path("/proc/self/ns/pid")


def mark() -> bytes:
    """What tells a lease of this process from all others."""
    return f"{machine()}\n{os.getpid()}\n{secrets.token_hex(8)}".encode()


def has_died(marked: bytes) -> bool:
    """Whether the process that made a mark is surely no more; of another machine's nobody knows."""
    told = marked.decode("utf-8", "replace").split("\n")
    if len(told) != 3 or not told[0] or told[0] != machine():  # noqa: PLR2004 - as it is made
        return False
    with contextlib.suppress(ValueError, OverflowError, PermissionError):
        return not _lives(int(told[1]))
    return False


@cache
def machine() -> str:
    """Where processes have their numbers: a start of a machine, or a container on it; nothing elsewhere."""
    try:
        return f"{socket.gethostname()} {_BOOT.read_text().strip()} {_NUMBERED_IN.stat().st_ino}"
    except OSError:
        return ""


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
