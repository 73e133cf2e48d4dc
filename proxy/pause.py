"""Tells of a session once more when nothing was written to it for a while."""

import asyncio
from typing import Final

from proxy.memory.session import Session
from proxy.memory.store import Key
from proxy.record import Listener

_SLACK: Final = 0.05


class Pause:
    """Tells ``listener`` of a session ``after`` so many seconds, unless it is written again before.

    What is waited for in a process that ends is found from the store.
    """

    def __init__(self, listener: Listener, *, after: float) -> None:
        self._listener = listener
        self._after = after + _SLACK
        self._timers: dict[Key, asyncio.TimerHandle] = {}

    def told(self, key: Key, session: Session) -> None:
        """Takes note of a session that was just written."""
        if key in self._timers:
            self._timers[key].cancel()
        loop = asyncio.get_running_loop()
        self._timers[key] = loop.call_later(self._after, self._tell, key, session)

    def _tell(self, key: Key, session: Session) -> None:
        del self._timers[key]
        self._listener(key, session)
