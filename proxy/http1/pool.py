"""The connections of one upstream."""

import asyncio
from collections import deque

from proxy.errors import UpstreamBroken, UpstreamTimeout, UpstreamUnreachable
from proxy.http1.connection import Connection
from proxy.http1.dialer import Dialer

# An aborted transport reports its loss within a few turns of the loop.
_TURNS = 100


class Pool:
    """At most `size` answers under way, their connections kept for the next; who comes first is served first.

    A place is taken before a connection is, and whoever has a place dials only
    when no connection is idle: so there are never more connections than places.
    """

    def __init__(self, dialer: Dialer, peer: str, *, size: int, connect: float, idle: float) -> None:
        self._dialer = dialer
        self._peer = peer
        self._connect = connect
        self._idle_for = idle
        self._free = size
        self._queue: deque[asyncio.Future[None]] = deque()
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()
        self._dials: set[asyncio.Timeout] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self.closed = False
        self._closing = f"the client for {peer} was closed"

    def __len__(self) -> int:
        """How many connections are open."""
        return len(self._all)

    async def enter(self, due: float) -> None:
        """A place is taken; `leave` gives it back."""
        if self.closed:
            raise self._gone()
        if self._free:
            self._free -= 1
        else:
            await self._wait(due)

    def leave(self) -> None:
        """A place is free: the first in the queue has it."""
        while self._queue:
            place = self._queue.popleft()
            if not place.done():
                place.set_result(None)
                return
        self._free += 1

    def idle(self) -> Connection | None:
        """The connection that was used last, if one is idle and alive."""
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection = self._idle.pop()
            if connection.alive and connection.expires > now:
                return connection
            connection.drop()
        return None

    async def dial(self, due: float) -> Connection:
        """A new connection."""
        connection = Connection(self, self._peer)
        try:
            await self._dial(connection, due)
        except BaseException:
            connection.drop()
            raise
        if self.closed:
            connection.drop()
            raise self._gone()
        self._all.add(connection)
        return connection

    def keep(self, connection: Connection) -> None:
        """`connection` is idle until somebody takes it or it expires."""
        loop = asyncio.get_running_loop()
        connection.expires = loop.time() + self._idle_for
        self._idle.append(connection)
        if self._sweeper is None:
            self._sweeper = loop.call_at(connection.expires, self._sweep)

    async def warm(self, due: float) -> None:
        """A connection is open and waits for the first request."""
        await self.enter(due)
        try:
            self.keep(self.idle() or await self.dial(due))
        finally:
            self.leave()

    def lost(self, connection: Connection) -> None:
        """`connection` is no more."""
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    async def aclose(self) -> None:
        """Nothing is open, and nobody waits."""
        self.closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._turn_away()
        for connection in tuple(self._all):
            connection.fail(self._gone() if not connection.answering else UpstreamBroken(self._closing))
        for _ in range(_TURNS):
            if not self._all:
                return
            await asyncio.sleep(0)

    def _turn_away(self) -> None:
        for place in self._queue:
            if not place.done():
                place.set_exception(self._gone())
        self._queue.clear()
        for dial in self._dials:
            dial.reschedule(0)

    async def _wait(self, due: float) -> None:
        place = asyncio.get_running_loop().create_future()
        self._queue.append(place)
        try:
            async with asyncio.timeout_at(due):
                await place
        except BaseException as error:
            self._withdraw(place)
            if isinstance(error, TimeoutError):
                raise UpstreamTimeout(
                    f"all connections to {self._peer} stayed busy; raise their number"
                ) from None
            raise

    def _withdraw(self, place: "asyncio.Future[None]") -> None:
        if place in self._queue:
            self._queue.remove(place)
        elif place.done() and not place.cancelled() and place.exception() is None:
            self.leave()  # it was handed over in the same moment

    async def _dial(self, connection: Connection, due: float) -> None:
        dial = asyncio.timeout_at(min(due, asyncio.get_running_loop().time() + self._connect))
        try:
            async with dial:
                self._dials.add(dial)
                await self._dialer.dial(connection)
        except TimeoutError:
            raise self._gone() if self.closed else UpstreamTimeout(self._silent()) from None
        finally:
            self._dials.discard(dial)

    def _silent(self) -> str:
        return f"no connection to {self._peer} in time ({self._connect:g} s at most); check its address"

    def _sweep(self) -> None:
        self._sweeper = None
        loop = asyncio.get_running_loop()
        expired = [connection for connection in self._idle if connection.expires <= loop.time() + 0.001]
        del self._idle[: len(expired)]
        for connection in expired:
            connection.drop()
        if self._idle:
            self._sweeper = loop.call_at(self._idle[0].expires, self._sweep)

    def _gone(self) -> UpstreamUnreachable:
        return UpstreamUnreachable(self._closing)
