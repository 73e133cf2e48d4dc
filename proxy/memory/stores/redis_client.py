"""Redis clients for one server, Sentinel or Cluster."""

import asyncio
import math
import re
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, cast

import hiredis
from redis.asyncio import RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import (
    AbstractConnection,
    Connection,
    ConnectionPool,
    DefaultParser,
    RedisSSLContext,
    SSLConnection,
    UnixDomainSocketConnection,
)
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import (
    Sentinel,
    SentinelConnectionPool,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    InvalidResponse,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    ResponseError,
    SlotNotCoveredError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as Lost
from redis.exceptions import TimeoutError as TooSlow

from proxy.memory.stores.addresses import CLUSTER, SENTINEL, UNIX, RedisAddress
from proxy.memory.tasks import retrieve_exception, settle

Argument = str | bytes | int

_CODES: dict[type[Exception], str] = {
    AuthenticationError: "NOAUTH",
    BusyLoadingError: "LOADING",
    ClusterDownError: "CLUSTERDOWN",
    MovedError: "MOVED",
    NoPermissionError: "NOPERM",
    OutOfMemoryError: "OOM",
    ReadOnlyError: "READONLY",
}
"""Error codes that redis-py removes from the message."""
_DESCRIPTIONS = {
    "NOAUTH": "refuses the user or the password",
    "LOADING": "is still loading its data",
    "CLUSTERDOWN": "has lost a part of its Cluster",
    "MOVED": "is part of a Cluster, whose address begins with redis+cluster://",
    "NOPERM": "does not permit its user a command or a key that is needed",
    "OOM": "is full",
    "READONLY": "is read-only",
}
_IN_A_SCRIPT = re.compile(r"@user_script: ?\d+: -([A-Z]{2,16})\b")
"""How servers before Redis 7 report the error of a command in a script."""
_NOT_PERMITTED = "The user executing the script can't"
_SCRIPTS: Final = ("EVALSHA", "EVAL")
_KEY_OF_SCRIPT: Final = 3
_ROUNDS: Final = 4
_CLOSED_BY_SERVER: Final = "Connection closed by server."
_MOST_OF_A_NODE: Final = 32
"""The maximum of redis-py's connections to a node of a Cluster, which run redirected commands again."""
_CONNECT_DEADLINES: Final = 4
"""The time-out of connecting, in deadlines: the call fails earlier, and the next one uses the connection."""


def describe_error(error: Exception) -> str:
    """Describes an error in one sentence, without any data that was sent."""
    if not (code := _error_code(error)):
        return "Redis cannot be reached"
    return f"Redis {_DESCRIPTIONS.get(code, f'answered {code}')}"


def _error_code(error: Exception) -> str:
    """Returns the code of the server's error, its first word; empty if the server did not answer."""
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            return code
    if not isinstance(error, ResponseError):
        return ""
    if _NOT_PERMITTED in str(error):
        return "NOPERM"
    match = _IN_A_SCRIPT.search(str(error)) or re.match(r"([A-Z]{2,16})\b", str(error))
    return match[1] if match else "an error"


class SharedConnection(asyncio.Protocol):
    """One connection for all commands, opened and logged in by redis-py; replies come in order.

    It is closed after about ``patience`` seconds without any reply. ``on_lost`` is called once it is closed.
    """

    def __init__(
        self,
        connection: AbstractConnection,
        *,
        patience: float = math.inf,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._connection = connection
        self._on_lost = on_lost
        self._patience = patience
        self._watch: asyncio.TimerHandle | None = None
        self._reader = hiredis.Reader(replyError=DefaultParser.parse_error, protocolError=InvalidResponse)
        self._replies: deque[asyncio.Future[Any]] = deque()
        self._transport = cast("asyncio.StreamWriter", connection._writer).transport  # noqa: SLF001 - see below
        # redis-py waits for one reply after the other. Its connection is taken over rather than opened here,
        # because it supports TLS, users, Sentinels and databases.
        self._transport.set_protocol(self)

    @property
    def is_open(self) -> bool:
        """Whether commands can be sent."""
        return not self._transport.is_closing()

    def send(self, command: tuple[Any, ...]) -> asyncio.Future[Any]:
        """Sends a command; returns a future of the reply or the server's error, which may be cancelled."""
        if not self.is_open:  # it may have been closed since ``get``
            raise Lost(_CLOSED_BY_SERVER)
        reply = asyncio.get_running_loop().create_future()
        self._transport.write(hiredis.pack_command(command))
        self._replies.append(reply)
        if self._watch is None and self._patience < math.inf:
            self._look_again(reply)
        return reply

    async def aclose(self) -> None:
        """Closes the connection; outstanding replies fail."""
        await self._connection.disconnect(nowait=True)

    def data_received(self, data: bytes) -> None:
        """Sets the replies that are complete."""
        self._reader.feed(data)
        try:
            while (value := self._reader.gets()) is not False:
                reply = self._replies.popleft()
                if reply.done():
                    continue
                if isinstance(value, Exception):
                    reply.set_exception(value)
                else:
                    reply.set_result(value)
        except (InvalidResponse, IndexError):  # not a Redis reply, or one without a command
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fails the outstanding replies."""
        self._on_lost()
        if self._watch is not None:
            self._watch.cancel()
        replies, self._replies = self._replies, deque()
        for reply in replies:
            settle(reply, Lost(str(exc) if exc else _CLOSED_BY_SERVER))

    def _look_again(self, oldest: asyncio.Future[Any]) -> None:
        loop = asyncio.get_running_loop()
        self._watch = loop.call_later(self._patience, self._end_if_silent, oldest, _ROUNDS)

    def _end_if_silent(self, oldest: asyncio.Future[Any], rounds: int) -> None:
        """Closes the connection if ``oldest`` is still the oldest outstanding reply.

        If the event loop was blocked, the reply may have arrived and be read in one of the next rounds.
        """
        self._watch = None
        if not self._replies:
            return
        if self._replies[0] is not oldest:
            self._look_again(self._replies[0])
        elif rounds:
            asyncio.get_running_loop().call_soon(self._end_if_silent, oldest, rounds - 1)
        else:
            self._transport.abort()


class SharedConnections:
    """Shared connections by server; a lost one is opened again when it is needed."""

    def __init__(self) -> None:
        self._open: dict[str, SharedConnection] = {}
        self._connecting: dict[str, asyncio.Task[SharedConnection]] = {}

    def get(self, server: str) -> SharedConnection | None:
        """Returns the open connection to a server, or ``None``."""
        shared = self._open.get(server)
        return shared if shared is not None and shared.is_open else None

    async def connected(
        self, server: str, connection: Callable[[], AbstractConnection], **options: Any
    ) -> SharedConnection:
        """Returns a new connection to a server; concurrent callers wait for the same one."""
        connecting = self._connecting.get(server)
        if connecting is None:
            connecting = asyncio.create_task(self._connect(server, connection(), options))
            self._connecting[server] = connecting
            connecting.add_done_callback(lambda done: self._on_connected(server, done))
        return await asyncio.shield(connecting)

    async def aclose(self) -> None:
        """Closes all connections."""
        for connecting in self._connecting.values():
            connecting.cancel()
        for shared in self._open.values():
            await shared.aclose()

    async def _connect(
        self, server: str, connection: AbstractConnection, options: dict[str, Any]
    ) -> SharedConnection:
        if (former := self._open.pop(server, None)) is not None:
            await former.aclose()
        try:
            await connection.connect()  # type: ignore[no-untyped-call]
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        shared = self._open[server] = SharedConnection(connection, **options)
        return shared

    def _on_connected(self, server: str, connecting: asyncio.Task[SharedConnection]) -> None:
        del self._connecting[server]
        retrieve_exception(connecting)


class PipelinedRedis:
    """A client of one server that sends all commands over one connection, without redis-py's pool.

    This halves the time that a turn waits for its session. ``make`` creates connections like a pool of
    redis-py's: to the server of an address, or to the one that ``sentinels`` name.
    """

    redirects: tuple[type[Exception], ...] = ()
    """The errors of commands that were not executed and are to be sent again."""

    def __init__(self, make: Callable[[], AbstractConnection], sentinels: Sentinel | None = None) -> None:
        self.make_connection = make
        self._sentinels = sentinels
        self._shared = SharedConnections()

    def shared(self, _command: Sequence[Argument]) -> SharedConnection | None:
        """Returns the open connection for a command, or ``None``."""
        return self._shared.get("")

    async def execute_command(self, *command: Argument) -> Any:
        """Returns the raw reply: bytes, numbers, lists or ``None``."""
        shared = self._shared.get("") or await self._shared.connected("", self.make_connection)
        return await shared.send(command)

    @staticmethod
    def is_lost(error: Exception) -> bool:
        """Whether the client is to be replaced after an error.

        A server that has become read-only is no longer the primary.
        """
        return not isinstance(error, ResponseError) or _error_code(error) == "READONLY"

    async def aclose(self) -> None:
        """Closes all connections."""
        await self._shared.aclose()
        if self._sentinels:
            await self._sentinels.aclose()


class PipelinedCluster(RedisCluster):
    """A Cluster client that sends commands over one connection per node, like PipelinedRedis.

    redis-py does everything else: it sends redirected commands to another node, and looks all nodes up again
    if one is lost or silent.
    """

    redirects: tuple[type[Exception], ...] = (AskError, ClusterDownError, MovedError, TryAgainError)

    def __init__(self, *, patience: float, **options: Any) -> None:
        super().__init__(**options)
        self._shared = SharedConnections()
        self._patience = patience
        # The same as redis-py's maximum of connections to a node, beyond which it fails.
        self._left_to_redis = asyncio.Semaphore(_MOST_OF_A_NODE)

    def shared(self, command: Sequence[Argument]) -> SharedConnection | None:
        """Returns the open connection for a command; ``None`` without one, or before nodes are looked up."""
        node = self._node(command)
        return None if node is None else self._shared.get(node.name)

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Returns the raw reply: bytes, numbers, lists or ``None``."""
        if self._initialize:
            await self.initialize()
        if (node := self._node(args)) is not None:
            try:
                shared = self._shared.get(node.name) or await self._connected(node)
                return await shared.send(args)
            except self.redirects:
                pass
        async with self._left_to_redis:
            return await super().execute_command(*args, **options)

    @staticmethod
    def is_lost(error: Exception) -> bool:
        """Whether no node is reachable; the client replaces single nodes itself."""
        return isinstance(error, RedisClusterException) and not isinstance(error, SlotNotCoveredError)

    async def aclose(self) -> None:
        """Closes all connections."""
        await self._shared.aclose()
        await super().aclose()
        # ``super`` leaves connections open if the client was about to look its nodes up again.
        await self.nodes_manager.aclose()
        await self.nodes_manager.aclose("startup_nodes")

    def _node(self, command: Sequence[Argument]) -> ClusterNode | None:
        """Returns the primary of a command's key; ``None`` if nodes have to be looked up first."""
        if self._initialize:
            return None
        key = command[_KEY_OF_SCRIPT if command[0] in _SCRIPTS else 1]
        nodes = self.nodes_manager.slots_cache.get(
            key_slot(key.encode() if isinstance(key, str) else bytes(key))
        )
        return nodes[0] if nodes else None

    async def _connected(self, node: ClusterNode) -> SharedConnection:
        lost = partial(self._on_lost, node.name)
        options = node.connection_kwargs | {"retry": Retry(NoBackoff(), 0)}
        make = partial(node.connection_class, **options)
        try:
            return await self._shared.connected(node.name, make, patience=self._patience, on_lost=lost)
        except (Lost, TooSlow):
            lost()
            raise

    def _on_lost(self, name: str) -> None:
        self.nodes_manager.move_node_to_end_of_cached_nodes(name)
        self._initialize = True


RedisClient = PipelinedRedis | PipelinedCluster


class _KeyFirst:
    """Finds a command's key for a Cluster client: the first argument, in all commands that are used here.

    redis-py asks a server, which takes longer than a deadline, and fails if the first node is dead.
    """

    async def initialize(self, node: object) -> None:
        pass

    async def get_keys(self, _command: str, *arguments: Any) -> tuple[Any, ...]:
        return arguments[:1]


class _SharedContext:
    """Shares one TLS context among connections, because loading certificates blocks for milliseconds."""

    def __init__(self, *, context: RedisSSLContext, **options: Any) -> None:
        super().__init__(**options)
        self.ssl_context = context


class _Secured(_SharedContext, SSLConnection):
    pass


class _SecuredBySentinel(_SharedContext, SentinelManagedSSLConnection):
    pass


def client_factory(place: RedisAddress, deadline: float) -> Callable[[], RedisClient]:
    """Returns a factory of clients for an address; a new client is not connected yet."""
    if place.form == CLUSTER:
        return partial(_cluster, place, deadline)
    options: dict[str, Any] = {**_options(deadline), **_login(place), **_tls(place), "db": place.db}
    if place.form == SENTINEL:
        return partial(_sentinel, place, deadline, options)
    if place.form == UNIX:
        pool = ConnectionPool(UnixDomainSocketConnection, path=place.path, **options)
    else:
        host, port = place.nodes[0]
        kind = Connection if place.tls is None else _Secured
        pool = ConnectionPool(kind, host=host, port=port, **options)
    return partial(PipelinedRedis, pool.make_connection)


def _sentinel(place: RedisAddress, deadline: float, options: dict[str, Any]) -> PipelinedRedis:
    login = {"username": place.sentinel_user, "password": place.sentinel_password}
    secured = {} if place.tls is None else {"ssl": True, **place.tls}
    sentinels = Sentinel(  # type: ignore[no-untyped-call]
        list(place.nodes), sentinel_kwargs=_options(deadline) | {"socket_timeout": deadline} | login | secured
    )
    kind = SentinelManagedConnection if place.tls is None else _SecuredBySentinel
    pool = SentinelConnectionPool(  # type: ignore[no-untyped-call]
        place.service, sentinels, connection_class=kind, **options
    )
    return PipelinedRedis(pool.make_connection, sentinels)


def _cluster(place: RedisAddress, deadline: float) -> PipelinedCluster:
    # A silent node is replaced only after a time-out. Half a deadline leaves time to write a session whose
    # place in the index is on such a node.
    client = PipelinedCluster(
        patience=deadline / 2,
        startup_nodes=[ClusterNode(host, port) for host, port in place.nodes],
        require_full_coverage=False,
        reinitialize_steps=0,
        max_connections=_MOST_OF_A_NODE,
        ssl=place.tls is not None,
        **_options(deadline) | _login(place) | (place.tls or {}) | {"socket_timeout": deadline / 2},
    )
    client.commands_parser = _KeyFirst()  # type: ignore[assignment]
    return client


def _login(place: RedisAddress) -> dict[str, Any]:
    return {"username": place.user, "password": place.password}


def _options(deadline: float) -> dict[str, Any]:
    """Returns options without retries, health checks and read time-outs, which are the link's.

    RESP2 has no push messages, so any data on an idle connection is an unexpected reply, and redis-py closes
    the connection.
    """
    return {
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": None,
        "socket_connect_timeout": _CONNECT_DEADLINES * deadline,
        "health_check_interval": 0,
        "protocol": 2,
        "driver_info": None,
    }


def _tls(place: RedisAddress) -> dict[str, Any]:
    """Returns the TLS context as an option of connections, if there is TLS."""
    if place.tls is None:
        return {}
    names: dict[str, Any] = {name.removeprefix("ssl_"): value for name, value in place.tls.items()}
    context = RedisSSLContext(cert_reqs="required", check_hostname=True, **names)
    try:
        context.get()
    except OSError:
        raise ValueError("the certificates that the address of Redis names cannot be read") from None
    return {"context": context}
