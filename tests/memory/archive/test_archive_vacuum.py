"""PostgreSQL's tables are vacuumed, however large they are."""

import asyncio

import asyncpg
import pytest

from proxy.memory.archive.archive import Archive, open_archive
from proxy.memory.errors import StoreError
from proxy.memory.stores.codec import Plain
from proxy.memory.stores.store import Owner
from tests.peers.postgres_server import PostgresServer

pytestmark = pytest.mark.anyio
TIMEOUT = 0.5
LOCK = "LOCK TABLE turnkeeper_turns IN SHARE UPDATE EXCLUSIVE MODE"
"""Holds up a VACUUM, and nothing else."""


async def ready(archive: Archive) -> None:
    for _ in range(50):
        try:
            return await archive.ping()
        except StoreError:
            await asyncio.sleep(0.1)
    return await archive.ping()


async def test_a_vacuum_is_waited_for_longer_than_any_other_command_and_keeps_none_waiting(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("proxy.memory.archive.postgres._TIMEOUT", TIMEOUT)
    url = postgres.url(await postgres.new_schema())
    archive = open_archive(url, codec=Plain())
    await ready(archive)
    other = await asyncpg.connect(url)
    try:
        async with other.transaction():
            await other.execute(LOCK)
            scrubbing = [asyncio.create_task(archive.scrub()) for _ in range(6)]
            done, _ = await asyncio.wait(scrubbing, timeout=3 * TIMEOUT)
            assert not done
            assert await archive.turns(Owner("acme", "ann")) == []
        await asyncio.gather(*scrubbing)
    finally:
        await other.close()
        await archive.aclose()
