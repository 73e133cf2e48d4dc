"""Requests that nobody is let in with: a wrong key, a notice without its signature."""

import asyncio
import logging
from collections import Counter
from typing import Final

from proxy.telemetry.log import LogEntry

_EVERY: Final = 60.0
_log = logging.getLogger("turnkeeper")


class Refusals:
    """The first is told at once, and those of the minute behind it together, by the error's code."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._next: asyncio.TimerHandle | None = None

    def add(self, code: str) -> None:
        """One more."""
        self._counts[code] += 1
        if self._next is None:
            self._again()

    def settle(self) -> None:
        """What has not been told is told now, and nothing later."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
        for code, count in self._counts.items():
            _log.warning(LogEntry("requests refused", {"code": code, "count": count}))
        self._counts.clear()

    def _again(self) -> None:
        any_ = bool(self._counts)
        self.settle()
        self._next = asyncio.get_running_loop().call_later(_EVERY, self._again) if any_ else None
