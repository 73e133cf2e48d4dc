"""Clients of Redis, in all its forms."""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import (
    Connection,
    ConnectionPool,
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

from proxy.memory.redis.address import CLUSTER, SENTINEL, UNIX, Address
from proxy.memory.redis.fault import is_lost, is_nowhere
from proxy.memory.redis.line import Direct
from proxy.memory.redis.scripts import Client

MOST_CONNECTIONS = 32
_PATIENCE = 4
"""Deadlines that connecting may take. The caller has gone on by then; the next one finds the connection."""


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
