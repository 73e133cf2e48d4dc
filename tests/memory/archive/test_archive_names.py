"""Names of sessions and users in an archive that encrypts them, whatever becomes of its keys and its file."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from proxy.memory.archive.archive import Archive, open_archive
from proxy.memory.archive.names import NamedDatabase, _rows
from proxy.memory.archive.records import Fact, Query
from proxy.memory.archive.sql import Steps, fetch
from proxy.memory.session import Entry, Session
from proxy.memory.stores.codec import NAME_MARK
from proxy.memory.stores.encryption import Encryption
from proxy.memory.stores.sql import Statement
from proxy.memory.stores.store import Key, Owner
from tests.memory.conftest import postgresql, sqlite

pytestmark = pytest.mark.anyio
NOW = time.time()
OLD, NEW = b"o" * 32, b"n" * 32
ANN, BOB = Owner("acme", "ann-unmistakable"), Owner("acme", "bob-unmistakable")
COLUMNS = (
    Statement("SELECT person FROM turnkeeper_people"),
    Statement("SELECT session FROM turnkeeper_talks"),
    Statement("SELECT name FROM turnkeeper_tombstones"),
)


@pytest.fixture(params=[sqlite, postgresql])
async def url(request: pytest.FixtureRequest) -> str:
    place: Callable[[pytest.FixtureRequest], Awaitable[str]] = request.param
    return await place(request)


@asynccontextmanager
async def opened(url: str, *keys: bytes) -> AsyncIterator[Archive]:
    archive = open_archive(url, codec=Encryption(keys))
    try:
        yield archive
    finally:
        await archive.aclose()


@asynccontextmanager
async def old_version(url: str, *keys: bytes) -> AsyncIterator[Archive]:
    """Encrypts words, and no names."""
    async with opened(url, *keys) as archive:
        named = archive._database
        assert isinstance(named, NamedDatabase)
        archive._database = named._database
        archive._sessions._database = named._database
        yield archive


async def plain_names(archive: Archive) -> list[str]:
    """What the database has of names as they are."""
    database: Any = archive._database
    database = getattr(database, "_database", database)
    found = []
    for statement in COLUMNS:

        def work(statement: Statement = statement) -> Steps[Any]:
            return (yield from fetch(statement, {}))

        found += [bytes(row[0]) for row in await database.write(work)]
    assert found
    return [name.decode() for name in found if b"unmistakable" in name]


def talk(user: Owner, text: str, created: float = NOW - 100) -> Session:
    said = [
        Entry(role="user", turn=0, content=text, recorded_at=created),
        Entry(role="assistant", turn=0, content="I see.", recorded_at=created),
    ]
    return Session(entries=tuple(said), user=user.user, created=created, updated=created)


def call(name: str) -> Key:
    return Key("acme", f"{name}-unmistakable")


async def texts(archive: Archive, user: Owner = ANN) -> list[str]:
    return [turn.entry.text for _, turn in await archive.turns(user) if turn.entry.role == "user"]


async def found(archive: Archive, words: str, user: Owner = ANN) -> list[str | None]:
    results = await archive.search(user, Query(text=words, now=NOW))
    return [result.session_id for result in results]


async def check(archive: Archive) -> None:
    """All that is asked by a name finds it, and names come back as they are."""
    await archive.save_session(call("one"), talk(ANN, "My scarecrow is Ferdinand."), as_of=NOW)
    await archive.add_fact(ANN, Fact(id="f1", text="Owns a scarecrow.", created=NOW))
    assert await texts(archive) == ["My scarecrow is Ferdinand."]
    assert await archive.list_users("acme") == [ANN.user]
    assert await archive.list_sessions("acme") == {call("one").session: NOW}
    assert await archive.saved_times("acme", [call("one").session, "none"]) == {call("one").session: NOW}
    assert [one.session for one in await archive.user_sessions(ANN)] == [call("one").session]
    assert [turn.session for turn in await archive.latest_turns(ANN, limit=5)] == [call("one").session] * 2
    assert len(await archive.session_turns(call("one"))) == 2
    assert set(await found(archive, "scarecrow")) == {call("one").session, None}
    assert [fact.text for fact in await archive.facts(ANN, now=NOW)] == ["Owns a scarecrow."]
    assert await plain_names(archive) == []


async def test_all_that_is_asked_by_name_is_found(url: str) -> None:
    async with opened(url, OLD) as archive:
        await check(archive)
        assert await archive.forget_session(call("one"), at=NOW + 1) == 2
        await archive.add_fact(ANN, Fact(id="f2", text="Likes hens.", created=NOW))
        assert (await archive.forget(ANN, at=NOW + 1)).facts == 2
        assert await archive.list_users("acme") == []
        assert await plain_names(archive) == []


def files(path: Path) -> bytes:
    """Returns all bytes of the file and its log, deleted or not."""
    return b"".join(each.read_bytes() for each in path.parent.glob(f"{path.name}*"))


async def test_names_that_were_plain_leave_the_files_soon(path: Path) -> None:
    url = f"sqlite:{path}"
    async with old_version(url, OLD) as archive:
        await archive.save_session(call("one"), talk(ANN, "Hello."), as_of=NOW)
        assert b"unmistakable" in files(path)
        async with opened(url, OLD) as newer:
            assert await texts(newer) == ["Hello."]
            async with asyncio.timeout(10):
                while b"unmistakable" in files(path):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)


async def test_what_is_deleted_leaves_the_files_where_names_are_encrypted_too(path: Path) -> None:
    async with opened(f"sqlite:{path}", OLD) as archive:
        await archive.save_session(call("one"), talk(ANN, "Hello."), as_of=NOW)
        assert path.with_name(f"{path.name}-wal").stat().st_size > 0
        await archive.scrub()
        assert path.with_name(f"{path.name}-wal").stat().st_size == 0


async def test_any_way_of_reading_may_be_the_first(url: str) -> None:
    async with opened(url, OLD) as archive:
        await archive.save_session(call("one"), talk(ANN, "Hello."), as_of=NOW)
    statement = Statement(
        "SELECT session FROM turnkeeper_talks WHERE tenant = :tenant AND session = :session"
    )

    def work() -> Steps[Any]:
        return (yield from fetch(statement, {"tenant": b"acme", "session": call("one").session.encode()}))

    for how in ("read", "read_inline", "write"):
        async with opened(url, OLD) as archive:
            ((name,),) = await getattr(archive._database, how)(work)
            assert bytes(name).decode() == call("one").session


def test_bytes_that_only_begin_like_a_name_stay_as_they_are() -> None:
    names = Encryption([OLD]).names([])
    assert names
    for cell in (NAME_MARK.encode() + b"\xff", NAME_MARK.encode() + b"no name", b"\xff", b"", 5, None):
        assert _rows(names, [(cell,)]) == [(cell,)]


async def test_names_outlive_the_key_that_they_were_encrypted_with(url: str) -> None:
    for keys in ((OLD,), (OLD, NEW), (NEW, OLD), (OLD, NEW), (NEW, OLD)):
        async with opened(url, *keys) as archive:
            await check(archive)
    async with opened(url, NEW) as archive:
        assert await archive.list_users("acme") == [ANN.user]
        assert await archive.list_sessions("acme") == {call("one").session: NOW}


async def test_servers_whose_keys_are_being_changed_have_the_same_names(url: str) -> None:
    async with opened(url, OLD, NEW) as before, opened(url, NEW, OLD) as after:
        for archive in (before, after, before, after):
            await check(archive)


async def test_what_has_plain_names_is_encrypted_before_anything_else(url: str) -> None:
    users = [Owner("acme", f"user-{number}-unmistakable") for number in range(250)]
    async with old_version(url, OLD) as archive:
        await archive.save_session(call("one"), talk(ANN, "My scarecrow is Ferdinand."), as_of=NOW)
        await archive.save_sessions([(call(user.user), talk(user, "Hello."), NOW) for user in users[:30]])
        for user in users[30:]:
            await archive.add_fact(user, Fact(id=user.user[:8], text="Has a dog.", created=NOW))
        assert len(await plain_names(archive)) == 251 + 31
    async with opened(url, OLD) as archive, opened(url, OLD) as other:
        once = await asyncio.gather(texts(archive), texts(other), texts(archive, users[0]))
        assert once == [["My scarecrow is Ferdinand."]] * 2 + [["Hello."]]
        assert await plain_names(archive) == []
        assert sorted(await archive.list_users("acme", limit=300)) == sorted(
            [ANN.user, *(u.user for u in users)]
        )
        page = await archive.list_users("acme", limit=100)
        rest = await archive.list_users("acme", limit=300, after=page[-1])
        assert (len({*page, *rest}), len(rest)) == (251, 151)
        # The same session once more is the same turns.
        await archive.save_session(call("one"), talk(ANN, "My scarecrow is Ferdinand."), as_of=NOW)
        assert await texts(archive) == ["My scarecrow is Ferdinand."]
        assert len(await archive.list_sessions("acme", limit=100)) == 31


async def test_what_was_kept_while_a_key_was_lost_is_one_with_the_rest_once_it_is_back(url: str) -> None:
    async with opened(url, OLD) as archive:
        await archive.save_session(call("one"), talk(ANN, "My scarecrow is Ferdinand."), as_of=NOW)
        await archive.save_session(call("his"), talk(BOB, "I have a boat."), as_of=NOW)
        await archive.add_fact(ANN, Fact(id="f1", text="Owns a scarecrow.", created=NOW))
    async with opened(url, NEW) as archive:
        assert await texts(archive) == []
        await archive.save_session(call("two"), talk(ANN, "I have a hen.", NOW - 50), as_of=NOW)
        await archive.add_fact(ANN, Fact(id="f2", text="Owns a hen.", created=NOW))
        lost = [name for name in await archive.list_users("acme") if name != ANN.user]
        assert len(lost) == 2
        assert not {*lost} & {ANN.user, BOB.user}
    async with opened(url, NEW, OLD) as archive:
        assert await texts(archive) == ["My scarecrow is Ferdinand.", "I have a hen."]
        assert sorted(fact.text for fact in await archive.facts(ANN, now=NOW)) == [
            "Owns a hen.",
            "Owns a scarecrow.",
        ]
        assert sorted(await archive.list_users("acme")) == [ANN.user, BOB.user]
        assert call("two").session in await found(archive, "hen")
        count = await archive.forget(ANN, at=NOW + 1)
        assert (count.turns, count.facts) == (4, 2)
        assert await archive.list_users("acme") == [BOB.user]
        assert await texts(archive, BOB) == ["I have a boat."]


async def test_a_file_that_is_replaced_under_a_running_server_gets_names_that_others_read(
    tmp_path: Path,
) -> None:
    url = f"sqlite:{tmp_path / 'a.db'}"
    async with opened(url, OLD) as archive:
        await check(archive)
        for path in tmp_path.glob("a.db*"):
            path.unlink()
        await archive.ping()
        await archive.save_session(call("two"), talk(ANN, "A new file.", NOW - 50), as_of=NOW)
        assert await texts(archive) == ["A new file."]
        async with opened(url, OLD) as other:
            assert await texts(other) == ["A new file."]
            assert await other.list_users("acme") == [ANN.user]
