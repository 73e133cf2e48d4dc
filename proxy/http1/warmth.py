"""Connections that stand before they are asked for: a handshake takes longer than all else before a token."""

import asyncio
import logging
import math
from typing import Final

from proxy.errors import UpstreamError
from proxy.http1.pool import Pool

_EVERY: Final = 1.0
_PAUSE: Final = 30.0
_LATELY: Final = 600.0
_WAIT: Final = 10.0
_log = logging.getLogger("turnkeeper")


class Warmth:
    """Sees to it that a connection of a pool is open, and asks nothing over it.

    One is opened at once, and anew when none is left, at most every ``pause`` seconds, for as long as
    somebody asked within the last ``lately`` seconds: who asks sets ``wanted``. After a failure nothing is
    opened until somebody asks.
    """

    def __init__(
        self, pool: Pool, *, every: float = _EVERY, pause: float = _PAUSE, lately: float = _LATELY
    ) -> None:
        self.wanted = True
        self._pool = pool
        self._every = every
        self._pause = pause
        self._lately = lately

    async def keep(self) -> None:
        """Until it is cancelled, or the pool is closed."""
        now = asyncio.get_running_loop().time
        until = rested = -math.inf
        while not self._pool.closed:
            if self.wanted:
                self.wanted, until = False, now() + self._lately
            if not len(self._pool) and rested <= now() < until:
                rested = now() + self._pause
                until = until if await self._opened() else -math.inf
            await asyncio.sleep(self._every)

    async def _opened(self) -> bool:
        try:
            await self._pool.warm(asyncio.get_running_loop().time() + _WAIT)
        except UpstreamError as error:
            _log.debug("No connection was opened early: %s", error.message)
            return False
        return True
