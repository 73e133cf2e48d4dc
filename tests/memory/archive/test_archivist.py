"""Sessions that are due reach the archive, whatever happens to it, and no call waits for that."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from proxy.circuit import Backoff
from proxy.memory.archive import archivist as archivist_
from proxy.memory.archive.archive import Archive, open_archive
from proxy.memory.archive.archivist import Archivist
from proxy.memory.archive.recall import RecallReader, Retriever
from proxy.memory.archive.records import Fact, Query
from proxy.memory.archive.sql import fetch_value
from proxy.memory.errors import StoreError
from proxy.memory.session import Entry, Session, encode
from proxy.memory.stores.codec import Plain
from proxy.memory.stores.drivers import open_store
from proxy.memory.stores.encryption import Encryption
from proxy.memory.stores.session_store import SessionStore
from proxy.memory.stores.sql import Statement
from proxy.memory.stores.store import BlobWrite, Key, Owner, Store

pytestmark = pytest.mark.anyio
KEY, ANN = Key("acme", "call"), Owner("acme", "ann")


class Broken:
    """An archive that fails or waits until further notice."""

    def __init__(self, archive: Archive) -> None:
        self.archive, self.failing, self.wait, self.tries = archive, True, 0.0, 0

    def __getattr__(self, name: str):
        return getattr(self.archive, name)

    async def save_sessions(self, sessions: Sequence[tuple[Key, Session, float]]) -> list[int]:
        self.tries += 1
        if self.failing:
            raise StoreError("away")
        return await self.archive.save_sessions(sessions)

    async def search(self, person: Owner, query: Query):
        self.tries += 1
        await asyncio.sleep(self.wait)
        return await self.archive.search(person, query)


@pytest.fixture
async def archive(tmp_path: Path):
    opened = open_archive(f"sqlite:{tmp_path / 'a.db'}", codec=Plain())
    yield opened
    await opened.aclose()


@pytest.fixture
def store() -> Store:
    return open_store("memory:", deadline=1, codec=Plain())


def session(*texts: str, moved: int = 0) -> Session:
    now = time.time()
    entries = tuple(
        Entry(role="user", turn=moved + i, content=t, recorded_at=now) for i, t in enumerate(texts)
    )
    return Session(entries=entries, user="ann", created=5.0, cold_count=moved)


async def put(store: Store, session: Session, *listeners: Archivist, key: Key = KEY) -> None:
    """Writes a session, and enqueues it at these archivists."""
    held = await store.read(key)
    assert await store.write(key, BlobWrite(encode(session), version=held.version if held else 0, ttl=60))
    for archivist in listeners:
        archivist.enqueue(key)


async def kept(archive: Archive) -> list[str]:
    return [turn.entry.text for turn in await archive.session_turns(KEY)]


async def test_the_newest_state_of_a_session_is_kept(store: Store, archive: Archive):
    archivist = Archivist(store, archive, ["acme"], keep=0, quiet=0)
    archivist.start()
    for texts in (["a"], ["a", "b"], ["a", "c"]):
        await put(store, session(*texts), archivist)
    await archivist.idle()
    await archivist.aclose()
    assert await kept(archive) == ["a", "c"]


async def test_what_could_not_be_kept_is_kept_when_the_archive_is_back(store: Store, archive: Archive):
    broken = Broken(archive)
    archivist = Archivist(store, broken, ["acme"], keep=0, quiet=0)
    archivist.start()
    await put(store, session("a"), archivist)
    async with asyncio.timeout(10):
        while broken.tries < 2:  # noqa: ASYNC110 - it tries when it likes
            await asyncio.sleep(0.02)
    assert archivist.failing
    broken.failing = False
    await archivist.idle()
    async with asyncio.timeout(10):
        while archivist.failing:  # noqa: ASYNC110 - it has swept when it likes
            await asyncio.sleep(0.02)
    await archivist.aclose()
    assert await kept(archive) == ["a"]


async def test_what_an_archive_is_behind_with_waits_in_the_store(store: Store, archive: Archive):
    keys = [Key("acme", f"call-{number}") for number in range(40)]
    broken = Broken(archive)
    archivist = Archivist(store, broken, ["acme"], keep=0, quiet=0)
    archivist.start()
    await archivist.idle()
    for key in keys:
        await put(store, session(key.session), archivist, key=key)
    assert len(unsaved(archivist)) == len(keys)
    deleted, unreadable = keys[20], keys[21]
    await store.delete(deleted)
    held = await store.read(unreadable)
    assert held
    await store.write(unreadable, BlobWrite(b"no session", version=held.version, ttl=60))
    broken.failing = False
    await archivist.idle()
    await archivist.aclose()
    saved = {key: [turn.entry.text for turn in await archive.session_turns(key)] for key in keys}
    assert saved == {key: [] if key in (deleted, unreadable) else [key.session] for key in keys}


def talk(turns: int, *, updated: float, edited: str = "") -> Session:
    """A session of so many turns, which two processes share."""
    words = [edited or "0", *map(str, range(1, turns))]
    said = tuple(Entry(role="user", turn=i, content=each, recorded_at=8.0) for i, each in enumerate(words))
    return Session(entries=said, next_turn=turns, user="ann", created=5.0, updated=updated)


def unsaved(archivist: Archivist) -> list[str]:
    """The sessions that are still to be saved."""
    return [key.session for key in (*archivist.progress.pending, *archivist._saving)]


class Two:
    """Two processes that share the sessions and the archive, each cut off from the archive at first."""

    def __init__(self, store: Store, archive: Archive) -> None:
        self.ways = Broken(archive), Broken(archive)
        self.both = [Archivist(store, way, ["acme"], keep=0, quiet=0) for way in self.ways]

    async def start(self) -> None:
        """Starts both archivists, and waits until they have compared store and archive."""
        for archivist in self.both:
            archivist.start()
            await archivist.idle()

    async def refused(self, number: int) -> None:
        """Waits until an archivist has tried once more in vain."""
        tries = self.ways[number].tries
        async with asyncio.timeout(15):
            while self.ways[number].tries == tries:  # noqa: ASYNC110 - it tries when it likes
                await asyncio.sleep(0.01)

    async def back(self, number: int) -> None:
        """The archive is back for one of them, and has what that one was told."""
        self.ways[number].failing = False
        async with asyncio.timeout(15):
            while unsaved(self.both[number]):  # noqa: ASYNC110 - it keeps when it likes
                await asyncio.sleep(0.01)


@pytest.fixture
async def two(store: Store, archive: Archive):
    processes = Two(store, archive)
    await processes.start()
    yield processes
    for archivist in processes.both:
        await archivist.aclose()


async def test_what_another_process_kept_meanwhile_stays(two: Two, store: Store, archive: Archive):
    await put(store, talk(5, updated=15.0), two.both[0])
    await two.refused(0)
    await put(store, talk(8, updated=18.0), two.both[1])
    await two.back(1)
    await two.back(0)
    assert await kept(archive) == [*"01234567"]


async def test_what_was_edited_elsewhere_meanwhile_stays_edited(two: Two, store: Store, archive: Archive):
    before, after = talk(3, updated=15.0), talk(3, updated=15.0, edited="zero")
    await put(store, before, two.both[0])
    await two.refused(0)
    await put(store, after, two.both[1])
    await two.back(1)
    await two.back(0)
    assert await kept(archive) == ["zero", "1", "2"]


async def test_what_moved_out_of_a_session_made_anew_is_no_part_of_the_old_one(
    two: Two, store: Store, archive: Archive
):
    old = talk(1, updated=15.0)
    await put(store, old, two.both[1])
    await two.back(1)
    await put(store, msgspec.structs.replace(old, cold_count=2), two.both[0])
    await two.refused(0)
    await store.delete(KEY)
    anew = msgspec.structs.replace(session("c", moved=2), created=50.0, updated=60.0)
    cold = [msgspec.msgpack.encode(entry) for entry in session("a", "b").entries]
    await store.write(KEY, BlobWrite(encode(anew), version=0, ttl=60, cold=cold))
    await two.back(0)
    assert [one.entry.text for one in await archive.session_turns(KEY) if one.created == old.created] == ["0"]
    assert await kept(archive) == ["0", "a", "b", "c"]


async def test_an_archive_that_is_away_holds_up_no_shutdown(store: Store, archive: Archive):
    archivist = Archivist(store, Broken(archive), ["acme"], keep=0, quiet=0)
    archivist.start()
    await put(store, session("a"), archivist)
    began = time.monotonic()
    await archivist.aclose()
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("steps", range(10))
async def test_what_is_due_is_kept_at_whatever_step_the_end_comes(store: Store, archive: Archive, steps: int):
    archivist = Archivist(store, archive, ["acme"], keep=0, quiet=0)
    archivist.start()
    await archivist.idle()
    await put(store, session("a"), archivist)
    for _ in range(steps):
        await asyncio.sleep(0)
    await archivist.aclose()
    assert await kept(archive) == ["a"]


async def test_what_nobody_told_is_found_at_the_start_with_what_moved_out(store: Store, archive: Archive):
    cold = [msgspec.msgpack.encode(entry) for entry in session("a", "b").entries]
    await store.write(KEY, BlobWrite(encode(session("c", moved=2)), version=0, ttl=60, cold=cold))
    archivist = Archivist(store, archive, ["acme"], keep=0, quiet=0)
    archivist.start()
    await archivist.idle()
    await archivist.aclose()
    assert await kept(archive) == ["a", "b", "c"]


async def test_what_a_server_left_that_ended_after_the_start_is_found(
    store: Store, archive: Archive, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(archivist_, "_SECOND_COMPARISON", 0.3)
    archivist = Archivist(store, archive, ["acme"], keep=0, quiet=0)
    archivist.start()
    await archivist.idle()
    await store.write(KEY, BlobWrite(encode(session("a", "b")), version=0, ttl=60))
    async with asyncio.timeout(10):
        while not await kept(archive):  # noqa: ASYNC110 - it looks when it likes
            await asyncio.sleep(0.02)
    await archivist.aclose()
    assert await kept(archive) == ["a", "b"]


def turn(number: int, *roles: str) -> list[Entry]:
    return [
        Entry(role=role, turn=number, content=f"{number}.{i}", recorded_at=time.time())
        for i, role in enumerate(roles)
    ]


LOOKED_UP = ("user", "assistant", "tool", "assistant")


async def moved_out(store: Store, moved: list[Entry], hot: list[Entry], *, updated: float = 0.0) -> None:
    """A session with these entries, of which the first have moved to the cold part."""
    held = msgspec.structs.replace(session(), entries=tuple(hot), cold_count=len(moved), updated=updated)
    cold = [msgspec.msgpack.encode(entry) for entry in moved]
    former = await store.read(KEY)
    write = BlobWrite(encode(held), version=former.version if former else 0, ttl=60, cold=cold)
    assert await store.write(KEY, write)


@pytest.mark.parametrize("length", [4, 250])
@pytest.mark.parametrize("before", range(96, 101))
async def test_a_turn_that_pages_part_is_kept_whole(store: Store, archive: Archive, before: int, length: int):
    early = [entry for number in range(before) for entry in turn(number, "user")]
    looked_up = turn(before, *(LOOKED_UP[i % 4] for i in range(length)))
    hot = turn(before + 1, "user")
    await moved_out(store, [*early, *looked_up], hot)
    archivist = Archivist(store, archive, ["acme"], keep=0, quiet=0)
    archivist.start()
    await archivist.idle()
    await archivist.aclose()
    assert await kept(archive) == [entry.text for entry in (*early, *looked_up, *hot)]


async def test_a_turn_that_was_kept_in_part_before_it_moved_is_kept_whole(store: Store, archive: Archive):
    looked_up, hot = turn(0, *LOOKED_UP), turn(1, "user")
    begun = msgspec.structs.replace(session(), entries=tuple(looked_up[:2]))
    await archive.save_session(KEY, begun, as_of=0.0)
    await moved_out(store, looked_up, hot)
    archivist = Archivist(store, archive, ["acme"], keep=0, quiet=0)
    archivist.start()
    await archivist.idle()
    await archivist.aclose()
    assert await kept(archive) == [entry.text for entry in (*looked_up, *hot)]


@pytest.mark.parametrize("ended", [False, True], ids=["the same process", "another process"])
async def test_what_was_put_right_before_it_moved_out_is_put_right(
    store: Store, archive: Archive, ended: bool
):
    """An archive that was away knew turns as they were before the engine showed what was heard of them."""
    said = [entry for number in range(6) for entry in turn(number, "user", "assistant")]
    archivist = Archivist(store, archive, ["acme"], keep=0, quiet=0)
    archivist.start()
    await put(store, msgspec.structs.replace(session(), entries=tuple(said[:8]), updated=8.0), archivist)
    await archivist.idle()
    cut = msgspec.structs.replace(said[3], content="cut", original=said[3].content)
    moved = [*said[:3], cut, *said[6:10]]  # turn 2 was taken back
    if ended:
        await archivist.aclose()
        archivist = Archivist(store, archive, ["acme"], keep=0, quiet=0)
        archivist.start()
        await archivist.idle()
    await moved_out(store, moved, said[10:], updated=9.0)
    archivist.enqueue(KEY)
    await archivist.idle()
    await archivist.aclose()
    assert await kept(archive) == [entry.text for entry in (*moved, *said[10:])]


def under(store: Store, *keys: int) -> Store:
    """The same store, whose bytes are encrypted with the first of some keys."""
    return SessionStore(store, Encryption([bytes([key]) * 32 for key in keys]))


async def add(store: Store, key: Key, hot: Session, cold: list[Entry], *, version: int = 0) -> None:
    moved = [msgspec.msgpack.encode(entry) for entry in cold]
    assert await store.write(key, BlobWrite(encode(hot), version=version, ttl=60, cold=moved))


async def moved_under_two_keys(store: Store, key: Key, old: list[Entry], new: list[Entry], hot: Session):
    """A session of which some has moved before its key was changed, and some since."""
    await add(under(store, 1), key, session(), old)
    both = under(store, 2, 1)
    held = await both.read(key)
    assert held is not None
    await add(both, key, hot, new, version=held.version)


async def test_a_session_that_cannot_be_read_in_part_holds_up_no_other(store: Store, archive: Archive):
    bad = Key("acme", "bad")
    hot = session("c", moved=2)
    await moved_under_two_keys(store, bad, [*session("a", "b").entries], [], hot)
    await add(under(store, 2), KEY, session("a"), [])
    archivist = Archivist(under(store, 2), archive, ["acme"], keep=0, quiet=0)
    archivist.start()
    async with asyncio.timeout(3):
        await archivist.idle()
        archivist.enqueue(bad)
        await put(under(store, 2), session("a", "b"), archivist)
        await archivist.idle()
    assert not archivist.failing
    await archivist.aclose()
    assert await kept(archive) == ["a", "b"]
    assert [one.entry.text for one in await archive.session_turns(bad)] == ["c"]


async def test_a_turn_behind_what_cannot_be_read_is_kept_whole(store: Store, archive: Archive):
    old = [entry for number in range(5) for entry in turn(number, "user")]
    looked_up, last = turn(5, *LOOKED_UP), turn(6, "user")
    begun = msgspec.structs.replace(session(), entries=tuple(looked_up[:2]), cold_count=5)
    await archive.save_session(KEY, begun, as_of=0.0)
    hot = msgspec.structs.replace(session(), entries=tuple(last), cold_count=9)
    await moved_under_two_keys(store, KEY, old, looked_up, hot)
    archivist = Archivist(under(store, 2), archive, ["acme"], keep=0, quiet=0)
    archivist.start()
    async with asyncio.timeout(3):
        await archivist.idle()
    await archivist.aclose()
    assert await kept(archive) == [entry.text for entry in (*looked_up, *last)]


async def test_what_is_older_than_it_may_be_is_swept(store: Store, archive: Archive):
    old = Entry(role="user", turn=0, content="old", recorded_at=time.time() - 1000)
    await archive.save_session(KEY, msgspec.structs.replace(session("new"), entries=(old,)), as_of=0.0)
    archivist = Archivist(store, archive, ["acme"], keep=500)
    archivist.start()
    while await kept(archive):  # noqa: ASYNC110 - it sweeps when it likes
        await asyncio.sleep(0.01)
    await archivist.aclose()


@pytest.mark.parametrize("keep", [0, 500])
async def test_facts_go_when_they_expire_however_long_turns_are_kept(
    store: Store, archive: Archive, keep: float
):
    await archive.save_session(KEY, session("a"), as_of=0.0)
    now = time.time()
    for name, expires in ("old", now - 1), ("new", now + 60):
        await archive.add_fact(ANN, Fact(id=name, text=name, created=now - 9, expires=expires))
    archivist = Archivist(store, archive, ["acme"], keep=keep)
    archivist.start()
    async with asyncio.timeout(3):
        while len(await archive.facts(ANN, now=0.0)) > 1:  # noqa: ASYNC110 - it sweeps when it likes
            await asyncio.sleep(0.01)
    await archivist.aclose()
    assert await kept(archive) == ["a"]


async def test_what_an_older_version_indexed_is_indexed_anew(store: Store, archive: Archive):
    await archive.save_session(KEY, session("नमस्ते"), as_of=1.0)
    aged = Statement("UPDATE turnkeeper_passages SET terms = 'x', lexicon = 0 RETURNING id")
    await archive._database.write(lambda: fetch_value(aged, {}))
    archivist = Archivist(store, archive, ["acme"], keep=0)
    archivist.start()
    async with asyncio.timeout(3):
        while not await archive.search(ANN, Query(text="नमस्ते", now=1.0)):  # noqa: ASYNC110 - as it likes
            await asyncio.sleep(0.01)
    await archivist.aclose()


async def test_a_session_waits_until_it_is_kept(store: Store, archive: Archive):
    slow = Slow(archive)
    archivist = Archivist(store, slow, ["acme"], keep=0, quiet=0)
    archivist.start()
    await put(store, session("a"), archivist)
    assert unsaved(archivist) == ["call"]
    await slow.keeping.wait()
    assert unsaved(archivist) == ["call"]
    slow.may.set()
    async with asyncio.timeout(3):
        while unsaved(archivist):  # noqa: ASYNC110 - it works when it likes
            await asyncio.sleep(0.01)
    assert await kept(archive) == ["a"]
    await archivist.aclose()


class Slow(Broken):
    """An archive that keeps a session once it may."""

    def __init__(self, archive: Archive) -> None:
        super().__init__(archive)
        self.keeping, self.may = asyncio.Event(), asyncio.Event()

    async def save_sessions(self, sessions: Sequence[tuple[Key, Session, float]]) -> list[int]:
        self.keeping.set()
        await self.may.wait()
        return await self.archive.save_sessions(sessions)


class Endless(Broken):
    """An archive in which ever more has expired."""

    expired = 0

    async def expire(self, *, now: float) -> int:
        self.expired += 1
        return await self.archive.expire(now=now) + 1


async def test_what_is_due_waits_for_no_facts_that_have_expired(store: Store, archive: Archive):
    endless = Endless(archive)
    endless.failing = False
    await store.write(KEY, BlobWrite(encode(session("a")), version=0, ttl=60))
    archivist = Archivist(store, endless, ["acme"], keep=0, quiet=0)
    archivist.start()
    async with asyncio.timeout(5):
        await archivist.idle()
        assert await kept(archive) == ["a"]
        while endless.expired < 2:  # noqa: ASYNC110 - it begins when it likes
            await asyncio.sleep(0.01)
        await put(store, session("a", "b"), archivist)
        await archivist.idle()
    await archivist.aclose()
    assert await kept(archive) == ["a", "b"]


async def test_a_slow_archive_costs_the_deadline_three_times_and_is_then_left_alone(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("proxy.memory.archive.recall._ARCHIVE_PAUSE", Backoff(60, 60))
    broken = Broken(archive)
    broken.wait = 5.0
    passages = RecallReader(Retriever(broken), deadline=0.05)
    for _ in range(9):
        began = time.monotonic()
        with pytest.raises(StoreError):
            await passages.search(ANN, "dog", now=1.0, limit=5)
        assert time.monotonic() - began < 2
    assert broken.tries == 3


async def test_a_session_is_kept_once_it_is_quiet(store: Store, archive: Archive):
    archivist = Archivist(store, archive, ["acme"], keep=0, quiet=2)
    archivist.start()
    await archivist.idle()
    for number in range(5):
        await put(store, session(*"abcde"[: number + 1]), archivist)
        await asyncio.sleep(0.1)
        assert not await kept(archive)
    async with asyncio.timeout(15):
        while await kept(archive) != [*"abcde"]:  # noqa: ASYNC110 - it keeps when it likes
            await asyncio.sleep(0.02)
    await archivist.aclose()


async def test_a_session_that_is_never_quiet_is_kept_all_the_same(
    store: Store, archive: Archive, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("proxy.memory.archive.archivist._LONGEST_DUE", 0.5)
    archivist = Archivist(store, archive, ["acme"], keep=0, quiet=0.2)
    archivist.start()
    await archivist.idle()
    async with asyncio.timeout(15):
        while not await kept(archive):
            await put(store, session("a"), archivist)
            await asyncio.sleep(0.05)
    await archivist.aclose()


async def test_one_session_that_fails_holds_up_no_other(store: Store, archive: Archive):
    class Picky(Broken):
        async def save_sessions(self, sessions: Sequence[tuple[Key, Session, float]]) -> list[int]:
            if "bad" in [key.session for key, *_ in sessions]:
                raise StoreError("away")
            return await self.archive.save_sessions(sessions)

    archivist = Archivist(store, Picky(archive), ["acme"], keep=0, quiet=0)
    archivist.start()
    await put(store, session("x"), archivist, key=Key("acme", "bad"))
    await put(store, session("a"), archivist)
    async with asyncio.timeout(15):
        while await kept(archive) != ["a"]:  # noqa: ASYNC110 - it keeps when it likes
            await asyncio.sleep(0.02)
    await archivist.aclose()


@pytest.mark.parametrize(
    "blob", [b"\xc1", b"", b"\x81\xa4user\xa1\xff", b"\x81\xa5state" + b"\x81\xa1a" * 2000]
)
async def test_a_session_that_cannot_be_read_holds_up_no_other(store: Store, archive: Archive, blob: bytes):
    await store.write(Key("acme", "bad"), BlobWrite(blob, version=0, ttl=60))
    await store.write(KEY, BlobWrite(encode(session("a")), version=0, ttl=60))
    archivist = Archivist(store, archive, ["acme"], keep=0, quiet=0)
    archivist.start()
    async with asyncio.timeout(3):
        await archivist.idle()
    assert await kept(archive) == ["a"]
    await put(store, session("a", "b"), archivist)
    async with asyncio.timeout(3):
        await archivist.idle()
    await archivist.aclose()
    assert await kept(archive) == ["a", "b"]
