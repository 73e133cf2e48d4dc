"""Where a Redis is, and how it is reached."""

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, NoReturn, cast
from urllib.parse import parse_qsl, unquote

import hiredis
from redis.asyncio import Redis, RedisCluster
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
from redis.exceptions import (
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
)
from redis.exceptions import ConnectionError as Lost

from proxy.hostname import ADVICE, is_host_name

Node = tuple[str, int]
SINGLE, UNIX, SENTINEL, CLUSTER = "single", "unix", "sentinel", "cluster"
_TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_NODE = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+)(?::([0-9]{1,5}))?")
_CODES: dict[type[Exception], str] = {
    AuthenticationError: "NOAUTH",
    BusyLoadingError: "LOADING",
    ClusterDownError: "CLUSTERDOWN",
    MovedError: "MOVED",
    NoPermissionError: "NOPERM",
    OutOfMemoryError: "OOM",
    ReadOnlyError: "READONLY",
}
"""What the client's library has taken off the message."""
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
"""How servers before Redis 7 tell of an error that a script's command met."""
_NOT_PERMITTED = "The user executing the script can't"
_GONE: Final = "Connection closed by server."
Client = Redis | RedisCluster
Argument = str | bytes | int
MOST_CONNECTIONS = 32
_PATIENCE = 4
"""Deadlines that connecting may take. The caller has gone on by then; the next one finds the connection."""


_FORMS = {"": SINGLE, "unix": UNIX, "sentinel": SENTINEL, "cluster": CLUSTER}


_PORTS = {SENTINEL: 26379}


@dataclass(frozen=True, kw_only=True)
class Address:
    """An address, taken apart. ``nodes`` are the Sentinels for Sentinel, and any nodes for Cluster."""

    form: str
    nodes: tuple[Node, ...] = ()
    path: str = ""
    service: str = ""
    db: int = 0
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    sentinel_user: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)
    tls: dict[str, str] | None = None
    prefix: str = "turnkeeper:"

    @classmethod
    def of(cls, written: str) -> "Address":
        """The parts of ``redis://``, ``rediss://``, ``redis+sentinel://``, ``redis+cluster://``, ``redis+unix://``.

        Raises ValueError, which never shows what was written: it may hold a password.
        """
        scheme, _, rest = written.partition("://")
        rest, _, query = rest.partition("?")
        secured, form = _scheme(scheme)
        place, _, path = rest.partition("/")
        credentials, _, hosts = place.rpartition("@")
        user, _, password = credentials.partition(":")
        found = cls(
            form=form,
            nodes=_nodes(hosts, form),
            user=unquote(user) or None,
            password=unquote(password) or None,
            tls={} if secured else None,
        )
        return _with_options(_with_path(found, unquote(path)), query)


def _scheme(scheme: str) -> tuple[bool, str]:
    name, _, form = scheme.lower().partition("+")
    if name not in {"redis", "rediss"} or form not in _FORMS or (name, form) == ("rediss", "unix"):
        _refuse("it begins with redis:// or rediss://, with +sentinel, +cluster or +unix before the colon")
    return name == "rediss", _FORMS[form]


def _nodes(hosts: str, form: str) -> tuple[Node, ...]:
    if form == UNIX:
        return (
            () if not hosts else _refuse("a socket's path has three slashes before it: redis+unix:///run/…")
        )
    nodes = tuple(_node(host, _PORTS.get(form, 6379)) for host in hosts.split(","))
    if form == SINGLE and len(nodes) > 1:
        _refuse("several hosts are for redis+sentinel:// and redis+cluster://")
    return nodes


def _node(written: str, port: int) -> Node:
    found = _NODE.fullmatch(written)
    if not found or not 0 < int(found[2] or port) < 65536:  # noqa: PLR2004  (the highest port)
        _refuse("hosts are written host:port, with a comma between two")
    name = found[1].strip("[]")
    return (name if is_host_name(name) else _refuse(ADVICE)), int(found[2] or port)


def _with_path(found: Address, path: str) -> Address:
    if found.form == UNIX:
        return replace(found, path="/" + path) if path else _refuse("the socket's path is missing")
    if found.form == SENTINEL:
        service, _, path = path.partition("/")
        found = replace(
            found, service=service or _refuse("the name of the service comes after the Sentinels")
        )
    return replace(found, db=_db(found.form, path))


def _db(form: str, written: str) -> int:
    if not re.fullmatch(r"[0-9]{0,5}", written):
        _refuse("the database is a number")
    db = int(written or 0)
    return db if form != CLUSTER or not db else _refuse("a Cluster has no database but 0")


def _with_options(found: Address, query: str) -> Address:
    options = dict(parse_qsl(query, keep_blank_values=True))
    tls = {name: options.pop(name) for name in _TLS_OPTIONS if name in options}
    if tls and found.tls is None:
        _refuse("the ssl_ options are for rediss://")
    prefix = options.pop("prefix", found.prefix)
    if re.search(r"[{}\s]", prefix):
        _refuse("a prefix has no braces, which would choose the slot, and no spaces")
    found = replace(found, prefix=prefix, tls=None if found.tls is None else tls)
    return replace(found, **_rest(found.form, options))


def _rest(form: str, options: dict[str, str]) -> dict[str, Any]:
    allowed = {SENTINEL: {"sentinel_user", "sentinel_password"}, UNIX: {"db"}}.get(form, set())
    if not options.keys() <= allowed:
        _refuse(f"its options are {', '.join(['prefix', *_TLS_OPTIONS, *sorted(allowed)])}")
    return {name: _db(form, value) if name == "db" else value for name, value in options.items()}


