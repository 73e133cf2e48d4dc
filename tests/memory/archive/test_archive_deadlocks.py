"""Simultaneous deletions on PostgreSQL wait for each other or skip rows; none fails."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

import asyncpg
import pytest

from proxy.memory.archive.archive import Archive, open_archive
from proxy.memory.archive.records import Fact
from proxy.memory.archive.sql import Database, Steps, Transaction, fetch
from proxy.memory.session import Entry, Session
from proxy.memory.stores.codec import Plain
from proxy.memory.stores.sql import Statement
from proxy.memory.stores.store import Key, Owner
from tests.peers.postgres_server import PostgresServer

pytestmark = pytest.mark.anyio
ANN, NOW = Owner("acme", "ann"), 1_000_000_000.0
LATER = Fact(id="f3", text="Likes cats.", created=NOW + 1, replaces="f1")
T = TypeVar("T")
Deed = Callable[[Archive], Awaitable[object]]

_GATE = Statement("SELECT 1 FROM pg_advisory_xact_lock(1)")
_SHUT, _OPEN = "SELECT pg_advisory_lock(1)", "SELECT pg_advisory_unlock(1)"
_WAITING = "SELECT COUNT(*) FROM pg_locks WHERE NOT granted"
_LEFT = (
    "SELECT COUNT(*) FROM turnkeeper_passages p"
    " WHERE NOT EXISTS (SELECT 1 FROM turnkeeper_facts f WHERE f.id = p.item)"
)


def expire(archive: Archive) -> Awaitable[object]:
    return archive.expire(now=NOW)


CHANGES: dict[str, Deed] = {
    "forget": lambda archive: archive.forget(ANN, at=NOW),
    "remove": lambda archive: archive.remove_fact(ANN, "f1"),
    "replace": lambda archive: archive.add_fact(ANN, LATER),
}


class Gated:
    """A database that stops at a gate after so many statements, amid its transaction."""

    def __init__(self, database: Database, after: int) -> None:
        self._database, self._after = database, after

    async def write(self, work: Transaction[T]) -> T:
        return await self._database.write(partial(self._stopped, work))

    def _stopped(self, work: Transaction[T]) -> Steps[T]:
        steps, rows, count = work(), None, 0
        try:
            while True:
                ask = steps.send(rows)
                if count == self._after:
                    yield from fetch(_GATE, {})
                rows = yield ask
                count += 1
        except StopIteration as end:
            return end.value


@pytest.fixture
async def url(postgres: PostgresServer) -> str:
    return postgres.url(await postgres.new_schema())


@pytest.fixture
async def archive(url: str) -> AsyncIterator[Archive]:
    """One that holds facts which have expired."""
    opened = open_archive(url, codec=Plain())
    for name in ("f1", "f2"):
        fact = Fact(id=name, text=f"Likes dogs, {name}.", created=NOW - 9, expires=NOW - 1)
        await opened.add_fact(ANN, fact)
    yield opened
    await opened.aclose()


@pytest.fixture
async def other(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url)
    yield connection
    await connection.close()


async def crossed(archive: Archive, other: Any, after: int, first: Deed, second: Deed) -> None:
    """One is begun and stops amid its work, until another is done or cannot go on."""
    await other.execute(_SHUT)
    begun = asyncio.ensure_future(first(Archive(Gated(archive._database, after), archive._codec)))
    await done_or_waiting(begun, other, 1)
    crossing = asyncio.ensure_future(second(archive))
    await done_or_waiting(crossing, other, 1 if begun.done() else 2)
    await other.execute(_OPEN)
    await asyncio.gather(begun, crossing)


async def done_or_waiting(task: asyncio.Future[object], other: Any, waiting: int) -> None:
    while not task.done() and await other.fetchval(_WAITING) < waiting:  # noqa: ASYNC110 - a lock says nothing
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("after", range(1, 8))
@pytest.mark.parametrize("change", CHANGES)
async def test_what_expires_amid_a_change_refuses_neither(
    archive: Archive, other: Any, change: str, after: int
):
    await crossed(archive, other, after, CHANGES[change], expire)
    await archive.expire(now=NOW)
    assert await archive.facts(ANN, now=0.0) == ([LATER] if change == "replace" else [])
    assert await other.fetchval(_LEFT) == 0


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_amid_what_expires_refuses_neither(archive: Archive, other: Any, change: str):
    await crossed(archive, other, 1, expire, CHANGES[change])
    assert await archive.facts(ANN, now=0.0) == ([LATER] if change == "replace" else [])
    assert await other.fetchval(_LEFT) == 0


@pytest.mark.parametrize("after", range(1, 8))
async def test_a_fact_that_is_replaced_while_its_person_is_forgotten_refuses_neither(
    archive: Archive, other: Any, after: int
):
    await crossed(archive, other, after, CHANGES["forget"], CHANGES["replace"])
    assert await archive.facts(ANN, now=0.0) in ([], [LATER])


@pytest.mark.parametrize("after", range(1, 8))
@pytest.mark.parametrize("user", [ANN, Owner("acme", "new")], ids=["known", "new"])
@pytest.mark.parametrize("forgets_first", [False, True])
async def test_a_fact_that_is_added_while_its_user_is_forgotten_is_not_left_over(
    archive: Archive, other: Any, after: int, user: Owner, *, forgets_first: bool
):
    deeds: list[Deed] = [
        lambda archive: archive.add_fact(user, Fact(id="f4", text="Likes horses.", created=NOW)),
        lambda archive: archive.forget(user, at=NOW + 1),
    ]
    await crossed(archive, other, after, *deeds[:: -1 if forgets_first else 1])
    assert await archive.facts(user, now=0.0) == []
    assert await other.fetchval("SELECT COUNT(*) FROM turnkeeper_facts WHERE name = $1", b"f4") == 0
    assert user.user not in await archive.list_users("acme", after="", limit=9)


async def test_turns_that_are_saved_while_their_user_is_forgotten_are_not_left_over(
    archive: Archive, other: Any
):
    said = Entry(role="user", turn=0, content="I like horses.", timestamp=NOW, recorded_at=NOW)
    session = Session(entries=(said,), user="ann", created=5.0, updated=NOW, next_turn=1)
    async with other.transaction():  # which holds up who adds the same session
        columns = "(tenant, session, created, mark, updated)"
        await other.execute(f"INSERT INTO turnkeeper_talks {columns} VALUES ('acme', 'call', 5.0, 0, 0)")
        saving = asyncio.ensure_future(archive.save_sessions([(Key("acme", "call"), session, NOW)]))
        await done_or_waiting(saving, other, 1)
        forgetting = asyncio.ensure_future(archive.forget(ANN, at=NOW + 1))
        await done_or_waiting(forgetting, other, 2)
        await other.execute("DELETE FROM turnkeeper_talks WHERE session = 'call'")
    await asyncio.gather(saving, forgetting)
    assert await other.fetchval("SELECT COUNT(*) FROM turnkeeper_turns") == 0
    assert await archive.list_users("acme", after="", limit=9) == []


async def test_a_transaction_that_the_server_ends_in_favour_of_another_begins_again(
    archive: Archive, other: Any
):
    change = Statement("UPDATE turnkeeper_facts SET importance = importance + 1 WHERE name = :name")
    begun = 0

    def crossing(*names: bytes) -> Steps[None]:
        nonlocal begun
        begun += 1
        for name in names:
            yield from fetch(change, {"name": name})
            yield from fetch(Statement("SELECT pg_sleep(0.3)"), {})

    both = [partial(crossing, *names) for names in ((b"f1", b"f2"), (b"f2", b"f1"))]
    await asyncio.gather(*map(archive._database.write, both))
    assert begun > len(both)
    rows = await other.fetch("SELECT importance FROM turnkeeper_facts")
    assert [row["importance"] for row in rows] == [2.5, 2.5]


CALL, CALLED = Key("acme", "a call"), 1_000_000_000.0


def a_call(turns: int = 3) -> Session:
    entries = [
        Entry(role="user", turn=turn, content=f"Question {turn} about badgers.", recorded_at=CALLED + turn)
        for turn in range(turns)
    ]
    return Session(entries=tuple(entries), user="ann", created=5.0, updated=CALLED, next_turn=turns)


async def counted(other: Any, table: str) -> int:
    return await other.fetchval(f"SELECT COUNT(*) FROM turnkeeper_{table}")


@pytest.mark.parametrize("after", range(1, 8))
async def test_a_session_that_is_saved_amid_its_forgetting_is_indexed_or_gone(
    archive: Archive, other: Any, after: int
):
    def forget(archive: Archive) -> Awaitable[object]:
        return archive.forget_session(CALL, at=1.0)  # long before anything was said

    def save(archive: Archive) -> Awaitable[object]:
        return archive.save_sessions([(CALL, a_call(), CALLED)])

    facts = await counted(other, "passages")
    await crossed(archive, other, after, forget, save)
    turns = await counted(other, "turns")
    assert turns in {0, 3}
    assert await counted(other, "passages") - facts == turns


async def test_a_session_that_is_forgotten_amid_its_first_saving_is_gone(archive: Archive, other: Any):
    saved, facts = await counted(other, "turns"), await counted(other, "passages")
    async with other.transaction():
        # What is saved locks the row of its user.
        await other.execute("SELECT id FROM turnkeeper_people FOR UPDATE")
        saving = asyncio.ensure_future(archive.save_sessions([(CALL, a_call(), CALLED)]))
        await done_or_waiting(saving, other, 1)
        forgetting = asyncio.ensure_future(archive.forget_session(CALL, at=CALLED + 60))
        await done_or_waiting(forgetting, other, 2)
    await asyncio.gather(saving, forgetting)
    assert (await counted(other, "turns"), await counted(other, "passages")) == (saved, facts)
