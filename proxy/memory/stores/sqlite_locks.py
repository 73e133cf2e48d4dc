"""Finds the process that holds a lock of an SQLite file, in Linux's list of locks."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

_LOCKS: Final = Path("/proc/locks")
# The bytes that SQLite locks (os_unix.c, wal.c). In the file, these are the locks that exclude others. In the
# index of its log ("-shm"), they are one for the writer, one for recovery, and then those of readers.
_PENDING, _SHARED_LAST = 0x4000_0000, 0x4000_01FF
_WRITER, _RECOVERY, _LAST_READER = 120, 122, 127
_FIELDS: Final = 8


class _Lock(NamedTuple):
    inode: tuple[int, int, int]
    exclusive: bool
    pid: int
    first: int
    last: int

    def covers(self, first: int, last: int) -> bool:
        return self.first <= last and self.last >= first


def locked_by(path: Path, *, for_reading: bool = False) -> str:
    """Returns a clause that says which process locks a file, or ``for_reading`` which one reads it.

    Another program is named only if it holds the lock now. Processes that were started by the same command as
    this one, such as those of one server, are called Turnkeeper's own.
    """
    pid = next(_holders(path, for_reading=for_reading), None)
    verb = "in use" if for_reading else "locked"
    if pid is None:
        return f"it was {verb} for too long, and which process did it cannot be told"
    if pid == os.getpid():
        return f"it is {verb} by another writer or reader of this process ({pid})"
    command = _read(f"/proc/{pid}/cmdline")
    if command and command == _read("/proc/self/cmdline"):
        return f"it is {verb} by another process of Turnkeeper ({pid})"
    name = _read(f"/proc/{pid}/comm").strip() or "its name cannot be read"
    return f"it is {verb} by another program ({name}, process {pid})"


def _holders(path: Path, *, for_reading: bool) -> Iterator[int]:
    """Yields the processes whose locks exclude a writer or, ``for_reading``, the emptying of the log."""
    file, index = _inode(path), _inode(Path(f"{path}-shm"))
    for lock in _locks():
        if lock.inode == file:
            holds = lock.exclusive and lock.covers(_PENDING, _SHARED_LAST)
        elif lock.inode == index and for_reading:
            holds = lock.covers(_WRITER, _LAST_READER)
        else:
            excludes = lock.covers(_WRITER, _WRITER) or lock.covers(_RECOVERY, _RECOVERY)
            holds = lock.inode == index and lock.exclusive and excludes
        if holds:
            yield lock.pid


def _locks() -> Iterator[_Lock]:
    """Yields the locks of all processes that are visible here; none on systems other than Linux."""
    for line in _read(str(_LOCKS)).splitlines():
        # "1: POSIX  ADVISORY  WRITE 4711 fe:00:4247008 120 120"; "->" marks a waiting process.
        fields = line.split()
        if len(fields) != _FIELDS or fields[1] != "POSIX":
            continue
        with suppress(ValueError):
            major, minor, inode = fields[5].split(":")
            last = (1 << 63) if fields[7] == "EOF" else int(fields[7])
            id_ = int(major, 16), int(minor, 16), int(inode)
            yield _Lock(id_, fields[3] == "WRITE", int(fields[4]), int(fields[6]), last)


def _inode(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return os.major(stat.st_dev), os.minor(stat.st_dev), stat.st_ino


def _read(path: str) -> str:
    # Never read a file of SQLite's: closing it would drop all locks that this process has on it.
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
