"""Readings of an SQLite archive that fail leave nothing open."""

import os
from contextlib import aclosing
from pathlib import Path

import pytest

from proxy.memory.archive.archive import open_archive
from proxy.memory.archive.sql import Steps, fetch_value
from proxy.memory.errors import StoreError
from proxy.memory.session import Entry, Session
from proxy.memory.stores.codec import Plain
from proxy.memory.stores.encryption import Encryption
from proxy.memory.stores.sql import Statement
from proxy.memory.stores.store import Key

pytestmark = pytest.mark.anyio
KEY = Key("acme", "call")
READINGS = 20


def opened(folder: Path) -> int:
    """How many of the folder's files this process has open, however often."""
    links = [link for link in Path("/proc/self/fd").iterdir() if os.path.lexists(link)]
    return sum(link.readlink().is_relative_to(folder) for link in links)


async def test_what_cannot_be_opened_with_the_keys_that_are_left(tmp_path: Path):
    url = f"sqlite:{tmp_path / 'a.db'}"
    held = Session(entries=(Entry(role="user", turn=0, content="Hi", recorded_at=9.0),), created=9.0)
    async with aclosing(open_archive(url, codec=Encryption([bytes(32)]))) as old:
        await old.save_session(KEY, held, as_of=0.0)
    async with aclosing(open_archive(url, codec=Encryption([bytes([1] * 32)]))) as new:
        await new.ping()
        # Without the key, a session has the name that is stored.
        (name,) = await new.list_sessions(KEY.tenant)
        before = opened(tmp_path)
        for _ in range(READINGS):
            with pytest.raises(StoreError):
                await new.session_turns(Key(KEY.tenant, name))
        assert opened(tmp_path) <= before + 4  # of two threads
    assert opened(tmp_path) == 0


async def test_what_the_database_refuses(tmp_path: Path):
    def nonsense() -> Steps[int]:
        return (yield from fetch_value(Statement("SELECT nonsense"), {}))

    async with aclosing(open_archive(f"sqlite:{tmp_path / 'a.db'}", codec=Plain())) as archive:
        await archive.ping()
        before = opened(tmp_path)
        for _ in range(READINGS):
            with pytest.raises(StoreError):
                await archive._database.read(nonsense)
        assert opened(tmp_path) <= before + 4
        assert await archive.session_turns(KEY) == []
    assert opened(tmp_path) == 0
