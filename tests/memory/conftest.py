"""Every test runs on both event loops, and each is bounded in time."""

import asyncio
from collections.abc import AsyncIterator

import pytest

LOOPS = {"asyncio": {}, "uvloop": {"use_uvloop": True}}


@pytest.fixture(params=LOOPS)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", LOOPS[request.param]


@pytest.fixture(autouse=True)
async def bounded(anyio_backend: object) -> AsyncIterator[None]:
    """No test outlives a minute."""
    task = asyncio.current_task()
    bell = asyncio.get_running_loop().call_later(60, lambda: task and task.cancel())
    yield
    bell.cancel()
