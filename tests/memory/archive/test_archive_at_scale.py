"""The cost of a start does not grow with the archive; processes that start together share the work."""

import asyncio
import time
import tracemalloc
from collections.abc import AsyncIterator

import pytest

from proxy.memory.archive import archivist as archivist_
from proxy.memory.archive.archive import Archive, open_archive
from proxy.memory.archive.archivist import Archivist
from proxy.memory.archive.sql import fetch
from proxy.memory.session import Entry, Session, encode
from proxy.memory.stores.codec import Plain
from proxy.memory.stores.drivers import open_store
from proxy.memory.stores.session_store import SessionStore
from proxy.memory.stores.sql import Statement
from proxy.memory.stores.store import BlobWrite, Key, ListedSession, Owner, Store
from tests.peers.postgres_server import PostgresServer

pytestmark = pytest.mark.anyio
KEY = Key("acme", "0-call")
SERIES = {
    "sqlite": "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < :count)"
    " INSERT INTO turnkeeper_talks (tenant, session, created, mark, updated)"
    " SELECT :tenant, CAST('1-' || n AS BLOB), n, n, n FROM s",
    "postgresql": "INSERT INTO turnkeeper_talks (tenant, session, created, mark, updated)"
    " SELECT :tenant, CAST('1-' || n AS bytea), n, n, n FROM generate_series(1, :count::bigint) n",
}


@pytest.fixture(params=SERIES)
async def archive(request: pytest.FixtureRequest) -> AsyncIterator[Archive]:
    if request.param == "sqlite":
        url = f"sqlite:{request.getfixturevalue('tmp_path') / 'a.db'}"
    else:
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.url(await server.new_schema())
    opened = open_archive(url, codec=Plain())
    await opened.ping()
    yield opened
    await opened.aclose()


@pytest.fixture
def store() -> SessionStore:
    return open_store("memory:", deadline=1, codec=Plain())


async def fill(archive: Archive, scheme: str, count: int) -> None:
    """As many talks as sessions that have expired long ago have left."""
    step = 50_000  # no statement takes longer than it may
    sql = SERIES[scheme].replace("(1, ", "(:first::bigint, ").replace("SELECT 1 UNION", "SELECT :first UNION")
    for first in range(1, count + 1, step):
        arguments = {"tenant": b"acme", "first": first, "count": min(count, first + step - 1)}
        await archive._database.write(lambda arguments=arguments: fetch(Statement(sql), arguments))


async def start_cost(store: Store, archive: Archive) -> tuple[float, int, float]:
    """Of a start and its comparison: seconds, the most memory, and for how long the loop stood still."""
    worst = 0.0

    async def watch() -> None:
        nonlocal worst
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.001)
            worst = max(worst, time.monotonic() - before)

    watching = asyncio.create_task(watch())
    tracemalloc.start()
    began = time.monotonic()
    archivist = Archivist(store, archive, ["acme"], keep=0, quiet=0)
    try:
        archivist.start()
        await archivist.idle()
        seconds = time.monotonic() - began
        return seconds, tracemalloc.get_traced_memory()[1], worst
    finally:
        tracemalloc.stop()
        watching.cancel()
        await archivist.aclose()


@pytest.mark.parametrize("count", [20_000, pytest.param(1_000_000, marks=pytest.mark.long)])
@pytest.mark.timeout(900)
async def test_a_start_costs_as_much_with_many_archived_sessions_as_with_none(
    store: SessionStore, archive: Archive, request: pytest.FixtureRequest, count: int
):
    said = (Entry(role="user", turn=0, content="a", recorded_at=time.time()),)
    session = Session(entries=said, user="ann", created=5.0)
    await store.write(KEY, BlobWrite(encode(session), version=0, ttl=600))
    alone = await start_cost(store, archive)
    await fill(archive, request.node.callspec.params["archive"], count)
    among_many = await start_cost(store, archive)
    assert among_many[0] < alone[0] + 2, f"{count} archived: {among_many}, none: {alone}"
    assert among_many[1] < alone[1] + 500_000  # no more than noise; all ids would be 100 bytes each
    assert [turn.entry.text for turn in await archive.session_turns(KEY)] == ["a"]
    began = time.monotonic()
    assert await archive.sweep(before=time.time() - 100) == 0
    assert (await archive.forget(Owner("acme", "ann"), at=time.time())).turns == 1
    assert time.monotonic() - began < 0.5
    assert len(await archive.list_sessions("acme", limit=5)) == 5  # those of others


class CountingStore(SessionStore):
    """A store that counts the lists that begin anew, and is asked for each at the same time as for others."""

    comparisons = 0
    going_on = most = 0

    async def list(self, tenant: str, *, after: str = "", limit: int = 100) -> list[ListedSession]:
        type(self).comparisons += not after
        type(self).going_on += 1
        type(self).most = max(self.most, self.going_on)
        await asyncio.sleep(0.02)
        type(self).going_on -= 1
        return await super().list(tenant, after=after, limit=limit)


async def test_processes_that_start_together_compare_once_or_twice(
    store: SessionStore, archive: Archive, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(CountingStore, "comparisons", 0)
    monkeypatch.setattr(CountingStore, "most", 0)
    counting = CountingStore(store.breaker.driver(), Plain())
    said = (Entry(role="user", turn=0, content="a", recorded_at=time.time()),)
    await store.write(
        KEY, BlobWrite(encode(Session(entries=said, user="ann", created=5.0)), version=0, ttl=600)
    )
    archivists = [Archivist(counting, archive, ["acme"], keep=0, quiet=0) for _ in range(6)]
    for archivist in archivists:
        archivist.start()
    await asyncio.gather(*(archivist.idle() for archivist in archivists))
    for archivist in archivists:
        await archivist.aclose()
    # What the second one finds was written before the others were due.
    assert (CountingStore.comparisons, CountingStore.most) == (2, 1)
    assert await archive.comparisons() == 2
    assert [turn.entry.text for turn in await archive.session_turns(KEY)] == ["a"]


async def test_what_is_written_while_another_process_compares_is_found(
    store: SessionStore, archive: Archive, monkeypatch: pytest.MonkeyPatch
):
    """A process that becomes due amid another's comparison waits for a whole one after that."""
    monkeypatch.setattr(archivist_, "_PAGE", 1)
    said = (Entry(role="user", turn=0, content="a", recorded_at=time.time()),)
    blob = encode(Session(entries=said, user="ann", created=5.0))
    await store.write(Key("acme", "z"), BlobWrite(blob, version=0, ttl=600))
    first, second = (Archivist(store, archive, ["acme"], keep=0, quiet=0) for _ in range(2))
    listing, may_go_on = asyncio.Event(), asyncio.Event()
    list_sessions = store.list

    async def slow(tenant: str, *, after: str = "", limit: int = 100) -> list[ListedSession]:
        page = await list_sessions(tenant, after=after, limit=limit)
        if not listing.is_set():
            listing.set()
            await may_go_on.wait()
        return page

    monkeypatch.setattr(store, "list", slow)
    first.start()
    await listing.wait()
    await store.write(KEY, BlobWrite(blob, version=0, ttl=600))  # before the page that is read already
    second.start()
    await asyncio.sleep(0)
    may_go_on.set()
    await asyncio.gather(first.idle(), second.idle())
    for archivist in (first, second):
        await archivist.aclose()
    assert [turn.entry.text for turn in await archive.session_turns(KEY)] == ["a"]
