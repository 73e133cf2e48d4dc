"""Turns are written in order, again until they are, and none holds up another."""

import asyncio
import gc
import itertools
import time
import weakref
from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

from filters.message import Message
from proxy.memory.align.strategies import align
from proxy.memory.compaction import SessionLimits
from proxy.memory.errors import StoreError, Unreadable
from proxy.memory.recorder import HealthCheck, Recorder, Writer
from proxy.memory.session import Session, decode
from proxy.memory.stores import codec
from proxy.memory.stores.drivers import open_store
from proxy.memory.stores.session_store import SessionStore, StoredSession
from proxy.memory.stores.store import BlobWrite, Key, Owner, Store
from proxy.memory.turn_record import TurnRecord
from proxy.memory.view import RequestView
from tests import hurried_loop
from tests.peers.fake_upstream import stream_of
from tests.remembering import sessions

KEY = Key("default", "s1")


def a_turn(number: int, key: Key = KEY, answer: bytes | None = None) -> TurnRecord:
    window = [Message(role="user", content=f"question {number}", turn_id=number, timestamp=number + 1)]
    return TurnRecord(
        key=key, window=window, answer=answer or stream_of(f"answer {number}"), at=float(number)
    )


class Sick:
    """A store that fails a given number of times."""

    def __init__(self, store: Store, failures: int) -> None:
        self.store, self.failures = store, failures
        self.at_once = self.most_at_once = 0

    async def read(self, key: Key, *, background: bool = False) -> Any:
        return await self.store.read(key, background=background)

    async def deleted(self, key: Key) -> float | None:
        return await self.store.deleted(key)

    async def write(self, key: Key, put: BlobWrite) -> bool:
        if self.failures:
            self.failures -= 1
            raise StoreError("full")
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        return await self.store.write(key, put)


async def texts(store: Store, key: Key = KEY) -> list[Any]:
    held = await store.read(key)
    return [entry.content for entry in decode(held.blob).entries] if held else []


def memory() -> Store:
    return open_store("memory:", deadline=1, codec=codec.Plain())


def test_turns_are_written_in_their_order() -> None:
    async def run() -> list[Any]:
        store = memory()
        recorder = Recorder(Writer(sessions(store), SessionLimits()))
        for number in range(3):
            recorder.put(a_turn(number))
        await recorder.drain()
        return await texts(store)

    expected = [f"{kind} {number}" for number in range(3) for kind in ("question", "answer")]
    assert asyncio.run(run()) == expected


def test_what_was_not_written_is_written_when_the_store_is_back() -> None:
    async def run() -> tuple[list[Any], bool, bool]:
        store = Sick(memory(), failures=2)
        recorder = Recorder(Writer(sessions(store), SessionLimits()))
        recorder.put(a_turn(0))
        await asyncio.sleep(0.05)
        failing = recorder.failing
        await recorder.drain()
        return await texts(store.store), failing, recorder.failing

    assert asyncio.run(run()) == (["question 0", "answer 0"], True, False)


