"""A long session is archived in many short transactions, and is whole in the end."""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing, closing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from proxy.memory.archive.archive import Archive, open_archive
from proxy.memory.archive.records import ErasureCount, Fact, Query
from proxy.memory.archive.sql import CHARACTERS_PER_ROW, RowCodec, fetch
from proxy.memory.archive.statements import SQLITE
from proxy.memory.archive.vectors import normalize
from proxy.memory.session import Entry, Session
from proxy.memory.stores.codec import Plain
from proxy.memory.stores.sql import Statement
from proxy.memory.stores.store import Key, Owner
from tests.memory.commits import Commits, on_statement

pytestmark = pytest.mark.anyio
KEY, ANN = Key("acme", "call"), Owner("acme", "ann")
COUNT = 300


@pytest.fixture
async def archive(tmp_path: Path):
    opened = open_archive(f"sqlite:{tmp_path / 'a.db'}", codec=Plain())
    await opened.ping()
    yield opened
    await opened.aclose()


def session(count: int = COUNT) -> Session:
    entries = tuple(
        Entry(role="user", turn=i, content=f"Turn {i} about wheelbarrow{i % 7}", recorded_at=8.0)
        for i in range(count)
    )
    return Session(entries=entries, user="ann", created=5.0, updated=8.0)


class Transactions:
    """Counts the rows that each transaction of the archive's writer writes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._statements: list[set[str]] = []
        on_statement(monkeypatch, self._on_statement)

    def _on_statement(self, statement: str) -> None:
        if statement.startswith("BEGIN"):
            self._statements.append(set())
        elif statement.startswith(("INSERT", "UPDATE", "DELETE")) and "turnkeeper_index" not in statement:
            # Once: a trigger's statements come under the name of the one that set it off.
            self._statements[-1].add(statement)

    @property
    def rows(self) -> list[int]:
        """The rows of each transaction since ``clear``."""
        return [len(each) for each in self._statements]

    def clear(self) -> None:
        self._statements.clear()


@pytest.fixture
def transactions(monkeypatch: pytest.MonkeyPatch) -> Transactions:
    return Transactions(monkeypatch)


async def texts(archive: Archive) -> list[str]:
    return [turn.entry.text for turn in await archive.session_turns(KEY)]


class OtherWriter(threading.Thread):
    """Writes to the file for as long as it may, and counts how often it could."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path, self.count, self.ending = path, 0, threading.Event()

    def run(self) -> None:
        with closing(sqlite3.connect(self.path, timeout=30, isolation_level=None)) as connection:
            while not self.ending.is_set():
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("COMMIT")
                self.count += 1
                time.sleep(0.001)


async def test_other_writers_get_in_while_a_long_session_is_archived(archive: Archive, tmp_path: Path):
    long = session(4 * COUNT)
    with closing(sqlite3.connect(tmp_path / "a.db")) as reader:
        other = OtherWriter(tmp_path / "a.db")
        counts: set[int] = set()

        async def look() -> None:
            while True:
                counts.add(reader.execute("SELECT count(*) FROM turnkeeper_turns").fetchone()[0])
                await asyncio.sleep(0.001)

        looking = asyncio.create_task(look())
        other.start()
        try:
            await archive.save_session(KEY, long, as_of=8.0)
        finally:
            looking.cancel()
            other.ending.set()
            other.join(30)
    assert other.count > 3
    assert len(counts) > 3
    assert await texts(archive) == [entry.text for entry in long.entries]


async def test_a_call_is_saved_in_few_transactions_and_a_long_one_in_short_ones(
    transactions: Transactions, archive: Archive
):
    await archive.save_session(Key("acme", "first"), session(1), as_of=8.0)  # it makes the key of tombstones
    transactions.clear()
    await archive.save_sessions([(Key("acme", f"call-{number}"), session(32), 8.0) for number in range(8)])
    assert len(transactions.rows) <= 8
    transactions.clear()
    await archive.save_session(KEY, session(), as_of=8.0)
    assert sum(transactions.rows) >= COUNT
    assert max(transactions.rows) <= 180
    transactions.clear()
    await archive.save_session(KEY, session(COUNT + 2), as_of=8.0)
    assert transactions.rows == [1 + 2 + 1]  # the session, two turns, and their passages


async def test_what_is_saved_already_is_not_looked_at_again(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
):
    digested: list[Entry] = []
    digest = RowCodec.digest

    def counted(codec: RowCodec, *values: Any) -> bytes:
        digested.append(values[-1])
        return digest(codec, *values)

    await archive.save_session(KEY, session(40), as_of=8.0)
    monkeypatch.setattr(RowCodec, "digest", counted)
    await archive.save_session(KEY, session(42), as_of=8.0)
    assert digested == list(session(42).entries[40:])
    entries = list(session(42).entries)
    entries[7] = msgspec.structs.replace(entries[7], content="Otherwise.")
    await archive.save_session(KEY, msgspec.structs.replace(session(42), entries=tuple(entries)), as_of=8.0)
    assert await texts(archive) == [entry.text for entry in entries]
    del entries[3]
    await archive.save_session(KEY, msgspec.structs.replace(session(42), entries=tuple(entries)), as_of=8.0)
    assert await texts(archive) == [entry.text for entry in entries]


