"""The write-ahead log beside a database file: what it holds is what was written lately, removed or not."""

import asyncio
import contextlib
from pathlib import Path
from typing import Final

from proxy.memory.faults import StoreError
from proxy.memory.sql.file import File

_WAIT: Final = 1.0
_ATTEMPTS: Final = 20
_PAUSE: Final = 0.05


async def empty(path: Path) -> None:
    """Moves all of it into the file and leaves it empty. Raises StoreError where others keep reading it."""
    file = File(path, wait=_WAIT)
    for _ in range(_ATTEMPTS):
        if await asyncio.to_thread(_emptied, file):
            return
        await asyncio.sleep(_PAUSE)
    raise StoreError(f"The log of {path} cannot be emptied: another program is reading the file.")


def _emptied(file: File) -> bool:
    if not file.path.exists():
        return True
    with file.named(), contextlib.closing(file.connect(wait=_WAIT)) as connection:
        busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not busy
