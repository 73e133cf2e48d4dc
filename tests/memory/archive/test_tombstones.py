"""The digests in tombstones, and the key that makes them."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from proxy.memory.archive.archive import Archive, open_archive
from proxy.memory.archive.erasure import PURPOSE
from proxy.memory.archive.records import Fact
from proxy.memory.archive.sql import Secrets, Steps, ensure_secrets, fetch
from proxy.memory.session import Session
from proxy.memory.stores.codec import Codec, Plain
from proxy.memory.stores.encryption import Encryption
from proxy.memory.stores.sql import Statement
from proxy.memory.stores.store import Key, Owner
from tests.memory.conftest import postgresql, sqlite

pytestmark = pytest.mark.anyio

NOW = time.time()
ANN = Owner("acme", "ann")
OLD, NEW = b"o" * 32, b"n" * 32
KEYS = Statement("SELECT blob FROM turnkeeper_secrets WHERE purpose = 'tombstones' ORDER BY number")
NAMES = Statement("SELECT name, at FROM turnkeeper_tombstones ORDER BY name")
OWNERS = Statement("SELECT person FROM turnkeeper_people")
INSERT = Statement("INSERT INTO turnkeeper_tombstones (tenant, kind, name, at) VALUES (:t, :k, :n, :a)")


@pytest.fixture(params=[sqlite, postgresql])
async def url(request: pytest.FixtureRequest) -> str:
    place: Callable[[pytest.FixtureRequest], Awaitable[str]] = request.param
    return await place(request)


@asynccontextmanager
async def opened(url: str, *keys: bytes) -> AsyncIterator[Archive]:
    codec: Codec = Encryption(keys) if keys else Plain()
    archive = open_archive(url, codec=codec)
    try:
        yield archive
    finally:
        await archive.aclose()


async def rows(archive: Archive, statement: Statement, **arguments: Any) -> list[tuple[Any, ...]]:
    def work() -> Steps[Any]:
        return (yield from fetch(statement, arguments))

    return [tuple(row) for row in await archive._database.write(work)]


async def refuses(archive: Archive) -> bool:
    """Whether a fact from before the forgetting is refused."""
    await archive.add_fact(ANN, Fact(id="late", text="Likes dogs.", created=NOW - 10))
    return not await archive.facts(ANN, now=NOW)


async def test_processes_that_begin_together_have_one_key(url: str) -> None:
    async with opened(url) as one, opened(url) as other:
        await asyncio.gather(one.forget(ANN, at=NOW), other.forget(Owner("acme", "bob"), at=NOW))
        assert len(await rows(one, KEYS)) == 1
        assert await refuses(one)
        assert await refuses(other)


async def test_a_key_that_another_process_makes_behind_ones_reading_is_the_only_one(url: str) -> None:
    def late() -> Steps[Any]:
        steps = ensure_secrets(Plain(), PURPOSE)
        next(steps)
        step = steps.send([[]])  # so it was read before the other process made its key
        while True:
            try:
                step = steps.send((yield step))
            except StopIteration as end:
                return end.value

    async with opened(url) as archive:
        await archive.forget(ANN, at=NOW)
        ((key,),) = await rows(archive, KEYS)
        assert await archive._database.write(late) == Secrets((bytes(key),), (bytes(key),))
        assert len(await rows(archive, KEYS)) == 1


async def test_the_key_outlives_the_one_that_it_was_encrypted_with(url: str) -> None:
    async with opened(url) as archive:
        await archive.forget(ANN, at=NOW)
        ((plain,),) = await rows(archive, KEYS)
    for keys in ((OLD,), (NEW, OLD), (NEW,)):
        async with opened(url, *keys) as archive:
            assert await refuses(archive)
            ((blob,),) = await rows(archive, KEYS)
            assert bytes(plain) not in bytes(blob)


async def test_with_its_key_lost_another_one_is_made_and_both_hold_once_it_is_given_back(url: str) -> None:
    async with opened(url, OLD) as archive:
        await archive.forget(ANN, at=NOW)
    async with opened(url, NEW) as archive:
        assert not await refuses(archive)
        await archive.forget(Owner("acme", "bob"), at=NOW)
        assert len(await rows(archive, KEYS)) == 2
    async with opened(url, NEW, OLD) as archive:
        assert await archive.remove_fact(ANN, "late")
        assert await refuses(archive)
        told = await archive.tombstones("acme", since=NOW, until=NOW)
        assert (told.user("ann"), told.user("bob"), told.user("cid")) == (NOW, NOW, None)


async def test_names_that_older_versions_left_are_obeyed_and_give_way_to_digests(url: str) -> None:
    async with opened(url) as archive:
        for name, at in ((b"ann", NOW), (b"bob", NOW - 5), ("\udc00".encode("utf-8", "surrogatepass"), NOW)):
            await rows(archive, INSERT, t=b"acme", k=0, n=name, a=at)
        told = await archive.tombstones("acme", since=NOW - 5, until=NOW)
        assert (told.user("ann"), told.user("bob"), told.user("\udc00")) == (NOW, NOW - 5, NOW)
        assert await refuses(archive)
        await archive.forget(Owner("acme", "bob"), at=NOW)
        assert await archive.rename_tombstones() == 2
        assert await archive.rename_tombstones() == 0
        assert [(name[:1], at) for name, at in await rows(archive, NAMES)] == [(b"\xff", NOW)] * 3
        assert await refuses(archive)


async def test_a_session_without_words_brings_no_id_back(url: str) -> None:
    silent = Session(user="ann", created=NOW - 10, updated=NOW - 10)
    async with opened(url) as archive:
        await archive.forget(ANN, at=NOW)
        await archive.save_session(Key("acme", "call"), silent, as_of=NOW)
        assert await rows(archive, OWNERS) == []


async def test_an_older_name_does_not_put_a_later_forgetting_back(url: str) -> None:
    async with opened(url) as archive:
        await archive.forget(ANN, at=NOW)
        await rows(archive, INSERT, t=b"acme", k=0, n=b"ann", a=NOW - 100)
        assert await refuses(archive)
        assert await archive.rename_tombstones() == 1
        assert await refuses(archive)
