"""The HTTP client: requests to one upstream, over connections that are pooled and opened early."""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Mapping
from typing import Final, Protocol

from proxy.answer.response import Headers, Response
from proxy.errors import CHECK_ADDRESS, UpstreamBroken, UpstreamError, UpstreamTimeout, UpstreamUnreachable
from proxy.upstream.connection import Connection, HttpResponse, StaleConnection, decoded
from proxy.upstream.dial import Route, Trust, system_trust

_PROXY_REFUSED = 407
# An aborted transport reports its loss within a few rounds of the event loop.
_TURNS = 100
_EVERY: Final = 1.0
_PAUSE: Final = 30.0
_ACTIVE: Final = 600.0
_WAIT: Final = 10.0
_log = logging.getLogger("turnkeeper")


class Upstream(Protocol):
    """The other end of requests: an HTTP server, or the practice model."""

    async def open(self, method: str, path: str, headers: Headers, body: bytes, *, due: float) -> Response:
        """Sends a request; returns its response once the head has arrived, by loop time `due`.

        `due` is the deadline of the whole response, until another one is set. Raises UpstreamError.
        """

    async def keep_warm(self) -> None:
        """Keeps a connection open, until cancelled; sends no request to the model."""

    async def aclose(self) -> None:
        """Closes all connections; requests that wait for one fail with UpstreamUnreachable."""


class HttpUpstream:
    """An upstream that speaks HTTP/1.1."""

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
        self._route = Route.of(base_url, environ, trust)
        self._last_head: tuple[str, str, Headers, bytes] = ("", "", (), b"")
        self._pool = Pool(self._route, size=max_connections, connect=connect, idle=idle)

    async def open(self, method: str, path: str, headers: Headers, body: bytes, *, due: float) -> Response:
        """Sends a request; returns its response once the head has arrived, by loop time `due`."""
        last = self._last_head
        if headers is last[2] and path == last[1] and method == last[0]:
            head = last[3]
        else:
            head = self._route.request_head(method, path, headers)
            if isinstance(headers, tuple):  # a list may change
                self._last_head = method, path, headers, head
        if body or method != "GET":
            head += b"content-length: %d\r\n" % len(body)
        head += b"\r\n"
        pool = self._pool
        pool.requested = True
        if pool.free and not pool.closed:
            pool.free -= 1
        else:
            await pool.acquire(due)
        response = HttpResponse(asyncio.get_running_loop(), pool.release)
        try:
            connection = pool.take_idle() or await pool.dial(due)
            connection.send(response, head, body)
            response.due(due)
            try:
                await response.head()
            except StaleConnection:
                # The server closed an idle connection while the request was on its way: it was not processed.
                response.reset()
                connection = await pool.dial(due)
                connection.send(response, head, body)
                response.due(due)
                await response.head()
            answer = decoded(response) if response.coding else response
        except BaseException:
            response.close()
            raise
        route = self._route
        if response.status == _PROXY_REFUSED and route.proxy is not None and not route.tunnelled:
            response.close()
            raise UpstreamUnreachable(f"407 on the way to {route}: check the proxy's user name and password")
        return answer

    async def keep_warm(self) -> None:
        """Opens a connection early, and keeps one open while requests come, until cancelled or closed."""
        await self._pool.keep_warm()

    async def aclose(self) -> None:
        """Closes all connections; requests that wait for one fail with UpstreamUnreachable."""
        await self._pool.aclose()


