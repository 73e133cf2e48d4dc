"""The way to the model and back: what the proxy needs of a client, and the client."""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Mapping
from typing import Final, Protocol

from proxy.answer.response import Headers, Response
from proxy.errors import UpstreamBroken, UpstreamError, UpstreamTimeout, UpstreamUnreachable
from proxy.upstream.connection import Connection, HttpResponse, Stale
from proxy.upstream.dial import Dialer, Route, Trust, system_trust

_PROXY_REFUSED = 407
# An aborted transport reports its loss within a few turns of the loop.
_TURNS = 100
_EVERY: Final = 1.0
_PAUSE: Final = 30.0
_LATELY: Final = 600.0
_WAIT: Final = 10.0
_log = logging.getLogger("turnkeeper")


class Upstream(Protocol):
    """Whatever can put a request to a model."""

    async def open(self, method: str, path: str, headers: Headers, body: bytes, *, due: float) -> Response:
        """The answer to this request, its head there by `due`, which holds on until replaced."""

    async def keep_warm(self) -> None:
        """What a request needs stands before it comes, until this is cancelled; the upstream is not asked."""

    async def aclose(self) -> None:
        """Everything is closed, and whoever waits is told."""


class HttpUpstream:
    """A model behind HTTP/1.1, over connections that are kept."""

    def __init__(  # noqa: PLR0913  (each is a setting of its own)
        self,
        base_url: str,
        *,
        connect: float,
        environ: Mapping[str, str],
        max_connections: int = 1000,
        idle: float = 55.0,
        trust: Trust = system_trust,
    ) -> None:
        route = Route.of(base_url, environ, trust)
        self._peer = str(route)
        self._forwarded = route.proxy is not None and not route.tunnelled
        self._envelope = route.envelope
        self._pool = Pool(Dialer(route), self._peer, size=max_connections, connect=connect, idle=idle)
        self._warmth = Warmer(self._pool)

    async def open(self, method: str, path: str, headers: Headers, body: bytes, *, due: float) -> Response:
        """The answer to this request, its head there by `due`."""
        head, body = self._envelope.request(method, path, headers, body)
        self._warmth.wanted = True
        await self._pool.enter(due)
        answer = HttpResponse(asyncio.get_running_loop(), self._pool.leave, self._peer)
        try:
            await self._ask(answer, head, body, due)
            self._admit(answer)
        except BaseException:
            answer.close()
            raise
        return answer

    async def keep_warm(self) -> None:
        """A connection is open early, and stays so while requests come; until cancelled or closed."""
        await self._warmth.keep()

    async def aclose(self) -> None:
        """Everything is closed, and whoever waits is told."""
        await self._pool.aclose()

    async def _ask(self, answer: HttpResponse, head: bytes, body: bytes, due: float) -> None:
        connection = self._pool.idle() or await self._pool.dial(due)
        try:
            await self._put(answer, connection, head, body, due)
        except Stale:
            # The model let an idle connection go while the request was on its way: nothing was answered.
            answer.reset()
            await self._put(answer, await self._pool.dial(due), head, body, due)

    @staticmethod
    async def _put(
        answer: HttpResponse, connection: Connection, head: bytes, body: bytes, due: float
    ) -> None:
        connection.send(answer, head, body)
        answer.due(due)
        await answer.head()

    def _admit(self, answer: HttpResponse) -> None:
        if self._forwarded and answer.status == _PROXY_REFUSED:
            raise UpstreamUnreachable(
                f"407 on the way to {self._peer}: check the proxy's user name and password"
            )


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


class Warmer:
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
