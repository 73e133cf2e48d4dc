"""What a call waits for: how often the archive is asked over the network for what it tells."""

import time
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from proxy.memory.archive.archive import Archive, open_archive
from proxy.memory.archive.records import Chunk, Fact, Query
from proxy.memory.archive.sql import Batch, BoundStatement, Rows, Steps, fetch, gather
from proxy.memory.archive.statements import OWNER_ID
from proxy.memory.session import Entry, Session
from proxy.memory.stores.codec import Plain
from proxy.memory.stores.store import Key, Owner
from tests.peers.postgres_server import PostgresServer

NOW = time.time()
ANN = Owner("acme", "ann")


@pytest.fixture
async def archive(postgres: PostgresServer) -> AsyncIterator[Archive]:
    opened = open_archive(postgres.url(await postgres.new_schema()), codec=Plain())
    yield opened
    await opened.aclose()


@pytest.mark.anyio
async def test_whatever_answers_a_question_is_found_in_four_round_trips(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = (Entry(role="user", turn=0, content="Bello barks since yesterday.", recorded_at=NOW - 86_400),)
    await archive.save_session(
        Key("acme", "call"), Session(entries=said, user="ann", created=NOW - 86_500), as_of=NOW
    )
    await archive.add_document("acme", "faq.md", [Chunk(title="", text="Bello barks.")], at=NOW)
    await archive.add_fact(ANN, Fact(id="f1", text="Bello barks.", created=NOW - 200))
    trips = []

    def counted(way: Any) -> Any:
        async def asking(connection: Any, sql: str, *given: Any, **more: Any) -> Any:
            trips.append(sql)
            return await way(connection, sql, *given, **more)

        return asking

    for name in ("fetch", "fetchrow", "fetchval", "execute"):
        monkeypatch.setattr(asyncpg.Connection, name, counted(getattr(asyncpg.Connection, name)))
    found = await archive.search(ANN, Query(text="Why did Bello bark yesterday?", now=NOW))
    assert sorted(one.kind for one in found) == ["document", "fact", "turn"]
    assert len(trips) <= 4


def carried_out(steps: Steps[Any]) -> tuple[list[list[str]], Any]:
    """What was asked, one round trip after the other, and what came of it; each row is what was asked."""
    trips: list[list[str]] = []
    reply: Rows | list[Rows] | None = None
    while True:
        try:
            step = steps.send(reply)
        except StopIteration as end:
            return trips, end.value
        asks = [step] if isinstance(step, BoundStatement) else list(step.statements)
        trips.append([str(ask.arguments["n"]) for ask in asks])
        rows = [[(ask.arguments["n"],)] for ask in asks]
        reply = rows if isinstance(step, Batch) else rows[0]


def told(*names: str) -> Steps[str]:
    """One question after the other; what was heard, in a row."""
    heard = ""
    for name in names:
        rows = yield from fetch(OWNER_ID, {"n": name})
        heard += rows[0][0]
    return heard


def test_what_waits_for_nothing_is_asked_at_once() -> None:
    trips, found = carried_out(gather(told("a", "b", "c"), told(), told("d")))
    assert (trips, found) == ([["a", "d"], ["b"], ["c"]], ["abc", "", "d"])


def test_so_is_what_stands_together_within_another() -> None:
    def both() -> Steps[list[Any]]:
        rows = yield from fetch(OWNER_ID, {"n": "first"})
        rest = yield from gather(told("x", "y"), told("z"))
        return [rows[0][0], *rest]

    trips, found = carried_out(gather(both(), told("a", "b", "c")))
    assert trips == [["first", "a"], ["x", "z", "b"], ["y", "c"]]
    assert found == [["first", "xy", "z"], "abc"]


def test_nothing_asks_nothing() -> None:
    assert carried_out(gather()) == ([], [])


def test_steps_that_fail_do_not_go_on() -> None:
    def failing() -> Steps[None]:
        yield from fetch(OWNER_ID, {"n": "a"})
        raise KeyError

    with pytest.raises(KeyError):
        carried_out(gather(failing(), told("b", "c")))
