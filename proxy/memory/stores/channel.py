"""A channel between the servers of one store, and the time by that store's clock.

What all hosts write is ordered by the store's clock, which a host reads over the channel.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

from proxy.circuit import Backoff, Outage
from proxy.clock import set_ahead
from proxy.memory.errors import StoreError

Receive = Callable[[float, bytes], None]
"""Is called with each message, and a time of the store's clock: of its sending, less its age."""

REJOINING: Final = Backoff(0.05, 1.0)
"""The pauses after which a channel that was lost is joined again."""

_EVERY, _AGAIN = 20.0, 2.0
_AT_START: Final = 1.0
_READINGS: Final = 3
_MOST: Final = 0.25


class ClockReading(NamedTuple):
    """How long reading the store's clock took, and how far this host's is ahead of it, in seconds."""

    passed: float
    ahead: float


async def compare_clocks(read: Callable[[], Awaitable[float]]) -> ClockReading:
    """The more exact of two readings: the first may have had to connect."""
    readings = []
    for _ in range(2):
        asked, began = time.time(), time.monotonic()
        at = await read()
        passed = time.monotonic() - began
        readings.append(ClockReading(passed, asked + passed / 2 - at))
    return min(readings)


class Channel(Protocol):
    """Carries messages to all servers that use a store, the sender among them, and keeps none of them."""

    largest: int
    """How many bytes a message may have."""

    async def publish(self, topic: str, data: bytes, *, age: float = 0.0) -> None:
        """Sends a message about something that began ``age`` seconds ago.

        Messages on one topic arrive everywhere in one order. Raises StoreError where it may not have been
        sent, and ValueError where it is too large.
        """
        ...

    async def run(self, receive: Receive, joined: Callable[[], None]) -> None:
        """Receives until it is cancelled.

        ``joined`` is called each time that messages begin to arrive: earlier ones may be lost.
        """
        ...

    async def read_clock(self) -> ClockReading:
        """Compares this host's clock with the store's; raises StoreError."""
        ...

    async def aclose(self) -> None:
        """Closes all connections."""
        ...


class StoreClock:
    """Makes the time of day follow the store's clock; with ``warns``, logs when the host's clock is off."""

    def __init__(self, channel: Channel) -> None:
        self.warns = False
        self._channel = channel
        self._readings: deque[ClockReading] = deque(maxlen=_READINGS)
        self._outage = Outage(
            "This host's clock is %+.1f s off that of the sessions' store; have it set by NTP",
            "This host's clock is as the sessions' store's again (%+.3f s)",
        )

    @property
    def skew(self) -> float | None:
        """How many seconds this host's clock is ahead of the store's, if that is known."""
        return min(self._readings).ahead if self._readings else None

    async def start(self) -> None:
        """Reads the store's clock, if it can be had in a second."""
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(_AT_START):
                await self._read()

    async def run(self) -> None:
        """Reads it every 20 seconds until it is cancelled, and sooner after a failure."""
        while True:
            pause = _EVERY if self._readings else _AGAIN
            await asyncio.sleep(pause)
            with suppress(StoreError):
                await self._read()

    async def aclose(self) -> None:
        """Closes the connection to the store."""
        await self._channel.aclose()

    async def _read(self) -> None:
        reading = await self._channel.read_clock()
        if self._readings and abs(reading.ahead - self._readings[-1].ahead) > reading.passed + _MOST:
            self._readings.clear()  # one of the clocks was set
        self._readings.append(reading)
        passed, ahead = min(self._readings)
        set_ahead(ahead)
        if self.warns and abs(ahead) - passed / 2 > _MOST:
            self._outage.begin(ahead)
        elif abs(ahead) + passed / 2 < _MOST:
            self._outage.end(ahead)
