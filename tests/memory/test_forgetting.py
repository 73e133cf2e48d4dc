"""Forgetting a user removes all data that can be removed, and reports what could not be."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from proxy.memory.errors import StoreError, UnreadableSessions
from proxy.memory.privacy import PrivacyRegistry, SessionHolder
from proxy.memory.session import Entry, Session, encode
from proxy.memory.stores.codec import Plain
from proxy.memory.stores.drivers import open_store
from proxy.memory.stores.encryption import Encryption
from proxy.memory.stores.session_store import SessionStore
from proxy.memory.stores.store import BlobWrite, Key, Owner, Store
from proxy.memory.stores.volatile import VolatileStore
from tests.remembering import sessions

pytestmark = pytest.mark.anyio
BOB = Owner("acme", "bob")


class WriteConflict:
    """A store whose sessions others are always writing."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def replace(self, key: Key, put: BlobWrite) -> bool:
        return False


class Away:
    """A store that does not answer, but for its list."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def read(self, *_: object, **__: object) -> None:
        raise StoreError("away")


class Place:
    """A holding that counts, or fails."""

    def __init__(self, count: int, *, fails: bool = False) -> None:
        self.count, self.fails, self.scrubbed = count, fails, False

    async def export(self, _: Owner) -> Mapping[str, Sequence[Any]]:
        return {}

    async def forget(self, _: Owner, *, at: float) -> Mapping[str, int]:
        if self.fails:
            raise StoreError("away")
        count, self.count = self.count, 0
        return {"facts": count}

    async def forget_session(self, _: Key, *, at: float) -> Mapping[str, int]:
        return await self.forget(BOB, at=at)

    async def scrub(self) -> None:
        self.scrubbed = True


@pytest.mark.parametrize("first", [True, False])
async def test_what_may_be_over_later_is_told_before_what_will_not(first: bool) -> None:
    bare = VolatileStore()
    store, lost = (SessionStore(bare, Encryption([letter * 32])) for letter in (b"n", b"o"))
    await put(lost, "a", encode(Session()))
    places = [SessionHolder(store), Place(1, fails=True)]
    with pytest.raises(StoreError, match="away"):
        await PrivacyRegistry(places if first else places[::-1]).forget(BOB)


def memory() -> Store:
    return open_store("memory:", deadline=1, codec=Plain())


def an_entry(text: str, user: str) -> Entry:
    return Entry(role="user", turn=0, content=text, user=user)


async def put(store: Store, name: str, blob: bytes) -> None:
    assert await store.write(Key("acme", name), BlobWrite(blob, version=0, ttl=60))


async def names(store: Store) -> list[str]:
    return [line.session for line in await store.list("acme")]


@pytest.mark.parametrize("lost", ["key", "kind"])
async def test_a_session_that_cannot_be_read_holds_up_no_other(lost: str) -> None:
    bare = VolatileStore()
    store = SessionStore(bare, Encryption([b"n" * 32]))
    other = SessionStore(bare, Encryption([b"o" * 32]))
    await put(*((other, "a", encode(Session())) if lost == "key" else (store, "a", b"no session")))
    await put(store, "b", encode(Session(user="bob", entries=(an_entry("4711", "bob"),))))
    held = SessionHolder(store)
    told = await held.export(BOB)
    assert [one["id"] for one in told["sessions"]] == ["b"]
    (unreadable,) = told["unreadable_sessions"]
    # Without the key, a name is as encrypted as the words.
    assert (unreadable == "a") == (lost == "kind")
    with pytest.raises(UnreadableSessions, match="1 session cannot be read") as fault:
        await held.forget(BOB, at=0)
    assert fault.value.sessions == (unreadable,)
    assert await names(store) == [unreadable]
    assert await store.delete(Key("acme", unreadable))
    assert await names(store) == []


async def test_words_that_cannot_be_taken_out_are_not_said_to_be_gone() -> None:
    store = sessions(WriteConflict(memory()))
    await put(store, "a", encode(Session(user="ann", entries=(an_entry("4711", "bob"),))))
    await put(store, "b", encode(Session(user="bob")))
    with pytest.raises(StoreError, match="other requests are writing"):
        await SessionHolder(store).forget(BOB, at=0)
    assert await names(store) == ["a"]


async def test_who_is_forgotten_keeps_no_session_of_another_for_longer() -> None:
    store = memory()
    session = Session(user="ann", entries=(an_entry("4711", "bob"), an_entry("Hello.", "ann")))
    await store.write(Key("acme", "a"), BlobWrite(encode(session), version=0, ttl=0.5))
    assert await SessionHolder(store).forget(BOB, at=0) == {"sessions": 1}
    assert await names(store) == ["a"]
    await asyncio.sleep(0.6)
    assert await names(store) == []


@pytest.mark.parametrize("way", ["exported", "forget"])
async def test_others_have_their_turn_after_each_session(way: str) -> None:
    store = memory()
    for number in range(50):
        await put(store, str(number), encode(Session(user="ann", entries=(an_entry("Hello.", "ann"),))))
    steps, done = 0, False

    async def others() -> None:
        nonlocal steps
        while not done:
            steps += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    await (SessionHolder(store).export(BOB) if way == "exported" else SessionHolder(store).forget(BOB, at=0))
    done = True
    await beside
    assert steps >= 50


async def test_an_export_from_a_store_that_is_away_is_none() -> None:
    store = memory()
    await put(store, "b", encode(Session(user="bob")))
    with pytest.raises(StoreError, match="away"):
        await SessionHolder(sessions(Away(store))).export(BOB)


@pytest.mark.parametrize("whole", [True, False])
async def test_a_place_that_fails_holds_up_no_other(whole: bool) -> None:
    first, last = Place(1, fails=True), Place(2)
    people = PrivacyRegistry([first, last])
    with pytest.raises(StoreError, match="away"):
        await (people.forget(BOB) if whole else people.forget_session("acme", "a"))
    assert (last.count, last.scrubbed) == (0, True)
