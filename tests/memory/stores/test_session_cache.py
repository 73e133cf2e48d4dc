"""The session cache is never taken for the store's state, and a deletion empties it."""

import asyncio

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from filters.message import Message
from proxy.memory.errors import StoreError
from proxy.memory.merge.answer import Answer, apply_answer
from proxy.memory.session import Session, TurnRef, decode, encoded_lines
from proxy.memory.stores import codec
from proxy.memory.stores.drivers import open_store
from proxy.memory.stores.session_store import SessionStore, SessionWrite
from proxy.memory.stores.store import BlobWrite, Key, Store, StoredBlob
from proxy.memory.view import RequestView, prompt_view, read_session
from tests.memory.call import asked, reconcile
from tests.remembering import sessions

KEY = Key("default", "s1")
WORDS = st.sampled_from(["Hi", "Yes", "Book a table.", "For two."])


def memory() -> Store:
    return open_store("memory:", deadline=1, codec=codec.Plain())


class Remote:
    """A store that is waited for, and counts how often it was asked."""

    def __init__(self, store: Store) -> None:
        self.write, self.replace, self.aclose = store.write, store.replace, store.aclose
        self.delete, self.deleted = store.delete, store.deleted
        self.store, self.fails, self.sent, self.may_answer = store, False, asyncio.Event(), asyncio.Event()
        self.may_answer.set()

    async def read(self, key: Key, *, background: bool = False) -> StoredBlob | None:
        self.sent.set()
        await self.may_answer.wait()
        if self.fails:
            raise StoreError("away")
        return await self.store.read(key, background=background)


def talk(words: list[str]) -> list[Message]:
    return [Message(role="user", content=text, turn_id=i) for i, text in enumerate(words)]


def grown(words: list[str]) -> Session:
    session = Session()
    for i in range(len(words)):
        window = talk(words[: i + 1])
        session = reconcile(session, window, now=float(i))
        answer = Answer(question=asked(session, window), text=f"answer {i}", finished=True)
        session = apply_answer(session, answer, now=float(i))
    return session


async def written(store: SessionStore, session: Session) -> None:
    stored = await store.load(KEY)
    assert await store.save(KEY, SessionWrite(session, stored.version if stored else 0, ttl=60))


@settings(max_examples=60)
@given(
    st.lists(WORDS, min_size=1, max_size=5),
    st.none() | st.lists(WORDS, max_size=5),
    st.lists(WORDS, min_size=1, max_size=5),
    st.sampled_from([None, 0, 1, 3]),
)
def test_whatever_was_written_elsewhere_since_is_what_is_recalled(own, others, window, rounds):
    async def run():
        remote = Remote(memory())
        store = sessions(remote, rounds=rounds)
        await written(store, grown(own))
        if others is not None:
            elsewhere = sessions(remote)
            await written(elsewhere, grown(others)) if others else await remote.delete(KEY)
        held = await remote.read(KEY)
        sight = RequestView(talk(window))
        expected = sight.view_of(decode(held.blob), held.version) if held else sight.view_of(Session())
        read, told = await read_session(store, KEY, sight)
        assert read == expected
        assert told == prompt_view(expected)

    asyncio.run(run())


@pytest.mark.parametrize("rounds", [0, 3])
def test_the_question_is_on_its_way_before_the_window_is_laid_beside_what_was_written_last(
    monkeypatch, rounds: int
):
    sent = []

    async def run():
        remote = Remote(memory())
        store = sessions(remote, rounds=rounds)
        await written(store, grown(["Hi"]))
        remote.sent.clear()
        remote.may_answer.clear()
        asking = asyncio.create_task(read_session(store, KEY, RequestView(talk(["Hi", "Yes"]))))
        await remote.sent.wait()
        for _ in range(5):
            await asyncio.sleep(0)
        sent.append(len(lays))
        remote.may_answer.set()
        await asking

    lays, beside = [], RequestView.view_of
    monkeypatch.setattr(RequestView, "view_of", lambda *given: lays.append(given) or beside(*given))
    asyncio.run(run())
    assert sent == [1], "the window was laid while the store had not answered"
    assert len(lays) == 1, "and not once more"


@pytest.mark.parametrize("rounds", [0, 3])
@pytest.mark.parametrize("ends", ["fails", "cancelled"])
def test_a_question_that_is_given_up_leaves_nothing_behind(ends: str, rounds: int, caplog):
    async def run():
        remote = Remote(memory())
        store = sessions(remote, rounds=rounds)
        await written(store, grown(["Hi"]))
        remote.fails = ends == "fails"
        if ends == "cancelled":
            remote.may_answer.clear()
        asking = asyncio.create_task(read_session(store, KEY, RequestView(talk(["Hi"]))))
        await asyncio.sleep(0.01)
        asking.cancel()
        await asyncio.wait({asking})
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        if ends == "fails":
            assert isinstance(asking.exception(), StoreError)

    asyncio.run(run())
    assert not caplog.records