def test_a_session_that_is_written_again_has_all_others_try_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only one of them looks soon whether the store is back."""
    pauses = itertools.chain([0.1], itertools.repeat(60.0))
    monkeypatch.setattr("proxy.memory.recorder._BACKOFF", Mock(pause=lambda _: next(pauses)))
    keys = [Key("default", f"s{number}") for number in range(20)]

    async def run() -> tuple[list[list[Any]], int]:
        store = Sick(memory(), failures=len(keys))
        recorder = Recorder(Writer(sessions(store), SessionLimits()))
        for key in keys:
            recorder.put(a_turn(0, key))
        await recorder.drain()
        return [await texts(store.store, key) for key in keys], store.most_at_once

    assert asyncio.run(run()) == ([["question 0", "answer 0"]] * len(keys), 1)


def test_sessions_that_cannot_be_read_delay_no_other() -> None:
    class PartlyLost(Sick):
        async def read(self, key: Key, *, background: bool = False) -> Any:
            if key.session.startswith("lost"):
                raise Unreadable("the key of this session is lost")
            return await super().read(key, background=background)

    async def run() -> object:
        store = PartlyLost(memory(), failures=0)
        recorder = Recorder(Writer(sessions(store), SessionLimits()))
        for number in range(1000):
            recorder.put(a_turn(0, Key("default", f"lost{number}")))
        await asyncio.sleep(10)
        store.failures = 1
        recorder.put(a_turn(0, Key("default", "readable")))
        await asyncio.sleep(0.5)  # the first pause is of a tenth of a second
        return await store.read(Key("default", "readable"))

    assert hurried_loop.run(run())


def test_however_many_sessions_wait_for_a_store_it_is_tried_as_often_and_at_last_all_are_written() -> None:
    async def run() -> tuple[list[int], int]:
        store, tried = Sick(memory(), failures=10**6), []
        recorder = Recorder(Writer(sessions(store), SessionLimits()))
        for number in range(3000):
            recorder.put(a_turn(0, Key("default", f"s{number}")))
        await asyncio.sleep(5)
        for _ in range(3):
            before = store.failures
            await asyncio.sleep(10)
            tried.append(before - store.failures)
        store.failures = 0
        await recorder.drain()
        return tried, recorder.lost_turns

    tried, lost = hurried_loop.run(run())
    assert all(500 < times < 2000 for times in tried), "a hundred times in a second, or about that"
    assert lost == 0


class Slow:
    """A store whose writes wait until they are let go."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.open = asyncio.Event()

    async def read(self, key: Key, *, background: bool = False) -> Any:
        return await self.store.read(key, background=background)

    async def deleted(self, key: Key) -> float | None:
        return await self.store.deleted(key)

    async def write(self, key: Key, put: BlobWrite) -> bool:
        await self.open.wait()
        return await self.store.write(key, put)


def test_a_write_that_is_overdue_is_a_failure_for_all_who_call_now() -> None:
    other = Key("default", "s2")

    async def run() -> list[tuple[bool, bool, bool]]:
        store = Slow(memory())
        own = sessions(store)
        health = HealthCheck(own, own.writing, patience=0.5)
        recorder = Recorder(Writer(own, SessionLimits(), health=health))
        states = []

        def note() -> None:
            states.append((recorder.failing, recorder.is_behind(KEY), recorder.is_behind(other)))

        recorder.put(a_turn(0))
        for _ in range(5):
            await asyncio.sleep(0)
        note()
        await asyncio.sleep(0.55)
        note()
        store.open.set()
        await recorder.drain()
        note()
        return states

    assert asyncio.run(run()) == [(False,) * 3, (True,) * 3, (False,) * 3]


def test_a_store_that_takes_nothing_is_a_failure_for_all_who_call_now() -> None:
    other = Key("default", "s2")

    async def run() -> tuple[bool, bool]:
        recorder = Recorder(Writer(sessions(Sick(memory(), failures=2)), SessionLimits()))
        recorder.put(a_turn(0))
        await asyncio.sleep(0.05)
        lagging = recorder.is_behind(other)
        await recorder.drain()
        return lagging, recorder.is_behind(other)

    assert asyncio.run(run()) == (True, False)


def test_a_session_that_cannot_be_read_is_no_failure_for_others() -> None:
    other = Key("default", "s2")

    class Sealed(Slow):
        async def read(self, key: Key, *, background: bool = False) -> Any:
            if key == KEY:
                raise Unreadable("its key is lost")
            return await super().read(key, background=background)

    async def run() -> tuple[bool, bool]:
        recorder = Recorder(Writer(sessions(Sealed(memory())), SessionLimits()))
        recorder.put(a_turn(0))
        await asyncio.sleep(0.05)
        return recorder.is_behind(KEY), recorder.is_behind(other)

    assert asyncio.run(run()) == (True, False)


def test_a_turn_that_cannot_be_written_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> tuple[list[Any], int]:
        store = memory()
        await store.write(KEY, BlobWrite(b"no session", version=0, ttl=60))
        recorder = Recorder(Writer(sessions(store), SessionLimits()))
        other = Key("default", "s2")
        for key in (KEY, other):
            recorder.put(a_turn(0, key))
        await recorder.drain()
        return await texts(store, other), recorder.lost_turns

    assert asyncio.run(run()) == (["question 0", "answer 0"], 1)


def test_a_session_that_cannot_be_stored_costs_the_turn_that_is_to_blame() -> None:
    class Choking(Sick):
        async def write(self, key: Key, put: BlobWrite) -> bool:
            if b"question 0" in put.blob:
                raise OverflowError
            return await self.store.write(key, put)

    async def run() -> tuple[list[Any], int, int]:
        store = Choking(memory(), failures=0)
        recorder = Recorder(Writer(sessions(store), SessionLimits()))
        for number in range(3):
            recorder.put(a_turn(number))
        await recorder.drain()
        return await texts(store.store), recorder.lost_turns, recorder.pending

    written = [f"{kind} {number}" for number in (1, 2) for kind in ("question", "answer")]
    assert asyncio.run(run()) == (written, 1, 0)


