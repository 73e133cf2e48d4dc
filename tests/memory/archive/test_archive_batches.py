"""Many sessions are written at once, which changes nothing that others changed."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from proxy.memory.archive.archive import Archive, open_archive
from proxy.memory.archive.records import Query
from proxy.memory.archive.vectors import normalize
from proxy.memory.session import Entry, Session
from proxy.memory.stores.codec import Plain
from proxy.memory.stores.store import Key, Owner
from tests.peers.postgres_server import PostgresServer

pytestmark = pytest.mark.anyio
NOW = time.time()
ANN = Owner("acme", "ann")
KEY = Key("acme", "call")
on_postgresql = pytest.mark.parametrize("processes", ["postgresql"], indirect=True)


@pytest.fixture(params=["sqlite", "postgresql"])
async def processes(
    request: pytest.FixtureRequest, postgres: PostgresServer, tmp_path: Path
) -> AsyncIterator[list[Archive]]:
    """The same archive as two processes have it open."""
    url = f"sqlite:{tmp_path / 'a.db'}"
    if request.param == "postgresql":
        url = postgres.url(await postgres.new_schema())
    opened = [open_archive(url, codec=Plain()) for _ in range(2)]
    for one in opened:
        await one.ping()
    yield opened
    for one in opened:
        await one.aclose()


@pytest.fixture
def archive(processes: list[Archive]) -> Archive:
    return processes[0]


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """All that PostgreSQL is sent, but for the frames of transactions."""
    sent: list[str] = []

    def counted(way: Any) -> Any:
        async def asking(connection: Any, sql: str, *given: Any, **more: Any) -> Any:
            sent.append(sql)
            return await way(connection, sql, *given, **more)

        return asking

    for name in ("fetch", "fetchrow", "fetchval"):
        monkeypatch.setattr(asyncpg.Connection, name, counted(getattr(asyncpg.Connection, name)))
    return sent


def an_entry(turn: int, role: str, text: str, user: str | None = None) -> Entry:
    return Entry(role=role, turn=turn, content=text, user=user, recorded_at=NOW - 50 + turn)


def call(turns: int, *, edited: str = "", user: str | None = "ann", updated: float = NOW) -> Session:
    entries = []
    for turn in range(turns):
        entries += [
            an_entry(turn, "user", f"Question {turn} about badgers."),
            an_entry(turn, "assistant", f"Answer {turn}."),
        ]
    if edited:
        entries[-1] = msgspec.structs.replace(entries[-1], content=edited)
    return Session(entries=tuple(entries), user=user, created=5.0, updated=updated, next_turn=turns)


async def texts(archive: Archive, key: Key = KEY) -> list[str]:
    return [turn.entry.text for turn in await archive.session_turns(key)]


async def of_badgers(archive: Archive) -> list[str]:
    """Returns the results of an index by words, without their neighbours."""
    found = await archive.search(ANN, Query(text="badgers", now=NOW, limit=99))
    return [one.text for one in found if "badgers" in one.text]


def words(session: Session) -> list[str]:
    return [entry.text for entry in session.entries]


@on_postgresql
async def test_a_turn_is_one_statement_and_many_sessions_are_no_more(archive: Archive, statements: list[str]):
    keys = [Key("acme", f"call-{number}") for number in range(30)]
    await archive.save_sessions([(key, call(1), NOW) for key in keys])
    statements.clear()
    for turns in (2, 3, 4):  # an answer is confirmed, and there are a question and an answer more
        await archive.save_sessions([(keys[0], call(turns), NOW)])
    assert len(statements) == 3
    statements.clear()
    await archive.save_sessions([(key, call(5), NOW) for key in keys])
    assert len(statements) <= 2
    statements.clear()
    await archive.save_sessions([(key, call(5), NOW) for key in keys])
    assert len(statements) <= 2
    for key in keys:
        assert await texts(archive, key) == words(call(5))


@on_postgresql
async def test_sessions_of_another_process_are_read_and_written_in_two_statements(
    processes: list[Archive], statements: list[str]
):
    keys = [Key("acme", f"call-{number}") for number in range(100)]
    one, other = processes
    await one.save_sessions([(key, call(2), NOW) for key in keys])
    await other.save_sessions([(KEY, call(1), NOW)])  # it has read the key of tombstones
    statements.clear()
    await other.save_sessions([(key, call(3), NOW) for key in keys])
    assert len(statements) == 2
    for key in keys:
        assert await texts(one, key) == words(call(3))


async def test_words_are_found_and_go_with_what_was_taken_back(archive: Archive):
    await archive.save_sessions([(KEY, call(3), NOW)])
    assert len(await of_badgers(archive)) == 3
    due = await archive.unembedded_texts("m", limit=9)
    await archive.add_vectors("m", [(text, normalize([1.0, 2.0])) for text in due])
    await archive.save_sessions([(KEY, call(2, edited="Foxes."), NOW)])
    assert await texts(archive) == words(call(2, edited="Foxes."))
    assert len(await of_badgers(archive)) == 2
    assert [one.text for one in await archive.search(ANN, Query(text="foxes", now=NOW, limit=1))] == [
        "Foxes."
    ]
    # What was said otherwise has no vector any more, and nor has what stands beside it or what is gone.
    due = await archive.unembedded_texts("m", limit=9)
    beside = "User: Question 1 about badgers."
    assert sorted(text.text or "" for text in due) == [
        f"Assistant: Answer 0.\n{beside}\nAssistant: Foxes.",
        f"{beside}\nAssistant: Foxes.",
    ]


async def test_what_another_process_saved_meanwhile_is_read_again(processes: list[Archive]):
    one, other = processes
    await one.save_sessions([(KEY, call(2), NOW)])
    await other.save_sessions([(KEY, call(3, updated=NOW + 1), NOW)])
    await one.save_sessions([(KEY, call(2, updated=NOW), NOW)])  # an older state than the other's
    assert await texts(one) == words(call(3))
    await one.save_sessions([(KEY, call(4, updated=NOW + 2), NOW)])
    assert await texts(one) == words(call(4))


@pytest.mark.parametrize("seed", range(5))
async def test_processes_that_save_the_same_sessions_at_once_leave_one_of_the_states(
    processes: list[Archive], seed: int
):
    dice = random.Random(seed)
    keys = [Key("acme", f"call-{number}") for number in range(4)]
    states = [call(turns, edited=f"{turns}!", updated=NOW + turns) for turns in range(1, 7)]

    async def process(archive: Archive) -> None:
        for state in states:
            some = dice.sample(keys, dice.randint(1, 4))
            await asyncio.gather(*(archive.save_sessions([(key, state, NOW)]) for key in some))
            await archive.save_sessions([(key, state, NOW) for key in dice.sample(keys, 4)])

    await asyncio.gather(*map(process, processes))
    for key in keys:
        assert await texts(processes[0], key) == words(states[-1])
    assert len(await of_badgers(processes[0])) == 4 * 6


Deed = Callable[[Archive], Any]


@pytest.mark.parametrize("known", [False, True], ids=["not saved before", "saved before"])
async def test_a_user_who_is_erased_between_read_and_write_stays_erased(
    processes: list[Archive], monkeypatch: pytest.MonkeyPatch, known: bool
):
    one, other = processes
    if known:
        await one.save_sessions([(KEY, call(2), NOW)])
    database, read = one._database, one._database.read
    write, erased = one._database.write, []

    async def erase() -> None:
        if not erased:
            erased.append(True)
            await other.forget(ANN, at=NOW)

    async def write_later(work: Any) -> Any:
        await erase()
        return await write(work)

    async def read_later(work: Any) -> Any:
        if known:
            await erase()
        return await read(work)

    await one.save_sessions([(Key("acme", "other"), call(1, user="bob"), NOW)])
    monkeypatch.setattr(database, "write", write_later)
    monkeypatch.setattr(database, "read", read_later)
    await one.save_sessions([(KEY, call(3), NOW), (Key("acme", "other"), call(2, user="bob"), NOW)])
    monkeypatch.undo()
    assert erased
    assert await texts(one) == []
    assert await one.search(ANN, Query(text="badgers", now=NOW)) == []
    assert await one.list_users("acme") == ["bob"]
    assert await texts(one, Key("acme", "other")) == words(call(2))


@on_postgresql
async def test_a_long_session_goes_in_several_statements(archive: Archive, statements: list[str]):
    long = call(200)
    entries = tuple(msgspec.structs.replace(each, content=each.text * 200) for each in long.entries)
    long = msgspec.structs.replace(long, entries=entries)
    await archive.save_sessions([(KEY, long, NOW), (Key("acme", "other"), call(3), NOW)])
    assert sum("INSERT INTO turnkeeper_turns" in each for each in statements) > 2
    assert await texts(archive) == words(long)
    assert await texts(archive, Key("acme", "other")) == words(call(3))
    await archive.save_sessions([(KEY, call(1), NOW)])
    assert await texts(archive) == words(call(1))


async def test_entries_that_moved_out_are_saved_beside_the_hot_ones(archive: Archive):
    whole = call(6)
    for moved in (0, 4, 8):
        hot = msgspec.structs.replace(whole, entries=whole.entries[moved:], cold_count=moved)
        assert await archive.save_sessions([(KEY, hot, NOW)]) == [moved]
        assert await texts(archive) == words(whole)
    cut = msgspec.structs.replace(whole.entries[1], content="cut")
    await archive.save_moved(KEY, hot, [whole.entries[0], cut, *whole.entries[2:8]], start=0)
    assert await texts(archive) == [words(whole)[0], "cut", *words(whole)[2:]]


async def test_who_saves_forgets_and_sweeps_the_same_at_once_refuses_nobody(processes: list[Archive]):
    one, other = processes
    keys = [Key("acme", f"call-{number}") for number in range(6)]
    ending = asyncio.Event()

    async def save(archive: Archive) -> None:
        number = 0
        while not ending.is_set():
            number += 1
            state = call(1 + number % 4, edited=f"{number} foxes.", updated=NOW + number)
            await archive.save_sessions([(key, state, NOW) for key in keys])

    async def forget() -> None:
        for _ in range(20):
            # Long before anything was said: all goes, and what is said again is not refused.
            await other.forget(ANN, at=5.0)
            await other.forget_session(keys[0], at=5.0)
        ending.set()

    async def sweep() -> None:
        while not ending.is_set():
            await one.sweep(before=NOW - 48, limit=7)

    async with asyncio.timeout(60):
        await asyncio.gather(save(one), sweep(), forget())
    for archive in processes:
        await archive.save_sessions([(key, call(4, updated=NOW + 10**6), NOW) for key in keys])
    for key in keys:
        assert await texts(one, key) == words(call(4))
    assert len(await of_badgers(one)) == 4 * 6
