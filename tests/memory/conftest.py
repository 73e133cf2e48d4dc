"""Stores to try the contract on. A driver is one line of ``DRIVERS``."""

import asyncio
import contextlib
import importlib.util
import math
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from pathlib import Path

import pytest

from proxy.memory.stores.codec import Plain
from proxy.memory.stores.drivers import open_driver
from proxy.memory.stores.encryption import Encryption
from proxy.memory.stores.session_store import SessionStore
from proxy.memory.stores.store import Store
from tests.in_time import in_time, time_of
from tests.peers import redis_server
from tests.peers.postgres_server import PostgresServer
from tests.peers.redis_server import RedisServer

Open = Callable[[], Store]
_FAILED = pytest.StashKey[bool]()
_HANG_UP = 5.0
USE_UVLOOP = importlib.util.find_spec("uvloop") is not None


async def sqlite(request: pytest.FixtureRequest) -> str:
    return f"sqlite:{request.getfixturevalue('tmp_path') / 'memory.db'}"


async def postgresql(request: pytest.FixtureRequest) -> str:
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.url(await server.new_schema())


async def memory(request: pytest.FixtureRequest) -> str:
    return "memory:"


async def redis(request: pytest.FixtureRequest) -> str:
    server: RedisServer = request.getfixturevalue("redis_single")
    return f"{server.url}?prefix={uuid.uuid4().hex}:"


async def redis_cluster(request: pytest.FixtureRequest) -> str:
    server: RedisServer = request.getfixturevalue("redis_nodes")[0]
    return f"redis+cluster://{redis_server.LOOPBACK}:{server.port}?prefix={uuid.uuid4().hex}:"


async def redis_sentinel(request: pytest.FixtureRequest) -> str:
    sentinel: RedisServer = request.getfixturevalue("redis_service")
    return f"redis+sentinel://{redis_server.LOOPBACK}:{sentinel.port}/calls?prefix={uuid.uuid4().hex}:"


DRIVERS: dict[str, Callable[[pytest.FixtureRequest], Awaitable[str]]] = {
    "sqlite": sqlite,
    "postgresql": postgresql,
    "memory": memory,
    "redis": redis,
    "redis+sentinel": redis_sentinel,
    "redis+cluster": redis_cluster,
    "sealed": sqlite,
}
"""Each gives the address of an empty place."""
FORGETFUL = {"memory"}
SEALED = {"sealed"}
"""What is encrypted, and guarded, as it is where calls are served."""


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """The loop that serves; stores do nothing that tells one loop from another."""
    return "asyncio", {"use_uvloop": USE_UVLOOP}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[_FAILED] = item.stash.get(_FAILED, False) or report.failed
    return report


@pytest.fixture(autouse=True)
async def in_bounds(request: pytest.FixtureRequest, anyio_backend: object) -> AsyncIterator[None]:
    """No test outlives what its mark says, or a minute, nor keeps its loop open where it fails."""
    with in_time(time_of(request.node)):
        yield
    if request.node.stash.get(_FAILED, False) and "postgres" in request.fixturenames:
        # uvloop would wait for ever for connections that the test has left open.
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_HANG_UP):
                server: PostgresServer = request.getfixturevalue("postgres")
                await server.hang_up()


@pytest.fixture(scope="session")
def redis_single(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server.single(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="session")
def redis_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RedisServer]]:
    with redis_server.cluster(tmp_path_factory.mktemp("cluster")) as servers:
        yield servers


@pytest.fixture(scope="session")
def redis_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server.replicated(tmp_path_factory.mktemp("service")) as (_, _, sentinel):
        yield sentinel


# A service's address leads to the same server, by the same client as a Redis's own.
_LONG = {"redis+sentinel": pytest.mark.long}


@pytest.fixture(params=[pytest.param(name, marks=_LONG.get(name, ())) for name in DRIVERS])
def driver(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
async def reopen(request: pytest.FixtureRequest, driver: str) -> AsyncIterator[Open]:
    """Opens the same place, as often as is asked; all are closed at the end."""
    url = await DRIVERS[driver](request)
    opened: list[Store] = []

    def open_again() -> Store:
        sealed = driver in SEALED
        codec = Encryption([bytes(32)]) if sealed else Plain()
        opened.append(
            SessionStore(open_driver(url, deadline=1.0), codec, deadline=4.0 if sealed else math.inf)
        )
        return opened[-1]

    yield open_again
    for one in opened:
        await one.aclose()


@pytest.fixture
async def store(reopen: Open) -> Store:
    return reopen()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory.db"