def large(turn: TurnRecord, size: int) -> TurnRecord:
    return msgspec.structs.replace(turn, size=size, answer=turn.answer.ljust(size))


def test_beyond_its_bound_turns_are_counted_as_lost(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> int:
        recorder = Recorder(Writer(sessions(Sick(memory(), failures=10**6)), SessionLimits()))
        for number in range(35):
            recorder.put(large(a_turn(number), 4_000_000))
        await recorder.drain()
        return recorder.lost_turns

    assert asyncio.run(run()) == 35
    text = "turns lost: there is no room for more that wait to be written"
    assert [record.getMessage() for record in caplog.records if text in record.getMessage()] == [
        f"{text} tenant=default count=1",
        f"{text} tenant=default count=3",
    ]
    assert "35 turns could not be written to memory" in caplog.text


def test_what_is_written_makes_room() -> None:
    async def run() -> int:
        recorder = Recorder(Writer(sessions(memory()), SessionLimits()))
        for number in range(100):
            recorder.put(large(a_turn(number), 4_000_000))
            await recorder.drain()
        return recorder.lost_turns

    assert asyncio.run(run()) == 0


def test_pictures_take_no_room() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 15_000_000}}
    asked = Message(role="user", content=[picture, {"type": "text", "text": "What is this?"}])

    async def run() -> tuple[int, list[str]]:
        store = memory()
        recorder = Recorder(Writer(sessions(store), SessionLimits()))
        for _ in range(24):
            recorder.put(msgspec.structs.replace(a_turn(0), window=[asked], size=15_000_000))
        await recorder.drain()
        return recorder.lost_turns, await texts(store)

    lost, stored = asyncio.run(run())
    assert lost == 0
    assert stored[0] == [{"type": "text", "text": "[image]"}, {"type": "text", "text": "What is this?"}]


def test_a_long_session_moves_its_oldest_turns_out() -> None:
    async def run() -> tuple[int, int]:
        store = memory()
        recorder = Recorder(Writer(sessions(store), SessionLimits(max_messages=10, keep_messages=4)))
        for number in range(8):
            recorder.put(a_turn(number))
        await recorder.drain()
        return len(await texts(store)), len(await store.cold(KEY))

    kept, moved = asyncio.run(run())
    assert kept <= 10
    assert kept + moved == 16


def test_a_turn_that_waits_brings_no_deleted_session_back() -> None:
    async def run() -> tuple[list[Any], int]:
        store = Sick(memory(), failures=2)
        recorder = Recorder(Writer(sessions(store), SessionLimits()))
        recorder.put(a_turn(0))
        await asyncio.sleep(0.05)
        await store.store.delete(KEY)
        await recorder.drain()
        return await texts(store.store), recorder.lost_turns

    assert asyncio.run(run()) == ([], 0)


def test_a_turn_that_read_what_was_deleted_since_is_older_whatever_its_clock_says() -> None:
    async def run() -> tuple[list[Any], int]:
        store = memory()
        now = time.time()
        first = Recorder(Writer(sessions(store), SessionLimits()))
        first.put(msgspec.structs.replace(a_turn(0), at=now - 10))
        await first.drain()
        stored = await sessions(store).load(KEY)
        assert stored is not None
        turn = a_turn(1)
        view = RequestView(turn.window).view_of(stored.session, stored.version)
        await store.delete(KEY)
        ahead = Recorder(Writer(sessions(store), SessionLimits()))
        ahead.put(msgspec.structs.replace(turn, view=view, at=now + 1))
        await ahead.drain()
        return await texts(store), ahead.lost_turns

    assert asyncio.run(run()) == ([], 0)


