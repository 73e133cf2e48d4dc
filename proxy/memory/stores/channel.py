"""What a channel between the servers of one store does."""

import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

Receive = Callable[[float, bytes], None]
"""Is called with each message, and a time of the store's clock: of its sending, less its age."""


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
