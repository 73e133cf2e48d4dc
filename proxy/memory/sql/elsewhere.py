"""Whether others have written to a database file, as far as its log tells: no lock, no statement."""

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import sqlite3

# A file's times go by the kernel's clock, which ticks each 10 ms at the slowest; some file systems keep
# seconds.
_TICK: Final = 25_000_000
_SECONDS: Final = 3_000_000_000
_A_SECOND: Final = 1_000_000_000


class _Stamp(NamedTuple):
    """What a log shows from outside; ``written`` is in nanoseconds since 1970."""

    file: int
    size: int
    written: int

    def is_settled(self) -> bool:
        """Whether anything that is written from now on would show."""
        coarse = self.written % _A_SECOND == 0
        return time.time_ns() - self.written > (_SECONDS if coarse else _TICK)


class Began(NamedTuple):
    """A transaction of our own. It is ``alone`` where nobody had written since the one before."""

    alone: bool
    version: int


class Elsewhere:
    """Counts the times at which somebody else may have written to a database file; for any thread.

    A look takes a few microseconds, where the least statement takes fifty, and thrice that of a processor
    that was asleep. It is sure of nothing while the file is being written: then one has to read.
    """

    def __init__(self, path: Path) -> None:
        self._log = Path(f"{path}-wal")
        self._lock = threading.Lock()
        self._seen: tuple[_Stamp | None, int] = (None, 0)

    @property
    def count(self) -> int:
        """The count at our last commit."""
        return self._seen[1]

    def unchanged(self) -> int | None:
        """The count, where it is sure that nobody has written since our last commit; else ``None``."""
        stamp, count = self._seen
        return count if stamp is not None and stamp == self._look() and stamp.is_settled() else None

    def began(self, connection: "sqlite3.Connection") -> Began:
        """To be asked within each transaction of our own, once nobody else may write."""
        return Began(self.unchanged() is not None, _version(connection))

    def committed(self, connection: "sqlite3.Connection", began: Began) -> None:
        """To be told when that has been committed."""
        # In this order: what others have committed before the look, SQLite tells of behind it.
        stamp = self._look()
        alone = began.alone and _version(connection) == began.version != 0
        with self._lock:
            self._seen = (stamp, self._seen[1] + (not alone))

    def _look(self) -> _Stamp | None:
        try:
            found = self._log.stat()
        except OSError:
            return None
        return _Stamp(found.st_ino, found.st_size, found.st_mtime_ns)


def _version(connection: "sqlite3.Connection") -> int:
    """What changes when others commit; 0 where it cannot be told."""
    try:
        return int(connection.execute("PRAGMA data_version").fetchone()[0])
    except connection.Error:
        return 0