def test_a_turn_whose_session_was_written_meanwhile_is_written_over_that_after_one_more_read() -> None:
    """Background work writes a session beside its turns, under load in one turn of four.

    The next turn, which has read what was never stored, need not be written twice for that.
    """

    async def run() -> tuple[list[Any], str | None, list[tuple[int, int]]]:
        store = Counted(memory())
        own = store.sessions = sessions(store)
        beside = sessions(store.store)
        recorder = Recorder(Writer(own, SessionLimits()))
        recorder.put(a_turn(0))
        await recorder.drain()
        lines, counts = [*a_turn(0).window], []
        await beside.change(KEY, lambda session: msgspec.structs.replace(session, alias="eve"))
        seen = [StoredSession(decode((await store.store.read(KEY)).blob), own.cached(KEY).version)]
        for number in (1, 2):
            lines += [Message(role="assistant", content=f"answer {number - 1}"), *a_turn(number).window]
            view = RequestView([*lines], at=float(number)).view_of(*seen[-1])
            store.reads, store.writes, store.first_head = 0, 0, None
            recorder.put(msgspec.structs.replace(a_turn(number), window=[*lines], view=view))
            await recorder.drain()
            counts.append((store.reads, store.writes))
            seen.append(store.first_head)
        session = await own.session(KEY)
        return await texts(store.store), session and session.alias, counts

    expected = [f"{kind} {number}" for number in range(3) for kind in ("question", "answer")]
    assert asyncio.run(run()) == (expected, "eve", [(1, 2), (0, 1)])


