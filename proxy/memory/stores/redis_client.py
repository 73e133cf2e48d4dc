"""Clients of Redis: for one server, Sentinel or Cluster."""

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

from proxy.memory.stores.redis_address import CLUSTER, SENTINEL, UNIX, Address
from proxy.memory.tasks import retrieve_exception

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
"""The codes that redis-py has taken off the message."""
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
"""Connections of redis-py's own, over which a Cluster's commands go that have to be run again."""
_CONNECT_DEADLINES: Final = 4
"""Deadlines that connecting may take: the call goes on without it, and the next one finds the connection."""


def describe_error(error: Exception) -> str:
    """One sentence about an error, which holds nothing of what was sent."""
    if not (code := _error_code(error)):
        return "Redis cannot be reached"
    return f"Redis {_DESCRIPTIONS.get(code, f'answered {code}')}"


def _error_code(error: Exception) -> str:
    """The first word of the server's error; empty where it did not answer."""
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
    """A connection for all commands, which redis-py has made and logged in: replies come in their order.

    It ends where the server answers nothing for about as many seconds as its ``patience``. ``on_lost`` is
    called when it has ended.
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
        # redis-py waits for one reply after the other. Its connection is taken over rather than made here,
        # since it knows TLS, users, Sentinels and databases.
        self._transport.set_protocol(self)

    @property
    def is_open(self) -> bool:
        """Whether commands can be sent."""
        return not self._transport.is_closing()

    def send(self, command: tuple[Any, ...]) -> asyncio.Future[Any]:
        """The reply to a command, with the server's error as its exception; waiting may end early."""
        if not self.is_open:  # it may have ended since it was made
            raise Lost(_CLOSED_BY_SERVER)
        reply = asyncio.get_running_loop().create_future()
        self._transport.write(hiredis.pack_command(command))
        self._replies.append(reply)
        if self._watch is None and self._patience < math.inf:
            self._look_again(reply)
        return reply

    async def aclose(self) -> None:
        """Closes the connection; replies that are waited for fail."""
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
        except (InvalidResponse, IndexError):  # no reply of Redis's, or one to no command
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fails the replies that are waited for."""
        self._on_lost()
        if self._watch is not None:
            self._watch.cancel()
        replies, self._replies = self._replies, deque()
        for reply in replies:
            if not reply.done():
                reply.set_exception(Lost(str(exc) if exc else _CLOSED_BY_SERVER))

    def _look_again(self, oldest: asyncio.Future[Any]) -> None:
        loop = asyncio.get_running_loop()
        self._watch = loop.call_later(self._patience, self._end_if_silent, oldest, _ROUNDS)

    def _end_if_silent(self, oldest: asyncio.Future[Any], rounds: int) -> None:
        """Ends the connection where nothing has been answered since ``oldest`` was.

        Where the event loop was late, the reply may have arrived and not been looked at: that takes rounds.
        """
        self._watch = None
        if not self._replies or not self.is_open:
            return
        if self._replies[0] is not oldest:
            self._look_again(self._replies[0])
        elif rounds:
            asyncio.get_running_loop().call_soon(self._end_if_silent, oldest, rounds - 1)
        else:
            self._transport.abort()


class SharedConnections:
    """Shared connections by the server that they go to; one that is lost is made again when it is needed."""

    def __init__(self) -> None:
        self._open: dict[str, SharedConnection] = {}
        self._connecting: dict[str, asyncio.Task[SharedConnection]] = {}

    def get(self, server: str) -> SharedConnection | None:
        """The connection to a server, if it stands."""
        shared = self._open.get(server)
        return shared if shared is not None and shared.is_open else None

    async def connected(
        self, server: str, connection: Callable[[], AbstractConnection], **options: Any
    ) -> SharedConnection:
        """The connection to a server; all that come while it is made wait for the same."""
        connecting = self._connecting.get(server)
        if connecting is None:
            connecting = asyncio.create_task(self._connect(server, connection(), options))
            self._connecting[server] = connecting
            connecting.add_done_callback(lambda done: self._on_connected(server, done))
        return await asyncio.shield(connecting)

    async def aclose(self) -> None:
        """Closes all of them."""
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
    """A server whose commands share one connection, where redis-py would take one from a pool for each.

    A turn waits half as long for its session that way. ``make`` makes connections, as a pool of redis-py's
    does: to the server of an address, or to the one that ``sentinels`` name.
    """

    redirects: tuple[type[Exception], ...] = ()
    """The errors after which a command is to be run again, since it was not carried out."""

    def __init__(self, make: Callable[[], AbstractConnection], sentinels: Sentinel | None = None) -> None:
        self.make_connection = make
        self._sentinels = sentinels
        self._shared = SharedConnections()

    def shared(self, _command: Sequence[Argument]) -> SharedConnection | None:
        """The connection for a command, if it stands."""
        return self._shared.get("")

    async def execute_command(self, *command: Argument) -> Any:
        """The reply as it came: bytes, numbers, lists and nothing."""
        shared = self._shared.get("") or await self._shared.connected("", self.make_connection)
        return await shared.send(command)

    @staticmethod
    def is_lost(error: Exception) -> bool:
        """Whether another client is to be made after an error.

        A server that has become read-only is no longer the one that the address means.
        """
        return not isinstance(error, ResponseError) or _error_code(error) == "READONLY"

    async def aclose(self) -> None:
        """Closes all connections."""
        await self._shared.aclose()
        if self._sentinels:
            await self._sentinels.aclose()


class PipelinedCluster(RedisCluster):
    """A Cluster's client whose plain commands share one connection to each node, as those of PipelinedRedis.

    What needs more than the node that has a key's slot is left to redis-py, which runs a command again at
    another node, and looks all nodes up where one is lost or silent.
    """

    redirects: tuple[type[Exception], ...] = (AskError, ClusterDownError, MovedError, TryAgainError)

    def __init__(self, *, patience: float, **options: Any) -> None:
        super().__init__(**options)
        self._shared = SharedConnections()
        self._patience = patience
        # As many as redis-py may have connections to a node: it fails where there is none left.
        self._left_to_redis = asyncio.Semaphore(_MOST_OF_A_NODE)

    def shared(self, command: Sequence[Argument]) -> SharedConnection | None:
        """The connection for a command, if it stands, and nothing has to be looked up first."""
        node = None if self._initialize else self._node(command)
        return None if node is None else self._shared.get(node.name)

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """The reply as it came: bytes, numbers, lists and nothing."""
        if self._initialize:
            await self.initialize()
        node = self._node(args)
        if node is not None:
            try:
                shared = self._shared.get(node.name) or await self._connected(node)
                return await shared.send(args)
            except self.redirects:
                pass
        async with self._left_to_redis:
            return await super().execute_command(*args, **options)

    @staticmethod
    def is_lost(error: Exception) -> bool:
        """Whether it knows no node any more; it keeps account of single nodes itself."""
        return isinstance(error, RedisClusterException) and not isinstance(error, SlotNotCoveredError)

    async def aclose(self) -> None:
        """Closes all connections."""
        await self._shared.aclose()
        await super().aclose()
        # That leaves the connections open where the client was about to look its nodes up again.
        await self.nodes_manager.aclose()
        await self.nodes_manager.aclose("startup_nodes")

    def _node(self, command: Sequence[Argument]) -> ClusterNode | None:
        """The primary of a command's key; ``None`` where that is not known."""
        position = _KEY_OF_SCRIPT if command[0] in _SCRIPTS else 1
        if len(command) <= position:
            return None
        key = command[position]
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
    """Tells a Cluster's client where a command's key stands: first, in all of ours.

    To ask a server, as redis-py does, takes longer than a deadline, and is in vain where the first node is
    the one that is dead.
    """

    async def initialize(self, node: object) -> None:
        pass

    async def get_keys(self, _command: str, *arguments: Any) -> tuple[Any, ...]:
        return arguments[:1]