def _refuse(why: str) -> NoReturn:
    raise ValueError(f"the address of Redis cannot be understood: {why}")


def describe(fault: Exception) -> str:
    """One sentence about a fault."""
    if not (code := _error_code(fault)):
        return "Redis cannot be reached"
    return f"Redis {_DESCRIPTIONS.get(code, f'answered {code}')}"


def is_lost(fault: Exception) -> bool:
    """Whether connections that were made before this fault should not be asked again.

    A server that has become read-only is no longer the one that the address means.
    """
    return not isinstance(fault, ResponseError) or _error_code(fault) == "READONLY"


def is_nowhere(fault: Exception) -> bool:
    """Whether no node that a Cluster's client knows of is left; of single nodes it keeps account itself."""
    return isinstance(fault, RedisClusterException) and not isinstance(fault, SlotNotCoveredError)


def _error_code(fault: Exception) -> str:
    """The first word of what the server answered; nothing where it did not answer."""
    for kind, code in _CODES.items():
        if isinstance(fault, kind):
            return code
    if not isinstance(fault, ResponseError):
        return ""
    if _NOT_PERMITTED in str(fault):
        return "NOPERM"
    found = _IN_A_SCRIPT.search(str(fault)) or re.match(r"([A-Z]{2,16})\b", str(fault))
    return found[1] if found else "an error"


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


class Made(NamedTuple):
    """A client, what closes it with all that it holds, and after which faults another one is to be made."""

    client: Client
    close: Callable[[], Awaitable[None]]
    is_lost: Callable[[Exception], bool] = is_lost


class _FirstIsKey:
    """Where a command's key stands, for a Cluster's client.

    It stands first in all of ours. To ask a server, as redis-py does, takes longer than a deadline, and is
    in vain where the first node of all is the one that is dead.
    """

    async def initialize(self, node: object) -> None:
        pass

    async def get_keys(self, _command: str, *arguments: Any) -> tuple[Any, ...]:
        return arguments[:1]


class _Shared:
    """One TLS context for all connections: reading the machine's certificates blocks for milliseconds."""

    def __init__(self, *, context: RedisSSLContext, **options: Any) -> None:
        super().__init__(**options)
        self.ssl_context = context


class _Secured(_Shared, SSLConnection):
    pass


class _SecuredBySentinel(_Shared, SentinelManagedSSLConnection):
    pass


def clients(place: Address, deadline: float, kind: type[Redis] = Direct) -> Callable[[], Made]:
    """Makes clients of this place, none of which has connected yet; a Cluster has a kind of its own."""
    if place.form == CLUSTER:
        return lambda: _cluster(place, deadline)
    tls = _tls(place)
    if place.form == SENTINEL:
        return lambda: _sentinel(place, deadline, tls, kind)
    return lambda: _single(place, deadline, tls, kind)


def _single(place: Address, deadline: float, tls: dict[str, Any], kind: type[Redis]) -> Made:
    options: dict[str, Any] = {**_options(deadline), **_login(place), **tls, "db": place.db}
    if place.form == UNIX:
        pool = ConnectionPool(UnixDomainSocketConnection, path=place.path, **options)
    else:
        host, port = place.nodes[0]
        pool = ConnectionPool(_Secured if tls else Connection, host=host, port=port, **options)
    client = kind.from_pool(pool)
    return Made(client, client.aclose)


def _sentinel(place: Address, deadline: float, tls: dict[str, Any], kind: type[Redis]) -> Made:
    asked = _options(deadline) | {"socket_timeout": deadline}
    login = {"username": place.sentinel_user, "password": place.sentinel_password}
    secured = {"ssl": True, **(place.tls or {})} if tls else {}
    sentinels = Sentinel(  # type: ignore[no-untyped-call]
        list(place.nodes), sentinel_kwargs={**asked, **login, **secured}
    )
    pool = SentinelConnectionPool(  # type: ignore[no-untyped-call]
        place.service,
        sentinels,
        connection_class=_SecuredBySentinel if tls else SentinelManagedConnection,
        db=place.db,
        **_options(deadline),
        **_login(place),
        **tls,
    )
    client = kind.from_pool(pool)

    async def close() -> None:
        await client.aclose()
        await sentinels.aclose()

    return Made(client, close)


def _cluster(place: Address, deadline: float) -> Made:
    # redis-py looks for a silent node's successor only where its own time-outs find it silent. Half a
    # deadline leaves time to write a session where its tenant's list stands on such a node.
    options: dict[str, Any] = {**_options(deadline), **_login(place), **(place.tls or {})}
    client = RedisCluster(
        startup_nodes=[ClusterNode(host, port) for host, port in place.nodes],
        require_full_coverage=False,
        reinitialize_steps=0,
        ssl=place.tls is not None,
        **options | {"socket_timeout": deadline / 2},
    )
    client.commands_parser = _FirstIsKey()  # type: ignore[assignment]

    async def close() -> None:
        await client.aclose()
        # That leaves the connections open where the client was about to look its nodes up again.
        await client.nodes_manager.aclose()
        await client.nodes_manager.aclose("startup_nodes")

    return Made(client, close, is_nowhere)


def _login(place: Address) -> dict[str, Any]:
    return {"username": place.user, "password": place.password}


def _options(deadline: float) -> dict[str, Any]:
    """No retries, no checks of health; time is kept by whoever asks.

    RESP2 has no pushes, so whatever stands in an idle connection is a reply too many, and redis-py drops it.
    """
    return {
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": None,
        "socket_connect_timeout": _PATIENCE * deadline,
        "health_check_interval": 0,
        "max_connections": MOST_CONNECTIONS,
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
