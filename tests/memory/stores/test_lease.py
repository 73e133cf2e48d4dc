"""Leases and summaries on every store that there is."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager

import msgspec
import pytest

from proxy.memory.compaction import SessionLimits
from proxy.memory.session import Entry, Session, decode, encode
from proxy.memory.stores.lease import lease
from proxy.memory.stores.store import BlobWrite, Key, Store
from proxy.memory.summaries import Summaries
from tests.memory.conftest import FORGETFUL, Open

pytestmark = pytest.mark.anyio
KEY = Key("default", "s1")
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody knows who has died")


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
        if "_renew" in repr(task):
            task.cancel()
    await asyncio.sleep(1.3)
    async with lease(store, "work", KEY) as again:
        assert again


async def test_who_lost_a_lease_does_not_give_back_anothers(reopen: Open) -> None:
    store = reopen()
    lost = lease(store, "work", KEY, ttl=1.0)
    assert await lost.__aenter__()
    for task in asyncio.all_tasks():
        if "_renew" in repr(task):
            task.cancel()
    await asyncio.sleep(1.3)
    async with lease(store, "work", KEY) as theirs:
        await lost.__aexit__(None, None, None)
        async with lease(store, "work", KEY) as third:
            assert (theirs, third) == (True, False)


class Renewing:
    """A store that has only leases, and notes each time that one is taken or renewed."""

    def __init__(self) -> None:
        self.tokens: list[bytes] = []

    async def acquire(self, name: str, token: bytes, *, ttl: float, former: bytes = b"") -> bytes | None:
        self.tokens.append(token)
        return None

    async def release(self, name: str, token: bytes) -> None:
        """Whatever it was."""


async def test_a_lease_is_renewed_for_as_long_as_it_is_held() -> None:
    store = Renewing()
    async with lease(store, "work", KEY, ttl=0.04), asyncio.timeout(30):  # type: ignore[arg-type]
        while len(store.tokens) < 3:  # noqa: ASYNC110 - nobody rings a bell
            await asyncio.sleep(0.01)
    assert len({*store.tokens}) == 1


@contextlib.contextmanager
def held_by(
    pid: int, store: Store, monkeypatch: pytest.MonkeyPatch
) -> Iterator[AbstractAsyncContextManager[bool]]:
    """A lease as the process of that number holds it."""
    with monkeypatch.context() as patch:
        patch.setattr("proxy.memory.stores.lease.os.getpid", lambda: pid)
        yield lease(store, "work", KEY)


async def taken_from(pid: int, store: Store, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether we have at once what the process of that number had."""
    with held_by(pid, store, monkeypatch) as held:
        assert await held.__aenter__()
    async with lease(store, "work", KEY) as ours:
        await held.__aexit__(None, None, None)
        async with lease(store, "work", KEY) as third:
            assert not third
        return ours


@on_linux
async def test_who_has_died_holds_nothing(reopen: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    assert await taken_from(process.pid, reopen(), monkeypatch)


async def test_who_lives_beside_us_holds_what_is_his(reopen: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        store = reopen()
        with held_by(process.pid, store, monkeypatch) as held:
            assert await held.__aenter__()
        async with lease(store, "work", KEY) as ours:
            assert not ours
        await held.__aexit__(None, None, None)


@pytest.mark.parametrize("machines", [("elsewhere", "here"), ("", "")])
async def test_nobody_knows_who_lives_on_another_machine(
    reopen: Open, monkeypatch: pytest.MonkeyPatch, machines: tuple[str, str]
) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    store = reopen()
    with monkeypatch.context() as elsewhere, held_by(process.pid, store, monkeypatch) as held:
        elsewhere.setattr("proxy.memory.stores.lease.machine_id", lambda: machines[0])
        assert await held.__aenter__()
    monkeypatch.setattr("proxy.memory.stores.lease.machine_id", lambda: machines[1])
    async with lease(store, "work", KEY) as ours:
        assert not ours
    await held.__aexit__(None, None, None)


async def test_turns_are_summarised_cleared_and_held_ready_again(store: Store) -> None:
    told = tuple(Entry(role="user", turn=n, content=f"Word {n} of a call.") for n in range(30))
    await store.write(KEY, BlobWrite(encode(Session(entries=told)), version=0, ttl=60))
    summaries = Summaries(store, SessionLimits(max_messages=10, keep_messages=4, summaries=3))
    assert await summaries.run(KEY, 0)
    assert not await summaries.run(KEY, 0)
    held = await store.read(KEY)
    assert held
    session = decode(held.blob)
    assert session.summarized_until == (0, 25)
    cold = [msgspec.msgpack.decode(entry, type=Entry) for entry in await store.cold(KEY)]
    assert (*cold, *session.entries) == told
    assert await summaries.get_context_string(KEY)
    await summaries.clear(KEY)
    held = await store.read(KEY)
    assert held
    assert decode(held.blob).entries == told
    assert await store.cold(KEY) == []