class _SharedContext:
    """One TLS context for all connections: reading the machine's certificates blocks for milliseconds."""

    def __init__(self, *, context: RedisSSLContext, **options: Any) -> None:
        super().__init__(**options)
        self.ssl_context = context


class _Secured(_SharedContext, SSLConnection):
    pass


class _SecuredBySentinel(_SharedContext, SentinelManagedSSLConnection):
    pass


def client_factory(place: Address, deadline: float) -> Callable[[], RedisClient]:
    """Makes clients of an address, none of which has connected yet."""
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


def _sentinel(place: Address, deadline: float, options: dict[str, Any]) -> PipelinedRedis:
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


def _cluster(place: Address, deadline: float) -> PipelinedCluster:
    # A silent node's successor is looked for only where time-outs find it silent. Half a deadline leaves time
    # to write a session where its place in the index stands on such a node.
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


def _login(place: Address) -> dict[str, Any]:
    return {"username": place.user, "password": place.password}


def _options(deadline: float) -> dict[str, Any]:
    """No retries and no health checks; the link keeps the time.

    RESP2 has no pushes, so whatever stands in an idle connection is a reply too many, and redis-py drops it.
    """
    return {
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": None,
        "socket_connect_timeout": _CONNECT_DEADLINES * deadline,
        "health_check_interval": 0,
        "protocol": 2,
        "driver_info": None,
    }


def _tls(place: Address) -> dict[str, Any]:
    """The context under the name that connections know, or nothing."""
    if place.tls is None:
        return {}
    names: dict[str, Any] = {name.removeprefix("ssl_"): value for name, value in place.tls.items()}
    context = RedisSSLContext(cert_reqs="required", check_hostname=True, **names)
    try:
        context.get()
    except OSError:
        raise ValueError("the certificates that the address of Redis names cannot be read") from None
    return {"context": context}