@pytest.mark.parametrize("way", ["delete", "replace", "aclose"])
def test_what_was_written_leaves_with_its_session(way: str):
    async def run():
        store = sessions(memory())
        await written(store, grown(["Hi"]))
        held = await store.read(KEY)
        assert held
        assert store.cached(KEY)
        if way == "delete":
            await store.delete(KEY)
        elif way == "replace":
            await store.replace(KEY, BlobWrite(held.blob, version=held.version, ttl=60, cold=()))
        else:
            await store.aclose()
        assert store.cached(KEY) is None

    asyncio.run(run())


def test_words_of_sessions_that_ended_elsewhere_are_let_go_of():
    async def run():
        store = sessions(memory(), cache_seconds=0.02)
        await written(store, grown(["Hi"]))
        assert store.cached(KEY)
        await asyncio.sleep(0.1)
        assert store.cached(KEY) is None
        await written(store, grown(["Hi", "Yes"]))  # and again, once it was empty
        assert store.cached(KEY)
        await asyncio.sleep(0.01)
        other = Key("default", "s2")  # of which the first look comes too early
        assert await store.save(other, SessionWrite(Session(), 0, ttl=60))
        await asyncio.sleep(0.1)
        assert store.cached(KEY) is None
        assert store.cached(other) is None

    asyncio.run(run())


def test_few_are_kept():
    async def run():
        store = sessions(memory())
        for i in range(300):
            await store.save(Key("default", f"s{i}"), SessionWrite(Session(), 0, ttl=60))
        assert sum(store.cached(Key("default", f"s{i}")) is not None for i in range(300)) == 256
        assert store.cached(Key("default", "s299"))
        await store.aclose()

    asyncio.run(run())


@pytest.mark.parametrize("changed", ["beside", "entries", "request"])
def test_what_the_latest_request_showed_is_known_while_others_leave_that_as_it_is(changed: str):
    async def run():
        remote = Remote(memory())
        store, elsewhere, session = sessions(remote), sessions(remote), grown(["Hi", "Yes"])
        shown = encoded_lines(talk(["Hi", "Yes"]))
        assert await store.save(KEY, SessionWrite(session, 0, ttl=60, latest_line_bytes=shown))
        assert (await store.load(KEY)).latest_line_bytes is shown
        stored = await elsewhere.load(KEY)
        assert not stored.latest_line_bytes
        latest = msgspec.structs.replace(session.latest_request, ended=7.0)
        changes = {
            "beside": {"noted_until": TurnRef(0, -1)},
            "entries": {"entries": session.entries[:-1]},
            "request": {"latest_request": latest},
        }
        other = msgspec.structs.replace(stored.session, **changes[changed])
        assert await elsewhere.save(KEY, SessionWrite(other, stored.version, ttl=60))
        loaded = await store.load(KEY)
        assert loaded.session == other
        assert loaded.latest_line_bytes == (shown if changed == "beside" else b"")

    asyncio.run(run())


@pytest.mark.anyio
async def test_a_session_that_has_expired_is_not_taken_for_lost() -> None:
    store = sessions(memory())
    assert await store.save(KEY, SessionWrite(grown(["Hi"]), 0, ttl=0.05))
    async with asyncio.timeout(10):
        while await store.load(KEY):  # noqa: ASYNC110 - nobody rings a bell
            await asyncio.sleep(0.01)
    assert not store.has_lost_write(KEY)


@pytest.mark.anyio
async def test_what_is_not_changed_is_not_written() -> None:
    store = sessions(memory())
    await written(store, grown(["Hi"]))
    before = await store.load(KEY)
    assert before is not None
    assert await store.change(KEY, lambda session: session) is before.session
    assert await store.load(KEY) is before


@pytest.mark.anyio
async def test_what_is_not_stored_is_not_changed() -> None:
    store = sessions(memory())
    assert (
        await store.change(KEY, lambda session: msgspec.structs.replace(session, state={"seats": 2})) is None
    )
    assert await store.load(KEY) is None


class Behind(Remote):
    """A store that returns the state before the last one on request."""

    shows_former = False
    former: StoredBlob | None = None

    async def read(self, key: Key, *, background: bool = False) -> StoredBlob | None:
        return self.former if self.shows_former else await self.store.read(key, background=background)


@pytest.mark.anyio
@pytest.mark.parametrize("is_empty", [False, True])
async def test_a_replica_that_is_several_writes_behind_takes_no_turn_away(is_empty: bool) -> None:
    driver = Behind(memory())
    store = sessions(driver)
    assert await store.save(KEY, SessionWrite(grown(["Hi"]), 0, 60))
    former = await driver.read(KEY)
    assert former is not None
    assert await store.save(KEY, SessionWrite(grown(["Hi", "Yes"]), former.version, 60))
    changed = await store.change(KEY, lambda session: msgspec.structs.replace(session, state={"seats": 2}))
    assert changed is not None
    driver.former, driver.shows_former = None if is_empty else former, True
    read = await store.load(KEY)
    assert read is not None
    assert (read.session, read.version) == (changed, 0 if is_empty else former.version)
