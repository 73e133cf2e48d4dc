"""How often PostgreSQL is asked over the network: by a call, and for many sessions that are archived."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import asyncpg
import pytest

from proxy.memory.archive.archive import Archive, open_archive
from proxy.memory.archive.archivist import Archivist
from proxy.memory.archive.records import DocumentChunk, Fact, Query
from proxy.memory.archive.sql import Steps, fetch, gather, owner_arguments
from proxy.memory.archive.statements import FACTS, OWNER_ID
from proxy.memory.errors import StoreError
from proxy.memory.session import Entry, Session
from proxy.memory.stores.codec import Plain
from proxy.memory.stores.postgres import PostgresStore
from proxy.memory.stores.session_store import SessionStore, SessionWrite
from proxy.memory.stores.sql import BoundStatement
from proxy.memory.stores.store import Key, Owner
from tests.peers.postgres_server import PostgresServer

NOW = time.time()
ANN = Owner("acme", "ann")
PATIENCE = 10.0
"""Of whoever asks a server: it may be late on a busy machine."""


@pytest.fixture
async def archive(postgres: PostgresServer) -> AsyncIterator[Archive]:
    opened = open_archive(postgres.url(await postgres.new_schema()), codec=Plain())
    yield opened
    await opened.aclose()


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What PostgreSQL is asked from now on, by any connection."""
    trips: list[str] = []

    def counted(way: Any) -> Any:
        async def asking(connection: Any, sql: str, *given: Any, **more: Any) -> Any:
            trips.append(sql)
            return await way(connection, sql, *given, **more)

        return asking

    for name in ("fetch", "fetchrow", "fetchval", "execute"):
        monkeypatch.setattr(asyncpg.Connection, name, counted(getattr(asyncpg.Connection, name)))
    return trips


@pytest.mark.anyio
async def test_whatever_answers_a_question_is_found_in_four_round_trips(
    archive: Archive, trips: list[str]
) -> None:
    said = (Entry(role="user", turn=0, content="Bello barks since yesterday.", recorded_at=NOW - 86_400),)
    await archive.save_session(
        Key("acme", "call"), Session(entries=said, user="ann", created=NOW - 86_500), as_of=NOW
    )
    await archive.add_document("acme", "faq.md", [DocumentChunk(title="", text="Bello barks.")], at=NOW)
    await archive.add_fact(ANN, Fact(id="f1", text="Bello barks.", created=NOW - 200))
    trips.clear()
    found = await archive.search(ANN, Query(text="Why did Bello bark yesterday?", now=NOW))
    assert sorted(one.kind for one in found) == ["document", "fact", "turn"]
    assert len(trips) <= 4


@pytest.mark.anyio
async def test_a_call_reads_its_session_and_its_users_facts_in_one_statement(
    postgres: PostgresServer, trips: list[str]
) -> None:
    url = postgres.url(await postgres.new_schema())
    driver = PostgresStore(url, deadline=PATIENCE)
    store = SessionStore(driver, Plain())
    async with aclosing(store), aclosing(open_archive(url, codec=Plain(), sessions=driver)) as archive:
        for name in ("ann", "bob"):
            written = SessionWrite(Session(user=name, updated=NOW), 0, ttl=60)
            assert await store.save(Key("acme", name), written)
            fact = Fact(id=f"f-{name}", text=f"Is called {name}.", created=NOW)
            await archive.add_fact(Owner("acme", name), fact)
        trips.clear()
        stored, facts = await asyncio.gather(store.load(Key("acme", "ann")), archive.facts(ANN, now=NOW))
        assert len(trips) == 1
        assert stored is not None
        assert (stored.session.user, [fact.id for fact in facts]) == ("ann", ["f-ann"])
        # So are those of several calls, each of which gets its own.
        names = ("bob", "nobody", "ann")
        found: list[Any] = await asyncio.gather(
            *(store.load(Key("acme", name)) for name in names),
            *(archive.facts(Owner("acme", name), now=NOW) for name in names),
        )
        assert len(trips) == 2
        assert [one and one.session.user for one in found[:3]] == ["bob", None, "ann"]
        assert [[fact.id for fact in one] for one in found[3:]] == [["f-bob"], [], ["f-ann"]]


