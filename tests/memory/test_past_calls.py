"""The stored last calls of a user: how many, for how long, and what a lost key does to them."""

import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from proxy.memory.errors import SessionDeleted, Unreadable
from proxy.memory.facts.fact_values import FactValues
from proxy.memory.past_calls import PastCall, PastCalls, UserRecord
from proxy.memory.session import Entry, Session
from proxy.memory.stores.drivers import open_driver
from proxy.memory.stores.encryption import Encryption
from proxy.memory.stores.session_store import NOT_STORED, SessionStore, SessionWrite
from proxy.memory.stores.store import BlobWrite, Key, Owner
from proxy.memory.view import RequestView

pytestmark = pytest.mark.anyio
ANN, BOB = Owner("acme", "ann"), Owner("acme", "bob")
NOW = time.time()


def call(session: str, at: float = NOW, messages: int = 6, **more: object) -> PastCall:
    fields = {"lines": (f"notes: {session}",), "over": True, "speakers": ("ann",), **more}
    return PastCall(session=session, created=1.0, call=0, at=at, messages=messages, **fields)  # type: ignore[arg-type]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SessionStore]:
    store = SessionStore(open_driver(f"sqlite:{tmp_path / 'm.db'}", deadline=2.0), Encryption([bytes(32)]))
    yield store
    await store.aclose()


async def last_call_lines(calls: PastCalls, user: Owner = ANN) -> tuple[str, ...]:
    view = RequestView(()).view_of(Session(created=2.0))
    shown = await calls.shown_call(user, view, "new", remembers=True)
    return shown.last_call.lines if shown.last_call else ()


def test_of_more_than_four_calls_the_short_and_the_old_ones_go() -> None:
    record = UserRecord()
    for number, messages in enumerate((6, 2, 6, 6, 6, 2)):
        record = record.with_call(call(f"s{number}", NOW + number, messages))
    assert [one.session for one in record.calls] == ["s2", "s3", "s4", "s5"]
    assert record.with_call(call("s3", NOW + 9)).calls[-1].session == "s3"
    assert len(record.with_call(call("s3", NOW + 9)).calls) == 4


def test_notes_on_a_call_stay_unless_it_goes_on() -> None:
    lines = {"lines": ("user: Hi.",), "over": False}
    record = UserRecord().with_call(call("s1", turn=3))
    assert record.with_call(call("s1", turn=3, **lines)) == record
    assert record.with_call(call("s1", turn=4, **lines)).calls[0].lines == ("user: Hi.",)


async def test_the_newest_call_that_is_not_short_is_told_else_the_newest(store: SessionStore) -> None:
    calls = PastCalls(store)
    await calls.save(ANN, call("short", NOW - 9, 2), at=NOW)
    assert await last_call_lines(calls) == ("notes: short",)
    await calls.save(ANN, call("shortly", NOW - 8.5, 2), at=NOW)
    assert await last_call_lines(calls) == ("notes: shortly",)
    await calls.save(ANN, call("long", NOW - 8), at=NOW)
    await calls.save(ANN, call("hello", NOW - 7, 2), at=NOW)
    assert await last_call_lines(calls) == ("notes: long",)
    assert await last_call_lines(calls, BOB) == ()


async def test_the_lines_of_a_long_call_hold_up_no_other(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    lines_of = PastCall.with_lines_of

    def noting(self: PastCall, session: Session) -> PastCall:
        threads.append(threading.current_thread())
        return lines_of(self, session)

    monkeypatch.setattr(PastCall, "with_lines_of", noting)
    entries = tuple(Entry(role="user", turn=turn, content="Hello.", user="ann") for turn in range(10_000))
    session = Session(entries=entries, created=1.0, updated=NOW)
    await store.save(Key("acme", "long"), SessionWrite(session, NOT_STORED.version, 60.0))
    calls = PastCalls(store)
    await calls.save(ANN, call("long", over=False), at=NOW)
    assert await last_call_lines(calls)
    assert threads
    assert threading.main_thread() not in threads


async def test_calls_are_kept_for_a_while_and_profiles_until_they_are_removed(store: SessionStore) -> None:
    calls = PastCalls(store, keep=60.0)
    await calls.set_profile(ANN, "Gold member", at=NOW)
    await calls.save(ANN, call("old", NOW - 61), at=NOW - 59)
    assert await last_call_lines(calls) == ()
    await calls.save(ANN, call("new", NOW), at=NOW)
    record = await calls.record(ANN)
    assert ([one.session for one in record.calls], record.profile) == (["new"], "Gold member")


async def test_what_was_said_before_an_erasure_is_not_listed_after_it(store: SessionStore) -> None:
    calls, began = PastCalls(store), time.time() - 1
    await calls.save(ANN, call("first"), at=began)
    (listed,) = await store.list("acme/users")
    assert "ann" not in listed.session  # nor in what is left of it
    await calls.forget(ANN, at=time.time())
    with pytest.raises(SessionDeleted):
        await calls.save(ANN, call("late"), at=began)
    assert await last_call_lines(calls) == ()


async def test_a_call_is_not_listed_once_one_who_spoke_in_it_is_erased(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, write = PastCalls(store), store.write

    async def erasing(key: Key, put: BlobWrite) -> bool:
        written = await write(key, put)
        if key.tenant == "acme/users":
            await calls.erase(BOB)
        return written

    monkeypatch.setattr(store, "write", erasing)
    for _ in ("erased while it is saved", "erased before"):
        with pytest.raises(SessionDeleted):
            await calls.save(ANN, call("room", speakers=("ann", "bob")), at=NOW)
        assert (await calls.record(ANN)).calls == ()
    await calls.save(ANN, call("room", speakers=("ann", "bob")), at=time.time() + 1)
    assert len((await calls.record(ANN)).calls) == 1


async def test_without_its_key_all_is_forgotten_all_the_same(store: SessionStore, tmp_path: Path) -> None:
    await PastCalls(store).save(ANN, call("secret", speakers=("ann", "bob")), at=NOW)
    other = SessionStore(open_driver(f"sqlite:{tmp_path / 'm.db'}", deadline=2.0), Encryption([b"1" * 32]))
    calls, facts = PastCalls(other), FactValues(other)
    with pytest.raises(Unreadable):
        await calls.record(ANN)
    assert await calls.export(ANN) == {"unreadable": ["calls"]}
    await calls.forget(BOB, at=time.time())
    assert await other.list("acme/users") == []
    assert await facts.forget(BOB, at=time.time()) == {"facts": 0}
    await calls.forget_session(Key("acme", "secret"), at=time.time())
    await other.aclose()


async def test_an_erasure_is_found_after_a_change_of_keys_and_with_a_lost_key_turns_go_on(
    store: SessionStore, tmp_path: Path
) -> None:
    async def erased(*keys: bytes) -> list[Owner]:
        other = SessionStore(open_driver(f"sqlite:{tmp_path / 'm.db'}", deadline=2.0), Encryption(keys))
        calls = PastCalls(other)
        try:
            await calls.record(BOB)  # a call may have read the key first
            return [*await calls.erased_since([ANN, BOB], NOW - 1)]
        except Unreadable:
            return [*await calls.erased_since([ANN, BOB], NOW - 1)]
        finally:
            await other.aclose()

    await PastCalls(store).forget(ANN, at=NOW)
    assert await erased(b"n" * 32) == []
    assert await erased(b"n" * 32, bytes(32)) == [ANN]
    assert await erased(b"n" * 32) == [ANN]
    assert await erased(bytes(32)) == []
