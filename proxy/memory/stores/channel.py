"""A channel between the servers of one store, and the time by that store's clock.

The store's clock orders the writes of all hosts, and each host reads it over the channel.
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
"""A callback for each message, with the time by the store's clock when it was sent, less its age."""

REJOINING: Final = Backoff(0.05, 1.0)
"""The pauses before a lost channel is joined again."""

_EVERY, _AGAIN = 20.0, 2.0
_AT_START: Final = 1.0
_READINGS: Final = 3
_MOST: Final = 0.25


class ClockReading(NamedTuple):
    """How long a reading of the store's clock took, and how far this host's clock is ahead, in seconds."""

    passed: float
    ahead: float


async def compare_clocks(read: Callable[[], Awaitable[float]]) -> ClockReading:
    """Returns the more exact of two readings, because the first may include the time to connect."""
    readings = []
    for _ in range(2):
        asked, began = time.time(), time.monotonic()
        at = await read()
        passed = time.monotonic() - began
        readings.append(ClockReading(passed, asked + passed / 2 - at))
    return min(readings)


class Channel(Protocol):
    """Carries messages to all servers of a store, the sender included, and stores none."""

    largest: int
    """The maximum size of a message, in bytes."""

    async def publish(self, topic: str, data: bytes, *, age: float = 0.0) -> None:
        """Sends a message about an event that began ``age`` seconds ago.

        Messages on one topic arrive everywhere in the same order. Raises StoreError if the message may not
        have been sent, and ValueError if it is too large.
        """
        ...

    async def run(self, receive: Receive, joined: Callable[[], None]) -> None:
        """Receives messages until it is cancelled.

        ``joined`` is called each time that messages begin to arrive; earlier ones may be lost.
        """
        ...

    async def read_clock(self) -> ClockReading:
        """Compares this host's clock with the store's. Raises StoreError."""
        ...

    async def aclose(self) -> None:
        """Closes all connections."""
        ...


class StoreClock:
    """Keeps this process's time of day on the store's clock; ``warns`` logs a host's clock that is off."""

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
        """How many seconds this host's clock is ahead of the store's; ``None`` if unknown."""
        return min(self._readings).ahead if self._readings else None

    async def start(self) -> None:
        """Reads the store's clock; ignores failures, and gives up after a second."""
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(_AT_START):
                await self._read()

    async def run(self) -> None:
        """Reads the clock every 20 seconds until cancelled, or every 2 seconds while no reading succeeded."""
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
