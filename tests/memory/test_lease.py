"""Leases and summaries on every store that there is."""

import asyncio

import msgspec
import pytest

from proxy.memory.lease import lease
from proxy.memory.session.session import Entry, Session, decode, encode
from proxy.memory.store import Key, Store
from proxy.memory.summaries.plan import Window
from proxy.memory.summaries.summaries import Summaries
from tests.memory.conftest import FORGETFUL, Open

pytestmark = pytest.mark.anyio
KEY = Key("default", "s1")


async def test_a_lease_is_one_processes_and_is_given_back(reopen: Open, driver: str) -> None:
    one = reopen()
    other = one if driver in FORGETFUL else reopen()
    apart = Key("default", "s2")
    for _ in range(2):
        async with (
            lease(one, "work", KEY) as mine,
            lease(other, "work", KEY) as theirs,
            lease(other, "work", apart) as another,
        ):
            assert (mine, theirs, another) == (True, False, True)
    assert await one.list("default") == []


async def test_a_lease_that_nobody_renews_ends(reopen: Open) -> None:
    store = reopen()
    held = lease(store, "work", KEY, ttl=1.0)
    assert await held.__aenter__()
    for task in asyncio.all_tasks():
        if "_renewed" in repr(task):
            task.cancel()
    await asyncio.sleep(1.3)
    async with lease(store, "work", KEY) as again:
        assert again


async def test_who_lost_a_lease_does_not_give_back_anothers(reopen: Open) -> None:
    store = reopen()
    lost = lease(store, "work", KEY, ttl=1.0)
    assert await lost.__aenter__()
    for task in asyncio.all_tasks():
        if "_renewed" in repr(task):
            task.cancel()
    await asyncio.sleep(1.3)
    async with lease(store, "work", KEY) as theirs:
        await lost.__aexit__(None, None, None)
        async with lease(store, "work", KEY) as third:
            assert (theirs, third) == (True, False)


async def test_turns_are_summarised_cleared_and_held_ready_again(store: Store) -> None:
    told = tuple(Entry(role="user", turn=n, content=f"Word {n} of a call.") for n in range(30))
    await store.write(KEY, encode(Session(entries=told)), version=0, ttl=60)
    summaries = Summaries(store, Window(max_messages=10, keep_messages=4, summaries=3))
    assert await summaries.do(KEY, 0)
    assert not await summaries.do(KEY, 0)
    held = await store.read(KEY)
    assert held
    session = decode(held.blob)
    assert session.reach == (0, 25)
    cold = [msgspec.msgpack.decode(entry, type=Entry) for entry in await store.cold(KEY)]
    assert (*cold, *session.entries) == told
    assert await summaries.get_context_string(KEY)
    await summaries.clear(KEY)
    held = await store.read(KEY)
    assert held
    assert decode(held.blob).entries == told
    assert await store.cold(KEY) == []
