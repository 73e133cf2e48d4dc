"""One connection for all that a Redis is asked: commands go out at once, replies come in their order."""

import asyncio
from collections import deque
from typing import Any, Final, cast

import hiredis
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection, DefaultParser
from redis.exceptions import ConnectionError as Lost
from redis.exceptions import InvalidResponse

_GONE: Final = "Connection closed by server."


class SharedConnection(asyncio.Protocol):
    """A connection that redis-py has made and logged in. A reply is its asker's, who may have left."""

    def __init__(self, connection: AbstractConnection) -> None:
        self._connection = connection
        self._reader = hiredis.Reader(replyError=DefaultParser.parse_error, protocolError=InvalidResponse)
        self._asked: deque[asyncio.Future[Any]] = deque()
        self._transport = cast("asyncio.StreamWriter", connection._writer).transport  # noqa: SLF001 - see below
        # redis-py waits for one reply after the other. Its connection is taken over rather than made here,
        # since it knows TLS, users, Sentinels and databases.
        self._transport.set_protocol(self)

    @property
    def is_open(self) -> bool:
        """Whether something may be asked."""
        return not self._transport.is_closing()

    def ask(self, *commands: tuple[Any, ...]) -> list[asyncio.Future[Any]]:
        """A reply to each, once it is there; an error of the server's is raised."""
        if not self.is_open:  # it may have ended since it was made
            raise Lost(_GONE)
        loop = asyncio.get_running_loop()
        replies = [loop.create_future() for _ in commands]
        self._transport.write(b"".join(map(hiredis.pack_command, commands)))
        self._asked.extend(replies)
        return replies

    async def aclose(self) -> None:
        """Whoever waits for a reply hears that there will be none."""
        await self._connection.disconnect(nowait=True)

    def data_received(self, data: bytes) -> None:
        """Hands out the replies that are whole."""
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not False:
                self._handed(reply)
        except (InvalidResponse, IndexError):  # no reply of Redis's, or one that nobody asked for
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """As the protocol has it."""
        asked, self._asked = self._asked, deque()
        for reply in asked:
            if not reply.done():
                reply.set_exception(Lost(str(exc) if exc else _GONE))

    def _handed(self, reply: Any) -> None:
        asker = self._asked.popleft()
        if asker.done():
            return
        if isinstance(reply, Exception):
            asker.set_exception(reply)
        else:
            asker.set_result(reply)


class Direct(Redis):
    """A client whose plain commands share one connection, where redis-py would take one from a pool for each.

    A turn waits half as long for its session that way. Pipelines, and commands whose replies are to be made
    into something, go over the pool.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._line: SharedConnection | None = None
        self._connecting: asyncio.Task[SharedConnection] | None = None

    @property
    def line(self) -> SharedConnection | None:
        """The connection, if it stands."""
        line = self._line
        return line if line is not None and line.is_open else None

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """The reply as it came: bytes, numbers, lists and nothing."""
        if options:
            return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        (answer,) = (self.line or await self._connected()).ask(args)
        return await answer

    async def answers(self, *commands: tuple[Any, ...]) -> list[Any]:
        """The replies to commands that go out together; what the server says is wrong stands among them."""
        line = self.line or await self._connected()
        return await asyncio.gather(*line.ask(*commands), return_exceptions=True)

    async def aclose(self, close_connection_pool: bool | None = None) -> None:  # noqa: FBT001 - as redis-py has it
        """Closes all connections."""
        if self._connecting is not None:
            self._connecting.cancel()
        if self._line is not None:
            await self._line.aclose()
        await super().aclose(close_connection_pool)

    async def _connected(self) -> SharedConnection:
        """The connection; whoever comes while it is made waits for the same."""
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect())
            self._connecting.add_done_callback(self._has_connected)
        return await asyncio.shield(self._connecting)

    async def _connect(self) -> SharedConnection:
        if self._line is not None:
            await self._line.aclose()
        connection = self.connection_pool.make_connection()  # type: ignore[no-untyped-call]
        try:
            await connection.connect()
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        self._line = SharedConnection(connection)
        return self._line

    def _has_connected(self, connecting: asyncio.Task[SharedConnection]) -> None:
        self._connecting = None
        if not connecting.cancelled():
            connecting.exception()  # whoever waited may have left