class Pool:
    """The connections of one upstream, for at most `size` responses at once, first come, first served.

    A request acquires a place before it takes a connection, and dials only if none is idle: there are never
    more connections than places.
    """

    def __init__(self, route: Route, *, size: int, connect: float, idle: float) -> None:
        self._route = route
        self._peer = str(route)
        self._connect = connect
        self._idle_for = idle
        self.free = size
        self._queue: deque[asyncio.Future[None]] = deque()
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()
        self._dials: set[asyncio.Timeout] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self.closed = False
        self.requested = True
        self._closing = f"the client for {route} was closed"

    def __len__(self) -> int:
        """How many connections are open."""
        return len(self._all)

    async def acquire(self, due: float) -> None:
        """Acquires a place; raises UpstreamTimeout where none is free by `due`.

        Raises UpstreamUnreachable if the pool is closed.
        """
        if self.closed:
            raise UpstreamUnreachable(self._closing)
        if self.free:
            self.free -= 1
            return
        place = asyncio.get_running_loop().create_future()
        self._queue.append(place)
        try:
            async with asyncio.timeout_at(due):
                await place
        except BaseException as error:
            if place in self._queue:
                self._queue.remove(place)
            elif place.done() and not place.cancelled() and place.exception() is None:
                self.release()  # it was assigned at the same moment
            if isinstance(error, TimeoutError):
                raise UpstreamTimeout(
                    f"all connections to {self._peer} stayed busy; raise their number"
                ) from None
            raise

    def release(self) -> None:
        """Releases a place, to the first request in the queue if there is one."""
        while self._queue:
            place = self._queue.popleft()
            if not place.done():
                place.set_result(None)
                return
        self.free += 1

    def take_idle(self) -> Connection | None:
        """Takes the idle connection that was used last; ``None`` if none is open."""
        return self._idle.pop() if self._idle else None

    async def dial(self, due: float) -> Connection:
        """Opens a connection; raises UpstreamUnreachable, or UpstreamTimeout after `connect` seconds."""
        connection = Connection(self._peer, on_idle=self._keep, on_lost=self._forget)
        dial = asyncio.timeout_at(min(due, asyncio.get_running_loop().time() + self._connect))
        try:
            async with dial:
                self._dials.add(dial)
                await self._route.dial(connection)
        except BaseException as error:
            connection.drop()
            if not isinstance(error, TimeoutError):
                raise
            if self.closed:
                raise UpstreamUnreachable(self._closing) from None
            raise UpstreamTimeout(
                f"no connection to {self._peer} in time ({self._connect:g} s at most){CHECK_ADDRESS}"
            ) from None
        finally:
            self._dials.discard(dial)
        if self.closed:
            connection.drop()
            raise UpstreamUnreachable(self._closing)
        self._all.add(connection)
        return connection

    async def _warm(self, due: float) -> None:
        """Opens an idle connection. Raises UpstreamError."""
        await self.acquire(due)
        try:
            connection = await self.dial(due)
        except BaseException:
            self.release()
            raise
        self._keep(connection)

    async def keep_warm(
        self, *, every: float = _EVERY, pause: float = _PAUSE, active: float = _ACTIVE
    ) -> None:
        """Keeps a connection open, until cancelled or closed: a handshake is the slowest part of a request.

        A connection is opened at once, and again when none is left, at most every ``pause`` seconds, until
        ``active`` seconds after the last request. Each request sets ``requested``. After a failure no
        connection is opened before the next request.
        """
        now = asyncio.get_running_loop().time
        until = rested = -math.inf
        while not self.closed:
            if self.requested:
                self.requested, until = False, now() + active
            if not self._all and rested <= now() < until:
                rested = now() + pause
                try:
                    await self._warm(now() + _WAIT)
                except UpstreamError as error:
                    _log.debug("No connection was opened early: %s", error.message)
                    until = -math.inf
            await asyncio.sleep(every)

    async def aclose(self) -> None:
        """Closes all connections; requests that wait for one fail with UpstreamUnreachable."""
        self.closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for place in self._queue:
            if not place.done():
                place.set_exception(UpstreamUnreachable(self._closing))
        self._queue.clear()
        for dial in self._dials:
            dial.reschedule(0)
        for connection in tuple(self._all):
            kind = UpstreamBroken if connection.answering else UpstreamUnreachable
            connection.fail(kind(self._closing))
        for _ in range(_TURNS):
            if not self._all:
                return
            await asyncio.sleep(0)

    def _keep(self, connection: Connection) -> None:
        """Keeps an idle connection until it is taken or expires, and releases its place."""
        loop = asyncio.get_running_loop()
        connection.expires = loop.time() + self._idle_for
        self._idle.append(connection)
        if self._sweeper is None:
            self._sweeper = loop.call_at(connection.expires, self._sweep)
        if self._queue:
            self.release()
        else:
            self.free += 1

    def _forget(self, connection: Connection) -> None:
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def _sweep(self) -> None:
        self._sweeper = None
        loop = asyncio.get_running_loop()
        expired = [connection for connection in self._idle if connection.expires <= loop.time() + 0.001]
        del self._idle[: len(expired)]
        for connection in expired:
            connection.drop()
        if self._idle:
            self._sweeper = loop.call_at(self._idle[0].expires, self._sweep)