class Counted:
    """A store that counts what it is asked, and what calls would read during the first write."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.sessions: SessionStore | None = None
        self.first_head: StoredSession | None = None
        self.reads = self.writes = 0

    async def read(self, key: Key, *, background: bool = False) -> Any:
        self.reads += 1
        return await self.store.read(key, background=background)

    async def deleted(self, key: Key) -> float | None:
        self.reads += 1
        return await self.store.deleted(key)

    async def write(self, key: Key, put: BlobWrite) -> bool:
        self.writes += 1
        if self.first_head is None and self.sessions:
            self.first_head = self.sessions.heads.get(key)
        return await self.store.write(key, put)


def test_a_turn_of_after_the_deletion_is_written() -> None:
    async def run() -> list[Any]:
        store = memory()
        recorder = Recorder(Writer(sessions(store), SessionLimits()))
        await store.delete(KEY)
        recorder.put(msgspec.structs.replace(a_turn(1), at=time.time() + 1))
        await recorder.drain()
        return await texts(store)

    assert asyncio.run(run()) == ["question 1", "answer 1"]


def test_a_turn_that_has_to_wait_keeps_nothing_of_what_it_read() -> None:
    async def run() -> tuple[list[Any], list[Any]]:
        store = memory()
        recorder = Recorder(Writer(sessions(Sick(store, 2)), SessionLimits()))
        for number in range(3):
            recorder.put(
                msgspec.structs.replace(
                    a_turn(number), view=RequestView(a_turn(number).window).view_of(Session())
                )
            )
        await asyncio.sleep(0.02)
        kept = [turn.view for turn in recorder._pending_sessions[KEY].turns]
        await recorder.drain()
        return kept, await texts(store)

    kept, written = asyncio.run(run())
    assert kept == [None, None, None]
    assert written == [f"{kind} {number}" for number in range(3) for kind in ("question", "answer")]


class Away(Sick):
    """A store that accepts nothing until it is back; some of its sessions cannot be read."""

    def __init__(self, store: Store, *, sealed: tuple[Key, ...] = ()) -> None:
        super().__init__(store, failures=10**6)
        self.sealed = sealed

    async def read(self, key: Key, *, background: bool = False) -> Any:
        if key in self.sealed:
            raise Unreadable("its key is lost")
        if self.failures:
            raise StoreError("full")
        return await super().read(key, background=background)


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


async def refused(recorder: Recorder, *turns: TurnRecord) -> None:
    """The turns wait, and the store has refused the first of each session."""
    for each in turns:
        recorder.put(each)
    await asyncio.sleep(0.02)


CANNOT = "Memory cannot be written: full"


def test_the_end_of_an_outage_tells_what_waited_and_what_was_lost(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.memory.recorder._MAX_PENDING_BYTES", 3 * 4_100)

    async def run() -> None:
        store = Away(memory())
        recorder = Recorder(Writer(sessions(store), SessionLimits()))
        await refused(recorder, a_turn(0), a_turn(1))
        await refused(recorder, a_turn(2), a_turn(3), a_turn(4))
        store.failures = 0
        await recorder.drain()
        await refused(recorder, a_turn(5))

    asyncio.run(run())
    assert warnings_in(caplog) == [CANNOT, "Memory is written again (turns that waited: 3, lost: 2)"]


def test_an_outage_that_outlives_its_recorder_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        store = Away(memory())
        recorder, heir = (Recorder(Writer(sessions(store), SessionLimits())) for _ in range(2))
        await refused(recorder, a_turn(0), a_turn(1))
        recorder.transfer(heir)
        assert heir.is_behind(KEY), "its turns wait on"
        await refused(recorder, a_turn(2))
        store.failures = 0
        await heir.drain()

    asyncio.run(run())
    assert warnings_in(caplog) == [CANNOT, "Memory is written again (turns that waited: 3, lost: 0)"]


def test_who_waits_for_turns_waits_for_the_successor_that_writes_them() -> None:
    async def run() -> None:
        store = Slow(memory())
        recorder, heir = (Recorder(Writer(sessions(store), SessionLimits())) for _ in range(2))
        recorder.put(a_turn(0))
        waiting = asyncio.create_task(recorder.wait_written("default", "s1", within=60))
        await asyncio.sleep(0.02)
        recorder.transfer(heir)
        await asyncio.sleep(0.02)
        assert not waiting.done(), "the successor has not written it yet"
        store.open.set()
        async with asyncio.timeout(10):
            await waiting
        assert heir.is_written(KEY)
        assert await texts(store.store) == ["question 0", "answer 0"]

    asyncio.run(run())


def test_a_call_that_outlives_two_configurations_is_recorded_by_the_third() -> None:
    async def run() -> list[Any]:
        store = memory()
        first, second, third = (Recorder(Writer(sessions(store), SessionLimits())) for _ in range(3))
        first.transfer(second)
        await first.drain()
        second.transfer(third)
        await second.drain()
        first.put(a_turn(0))
        second.put(a_turn(1))
        replaced = weakref.ref(second)
        del second
        gc.collect()
        assert replaced() is None, "only the present one is led to"
        await third.drain()
        return await texts(store)

    assert asyncio.run(run()) == ["question 0", "answer 0", "question 1", "answer 1"]


def test_a_session_that_cannot_be_read_hides_no_outage(caplog: pytest.LogCaptureFixture) -> None:
    own, other = Key("default", "sealed"), Key("default", "sealed, too")

    async def run() -> None:
        store = Away(memory(), sealed=(own, other))
        recorder = Recorder(Writer(sessions(store), SessionLimits()))
        await refused(recorder, a_turn(0, own), a_turn(0, other), a_turn(0))
        store.failures = 0
        await asyncio.sleep(0.3)
        assert recorder.is_behind(own) and not recorder.is_behind(KEY)
        store.sealed = ()
        await recorder.drain()

    asyncio.run(run())
    assert warnings_in(caplog) == [
        "A session cannot be written: its key is lost",
        CANNOT,
        "Memory is written again (turns that waited: 1, lost: 0)",
    ]


def test_a_session_that_turns_out_unreadable_ends_an_outage(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        store = Away(memory())
        recorder = Recorder(Writer(sessions(store), SessionLimits()))
        await refused(recorder, a_turn(0))
        store.sealed = (KEY,)
        await asyncio.sleep(0.3)
        store.sealed, store.failures = (), 0
        await recorder.drain()

    asyncio.run(run())
    assert warnings_in(caplog) == [
        CANNOT,
        "A session cannot be written: its key is lost",
        "Memory is written again (turns that waited: 1, lost: 0)",
    ]


@pytest.mark.parametrize("change", ["beside", "a_turn"])
def test_a_turn_that_background_work_overtakes_is_not_aligned_again(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn that another caller's words overtake is aligned again."""
    aligned = Mock(side_effect=align)
    monkeypatch.setattr("proxy.memory.merge.request.align", aligned)

    async def run() -> tuple[list[Any], bool, int]:
        driver = memory()
        store, elsewhere = sessions(driver), sessions(driver)
        recorder, other = (
            Recorder(Writer(store, SessionLimits())),
            Recorder(Writer(elsewhere, SessionLimits())),
        )
        recorder.put(a_turn(0))
        await recorder.drain()
        stored = await store.load(KEY)
        assert stored
        window = [a_turn(0).window[0], Message(role="assistant", content="answer 0", turn_id=0)]
        turn = msgspec.structs.replace(a_turn(1), window=[*window, *a_turn(1).window])
        turn = msgspec.structs.replace(turn, view=RequestView(turn.window, at=1.0).view_of(*stored))
        if change == "beside":
            await other.revise(KEY, lambda session: msgspec.structs.replace(session, state={"a": 1}), at=1.0)
        else:
            other.put(a_turn(7))
            await other.drain()
        aligned.reset_mock()
        recorder.put(turn)
        await recorder.drain()
        stored = await store.load(KEY)
        assert stored
        return await texts(driver), stored.session.state == {"a": 1}, aligned.call_count

    written, is_changed, count = asyncio.run(run())
    assert (is_changed, count > 0) == ((True, False) if change == "beside" else (False, True))
    assert [text for text in written if not text.endswith("7")] == [
        f"{kind} {number}" for number in range(2) for kind in ("question", "answer")
    ]