@pytest.mark.anyio
async def test_facts_that_come_too_late_for_a_call_are_read_with_patience(postgres: PostgresServer) -> None:
    url = postgres.url(await postgres.new_schema())
    driver = PostgresStore(url, deadline=0.2)
    store = SessionStore(driver, Plain())
    async with aclosing(store), aclosing(open_archive(url, codec=Plain(), sessions=driver)) as archive:
        await archive.add_fact(ANN, Fact(id="f1", text="Bello barks.", created=NOW))
        locking = await asyncpg.connect(url)
        transaction = locking.transaction()
        await transaction.start()
        await locking.execute("LOCK TABLE turnkeeper_facts IN ACCESS EXCLUSIVE MODE")
        reading = asyncio.create_task(archive.facts(ANN, now=NOW))
        with pytest.raises(StoreError):
            await driver.calls.fetch(BoundStatement(FACTS, {**owner_arguments(ANN), "now": NOW}))
        await transaction.rollback()
        await locking.close()
        assert [fact.id for fact in await reading] == ["f1"]


@pytest.mark.anyio
async def test_sessions_that_are_archived_together_take_one_statement_to_read_and_one_to_save(
    postgres: PostgresServer, trips: list[str]
) -> None:
    url = postgres.url(await postgres.new_schema())
    keys = [Key("acme", f"call-{number}") for number in range(20)]
    store = SessionStore(PostgresStore(url, deadline=PATIENCE), Plain())
    async with aclosing(store), aclosing(open_archive(url, codec=Plain())) as archive:
        archivist = Archivist(store, archive, ["acme"], keep=0, quiet=0)
        archivist.start()
        await archivist.idle()
        versions = dict.fromkeys(keys, 0)
        entries: tuple[Entry, ...] = ()
        for turn in range(2):
            entries += (Entry(role="user", turn=turn, content="Hello.", recorded_at=NOW + turn),)
            session = Session(entries=entries, user="ann", created=NOW - 1, updated=NOW + turn)
            for key in keys:
                assert await store.save(key, SessionWrite(session, versions[key], ttl=60))
                stored = await store.load(key)
                assert stored is not None
                versions[key] = stored.version
            trips.clear()
            for key in keys:
                archivist.enqueue(key)
            await archivist.idle()
        assert len(trips) == 2, trips
        await archivist.aclose()
        for key in keys:
            assert len(await archive.session_turns(key)) == 2


def carried_out(steps: Steps[Any]) -> tuple[list[list[str]], Any]:
    """Returns the statements, one per round trip, and the results; each row is its statement."""
    trips: list[list[str]] = []
    reply: Any = None
    while True:
        try:
            step = steps.send(reply)
        except StopIteration as end:
            return trips, end.value
        asks = [ask for ask in step if isinstance(ask, BoundStatement)]
        trips.append([str(ask.arguments["n"]) for ask in asks])
        reply = [[(ask.arguments["n"],)] for ask in asks]


def ask_each(*names: str) -> Steps[str]:
    """One question after the other; what was heard, in a row."""
    heard = ""
    for name in names:
        rows = yield from fetch(OWNER_ID, {"n": name})
        heard += rows[0][0]
    return heard


def test_what_waits_for_nothing_is_asked_at_once() -> None:
    trips, found = carried_out(gather(ask_each("a", "b", "c"), ask_each(), ask_each("d")))
    assert (trips, found) == ([["a", "d"], ["b"], ["c"]], ["abc", "", "d"])


def test_so_is_what_stands_together_within_another() -> None:
    def both() -> Steps[list[Any]]:
        rows = yield from fetch(OWNER_ID, {"n": "first"})
        rest = yield from gather(ask_each("x", "y"), ask_each("z"))
        return [rows[0][0], *rest]

    trips, found = carried_out(gather(both(), ask_each("a", "b", "c")))
    assert trips == [["first", "a"], ["x", "z", "b"], ["y", "c"]]
    assert found == [["first", "xy", "z"], "abc"]


def test_nothing_asks_nothing() -> None:
    assert carried_out(gather()) == ([], [])


def test_steps_that_fail_do_not_go_on() -> None:
    def failing() -> Steps[None]:
        yield from fetch(OWNER_ID, {"n": "a"})
        raise KeyError

    with pytest.raises(KeyError):
        carried_out(gather(failing(), ask_each("b", "c")))