async def test_what_was_broken_off_is_completed(archive: Archive):
    long = session(4 * COUNT)
    saving = asyncio.create_task(archive.save_session(KEY, long, as_of=8.0))
    while not await texts(archive):  # noqa: ASYNC110 - it saves when it likes
        await asyncio.sleep(0.001)
    saving.cancel()
    await asyncio.wait({saving})
    assert 0 < len(await texts(archive)) < 4 * COUNT
    await archive.save_session(KEY, long, as_of=8.0)
    assert await texts(archive) == [entry.text for entry in long.entries]
    shorter = msgspec.structs.replace(session(20), updated=9.0)
    await archive.save_session(KEY, shorter, as_of=9.0)
    assert await texts(archive) == [entry.text for entry in shorter.entries]


async def test_a_user_who_is_erased_meanwhile_stays_erased(archive: Archive):
    saving = asyncio.create_task(archive.save_session(KEY, session(), as_of=8.0))
    while not await texts(archive):  # noqa: ASYNC110 - it saves when it likes
        await asyncio.sleep(0.001)
    await archive.forget(ANN, at=9.0)
    await saving
    assert await texts(archive) == []
    assert await archive.search(ANN, Query(text="wheelbarrow1", now=9.0)) == []


# Four short turns or so; each with a row beside its own, as a passage has its vector.
MOST_ROWS = 5 * 2


async def test_vectors_are_added_a_few_in_a_transaction(transactions: Transactions, archive: Archive):
    await archive.save_session(KEY, session(40), as_of=8.0)
    due = await archive.unembedded_texts("m", limit=40)
    assert len(due) == 40
    transactions.clear()
    vector = normalize([1.0, -1.0] * 16)
    await archive.add_vectors(
        "m", [(text, vector) for text in due[:30]] + [(text, None) for text in due[30:]]
    )
    assert sum(transactions.rows) == 80
    assert max(transactions.rows) <= MOST_ROWS
    assert await archive.unembedded_texts("m", limit=40) == []


async def test_long_vectors_are_added_a_few_in_a_transaction(transactions: Transactions, archive: Archive):
    await archive.save_session(KEY, session(5), as_of=8.0)
    due = await archive.unembedded_texts("m", limit=5)
    transactions.clear()
    await archive.add_vectors("m", [(text, normalize([1.0] * 8192)) for text in due])
    assert sum(transactions.rows) == 2 * 5
    assert max(transactions.rows) <= MOST_ROWS


async def test_an_older_index_is_made_anew_a_few_texts_in_a_transaction(
    transactions: Transactions, archive: Archive
):
    await archive.save_session(KEY, session(20), as_of=8.0)
    old = Statement("UPDATE turnkeeper_passages SET terms = 'x', lexicon = 0")
    await archive._database.write(partial(fetch, old, {}))
    transactions.clear()
    assert await archive.reindex(limit=20) == 20
    assert sum(transactions.rows) == 20
    assert max(transactions.rows) <= 4
    found = await archive.search(ANN, Query(text="wheelbarrow1", now=9.0, limit=3))
    assert {one.turn_id for one in found} == {1, 8, 15}


ERASURES: dict[str, Callable[[Archive], Awaitable[object]]] = {
    "a user": lambda archive: archive.forget(ANN, at=9.0),
    "a session": lambda archive: archive.forget_session(KEY, at=9.0),
    "strangers": lambda archive: archive.forget_anonymous(KEY, at=9.0),
}


@pytest.mark.parametrize("erased", ERASURES)
async def test_a_transaction_erases_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, erased: str):
    path, most = tmp_path / "a.db", SQLITE.batch // CHARACTERS_PER_ROW
    items = Commits(
        monkeypatch,
        path,
        "SELECT (SELECT count(*) FROM turnkeeper_turns) + (SELECT count(*) FROM turnkeeper_facts)",
    )
    async with aclosing(open_archive(f"sqlite:{path}", codec=Plain())) as archive:
        user = "" if erased == "strangers" else "ann"
        await archive.save_session(KEY, msgspec.structs.replace(session(), user=user), as_of=8.0)
        for number in range(3 * most):
            await archive.add_fact(ANN, Fact(id=f"f{number}", text=f"Likes dogs, {number}.", created=5.0))
        await ERASURES[erased](archive)
        assert await texts(archive) == []
        left = await archive.facts(ANN, now=5.0)
        assert len(left) == (0 if erased == "a user" else 3 * most)
        with closing(sqlite3.connect(path)) as reader:
            indexed = reader.execute("SELECT count(*) FROM turnkeeper_passages").fetchone()
        assert indexed == (items.number,) == (len(left),)
    erasing = [change for change in items.changes if change > 0]
    assert sum(erasing) == COUNT + 3 * most - len(left)
    assert max(erasing) <= most


async def test_a_long_turn_is_erased_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    turns = Commits(monkeypatch, tmp_path / "a.db", "SELECT count(*) FROM turnkeeper_turns")
    async with aclosing(open_archive(f"sqlite:{tmp_path / 'a.db'}", codec=Plain())) as archive:
        long = Session(
            entries=tuple(
                Entry(role="user", turn=i, content=f"{i} " * SQLITE.batch, recorded_at=8.0) for i in range(5)
            ),
            user="ann",
            created=5.0,
            updated=8.0,
        )
        await archive.save_session(KEY, long, as_of=8.0)
        assert await archive.forget(ANN, at=9.0) == ErasureCount(turns=5)
    assert max(turns.changes) == 1
