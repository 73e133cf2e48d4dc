"""A name that cannot even be looked up is an upstream that cannot be reached, and nothing worse."""

import asyncio
import logging
import resource
from typing import Any

import pytest

from proxy.errors import TooManyOpenFiles, UpstreamUnreachable
from proxy.upstream.client import Pool
from proxy.upstream.dial import Origin, Route
from tests.contract_upstream import now

pytestmark = pytest.mark.anyio
NAMES = ["a..b", f"{'x' * 64}.example"]


def pool_to(route: Route) -> Pool:
    return Pool(route, size=2, connect=2, idle=5)


@pytest.mark.parametrize("name", NAMES)
async def test_whoever_dials_is_told_that_it_cannot_be_reached(name: str) -> None:
    pool = pool_to(Route(Origin("http", name, 80, ""), None, None))
    with pytest.raises(UpstreamUnreachable, match="check its address"):
        await pool.dial(now() + 2)
    assert not len(pool)


async def test_a_server_without_files_left_is_told_so() -> None:
    pool = pool_to(Route(Origin("http", "127.0.0.1", 9, ""), None, None))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        with pytest.raises(TooManyOpenFiles, match="ulimit -n"):
            await pool.dial(now() + 2)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


async def test_who_keeps_connections_warm_lives_on(caplog: Any) -> None:
    pool = pool_to(Route(Origin("http", "a..b", 80, ""), None, None))
    with caplog.at_level(logging.DEBUG, logger="turnkeeper"):
        keeping = asyncio.get_running_loop().create_task(pool.keep_warm(every=0.01))
        await asyncio.sleep(0.1)
        assert not keeping.done()
        assert [record.levelname for record in caplog.records] == ["DEBUG"]
        await pool.aclose()
        await asyncio.wait_for(keeping, 2)
