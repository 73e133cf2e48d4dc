"""Every test runs on both event loops, and each is bounded in time."""

from collections.abc import AsyncIterator
from ssl import SSLContext
from typing import Any

import pytest

from proxy.upstream.client import Upstream
from tests.contract_upstream import DRIVERS, Make
from tests.in_time import in_time, time_of

LOOPS = {"asyncio": {}, "uvloop": {"use_uvloop": True}}


@pytest.fixture(params=LOOPS)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", LOOPS[request.param]


@pytest.fixture(autouse=True)
async def bounded(request: pytest.FixtureRequest, anyio_backend: object) -> AsyncIterator[None]:
    """No test outlives what its mark says, or a minute."""
    with in_time(time_of(request.node)):
        yield


@pytest.fixture(params=DRIVERS, ids=lambda driver: driver.__name__)
async def client(request: pytest.FixtureRequest) -> AsyncIterator[Make]:
    """Make a client of the driver under test; all are closed at the end."""
    made: list[Upstream] = []

    def make(url: str, context: SSLContext | None = None, **options: Any) -> Upstream:
        if context:
            options["trust"] = lambda: context
        made.append(request.param(url, **({"connect": 2.0, "environ": {}} | options)))
        return made[-1]

    yield make
    for one in made:
        await one.aclose()
