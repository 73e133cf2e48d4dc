"""Tells of a session once more when nothing was written to it for a while."""

import asyncio
from collections.abc import Callable
from typing import Final

from proxy.memory.session.session import Session
from proxy.memory.store import Key

_SLACK: Final = 0.05


class Pause:
    """Tells ``listener`` of a session ``after`` so many seconds, unless it is written again before.

    What is waited for in a process that ends is found from the store.
    """

    def __init__(self, listener: Callable[[Key], None], *, after: float) -> None:
        self._listener = listener
        self._after = after + _SLACK
        # The one that was told longest ago comes first: one timer will do.
        self._waiting: dict[Key, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def told(self, key: Key, _: Session) -> None:
        """Takes note of a session that was just written; only its name is kept."""
        loop = asyncio.get_running_loop()
        self._waiting.pop(key, None)
        self._waiting[key] = loop.time() + self._after
        if self._timer is None:
            self._timer = loop.call_later(self._after, self._ring)

    def _ring(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        for key, at in [*self._waiting.items()]:
            if at > loop.time():
                self._timer = loop.call_at(at, self._ring)
                return
            del self._waiting[key]
            self._listener(key)