class Complete(Sick):
    """A store that does all the others do."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


def test_of_one_who_is_erased_between_two_turns_that_wait_nothing_is_left() -> None:
    async def run() -> list[Any]:
        now, erased = time.time(), dict[str, float]()
        store = Complete(memory(), failures=0)

        async def erased_since(users: Sequence[Owner], at: float) -> Sequence[Owner]:
            return [user for user in users if erased.get(user.user, 0.0) > at]

        recorder = Recorder(Writer(sessions(store), SessionLimits(), erased_since=erased_since))
        window: list[Message] = []
        for text, name, at in (("Hello", "ann", 30), ("My secret is 5", "bob", 20), ("Good bye", "bob", 5)):
            window = [*window, Message(role="user", content=text, metadata={"user": name})]
            recorder.put(
                TurnRecord(key=KEY, window=window, answer=stream_of("ok"), at=now - at, user=name, size=200)
            )
            window = [*window, Message(role="assistant", content="ok")]
            if name == "ann":
                await recorder.drain()
                store.failures = 2
        erased["bob"] = now - 10
        await recorder.drain()
        return await texts(store)

    assert "My secret is 5" not in asyncio.run(run())


def test_the_background_hears_of_a_write_of_which_an_erasure_took_a_part_back() -> None:
    async def run() -> tuple[list[str], list[Key]]:
        now, erased, heard = time.time(), dict[str, float](), list[Key]()
        store = memory()

        async def erased_since(users: Sequence[Owner], at: float) -> Sequence[Owner]:
            return [user for user in users if erased.get(user.user, 0.0) > at]

        def listen(key: Key, due: float) -> None:
            heard.append(key)

        recorder = Recorder(
            Writer(sessions(store), SessionLimits(), write_listeners=[listen], erased_since=erased_since)
        )
        hello = Message(role="user", content="Hello", metadata={"user": "ann"})
        recorder.put(TurnRecord(key=KEY, window=[hello], answer=stream_of("ok"), at=now - 30, user="ann"))
        await recorder.drain()
        heard.clear()
        erased["bob"] = now
        window = [
            hello,
            Message(role="assistant", content="ok"),
            Message(role="user", content="My secret is 5", metadata={"user": "bob"}),
        ]
        recorder.put(TurnRecord(key=KEY, window=window, answer=stream_of("noted"), at=now - 20, user="bob"))
        await recorder.drain()
        return await texts(store), heard

    stored, heard = asyncio.run(run())
    assert "My secret is 5" not in stored and {"Hello", "noted"} <= {*stored}
    assert heard


def test_of_all_who_were_erased_while_their_turn_was_answered_nothing_is_left() -> None:
    async def run() -> list[Any]:
        now, store = time.time(), memory()

        async def erased_since(users: Sequence[Owner], at: float) -> Sequence[Owner]:
            return [user for user in users if user.user != "ann"]

        recorder = Recorder(Writer(sessions(store), SessionLimits(), erased_since=erased_since))
        hello = Message(role="user", content="Hello", metadata={"user": "ann"})
        recorder.put(TurnRecord(key=KEY, window=[hello], answer=stream_of("ok"), at=now - 30, user="ann"))
        await recorder.drain()
        window = [
            hello,
            Message(role="assistant", content="ok"),
            Message(role="user", content="I am Bob", metadata={"user": "bob"}),
            Message(role="user", content="I am Eve", metadata={"user": "eve"}),
        ]
        recorder.put(TurnRecord(key=KEY, window=window, answer=stream_of("noted"), at=now - 20, user="ann"))
        await recorder.drain()
        return await texts(store)

    assert {*asyncio.run(run())} == {"Hello", "ok", "noted"}
