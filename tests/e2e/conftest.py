"""Places for memory, by kind."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.peers.postgres_server import PostgresServer
from tests.peers.redis_server import RedisServer

Address = Callable[[str], str]


@pytest.fixture
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Address]:
    """Gives the address of an empty store of a kind; what has to be started for it ends with the test."""

    def postgresql() -> str:
        server: PostgresServer = request.getfixturevalue("postgres")
        return server.url(asyncio.run(server.new_schema()))

    with ExitStack() as started:
        kinds: dict[str, Callable[[], str]] = {
            "sqlite": lambda: f"sqlite:{tmp_path / 'sessions.db'}",
            "memory": lambda: "memory:",
            "redis": lambda: started.enter_context(closing(RedisServer(tmp_path))).url,
            "postgresql": postgresql,
        }
        yield lambda kind: kinds[kind]()
