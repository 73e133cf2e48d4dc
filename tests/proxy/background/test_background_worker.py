"""Work is found from the store, done by one process at a time, and again until it is done."""

import asyncio
import gc
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from proxy.background import backoff, worker
from proxy.background.worker import Worker
from proxy.circuit import Backoff
from proxy.errors import UpstreamBroken
from proxy.memory.errors import (
    InvalidFacts,
    InvalidSummary,
    NoModel,
    StoreError,
    UnusableAnswer,
    WriteConflict,
)
from proxy.memory.session import Session, decode, encode
from proxy.memory.stores import codec, lease, volatile
from proxy.memory.stores.drivers import open_store
from proxy.memory.stores.encryption import Encryption
from proxy.memory.stores.session_store import SessionStore
from proxy.memory.stores.store import NEVER_DUE, BlobWrite, DueSession, Key, Store, StoredBlob
from proxy.memory.stores.volatile import VolatileStore
from tests import hurried_loop

KEY = Key("default", "s1")


def memory() -> Store:
    return open_store("memory:", deadline=1, codec=codec.Plain())


class Counting:
    """Counts to three in a session's state, one step at a time."""

    name = "counting"

    def __init__(self, store: Store, fails: int = 0) -> None:
        self.store, self.fails = store, fails
        self.tries: list[int] = []
        self.stood_in: list[Key] = []
        self.under_way = 0
        self.most = 0

    def due_at(self, session: Session) -> float:
        return 0.0 if session.state.get("n", 0) < 3 else NEVER_DUE

    async def begin(self, key: Key, session: Session) -> Session:
        return session

    async def run(self, key: Key, unusable: int) -> bool:
        self.tries.append(unusable)
        held = await self.store.read(key)
        session = decode(held.blob) if held else Session(state={"n": 3})
        if self.due_at(session) > time.time():
            return False
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0.01)
        self.under_way -= 1
        if self.fails:
            self.fails -= 1
            raise UpstreamBroken("not now")
        state = {"n": session.state.get("n", 0) + 1}
        assert held
        counted = Session(state=state)
        put = BlobWrite(encode(counted), version=held.version, ttl=HOUR, due=self.due_at(counted))
        return await self.store.write(key, put)

    def fallback_is_due(self, session: Session) -> bool:
        return self.due_at(session) == 0.0

    async def run_fallback(self, key: Key) -> None:
        self.stood_in.append(key)


async def count(store: Store, key: Key = KEY) -> Any:
    held = await store.read(key)
    return decode(held.blob).state.get("n", 0) if held else None


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(30):
        while not await holds():  # noqa: ASYNC110 - the store tells nobody
            await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "_SESSION", Backoff(0.01, 300.0))
    monkeypatch.setattr(lease, "TTL", 0.1)


def running(worker: Worker, every: float = 60) -> Any:
    return asyncio.create_task(worker.run(every=every))


def test_what_is_due_is_found_from_the_store_and_done_to_its_end() -> None:
    async def run() -> Any:
        store = memory()
        for number in range(250):
            await store.write(
                Key("default", f"s{number}"), BlobWrite(encode(Session()), version=0, ttl=60, due=0)
            )
        await store.write(Key("other", "s1"), BlobWrite(encode(Session()), version=0, ttl=60, due=0))
        await store.write(Key("default", "broken"), BlobWrite(b"no session", version=0, ttl=60, due=0))
        task = running(Worker(store, [Counting(store)], ["default"]))

        async def done() -> bool:
            return all([await count(store, Key("default", f"s{n}")) == 3 for n in range(250)])

        await until(done)
        task.cancel()
        return await count(store, Key("other", "s1"))

    assert asyncio.run(run()) == 0


class Away(VolatileStore):
    """Finds nothing that is due while it is away."""

    away = True
    looks = 0

    async def take_due(self, tenants: Sequence[str], *, limit: int, lease: float) -> Sequence[DueSession]:
        self.looks += 1
        if self.away:
            raise StoreError("nobody there")
        return await super().take_due(tenants, limit=limit, lease=lease)


def test_a_memory_that_is_away_is_told_of_when_that_begins_and_when_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        driver = Away()
        store = SessionStore(driver, codec.Plain())
        task = running(Worker(store, [Counting(store)], ["default"]), every=0.01)
        for away in (True, False, True):
            driver.away, driver.looks = away, 0
            while driver.looks < 10:  # noqa: ASYNC110 - the store tells nobody
                await asyncio.sleep(0.01)
        task.cancel()

    with caplog.at_level("INFO"):
        asyncio.run(run())
    assert [(line.levelname, line.getMessage()) for line in caplog.records] == [
        ("WARNING", "Memory does not answer: nobody there"),
        ("WARNING", "Memory answers again"),
        ("WARNING", "Memory does not answer: nobody there"),
    ]


def test_a_session_whose_key_is_lost_hides_none_behind_it() -> None:
    async def run() -> Any:
        bare = VolatileStore()
        store = SessionStore(bare, Encryption([b"n" * 32]))
        lost = SessionStore(bare, Encryption([b"o" * 32]))
        await lost.write(Key("default", "a"), BlobWrite(encode(Session()), version=0, ttl=60, due=0))
        await store.write(KEY, BlobWrite(encode(Session()), version=0, ttl=60, due=0))
        task = running(Worker(store, [Counting(store)], ["default"]))
        await until(lambda: _is(store, KEY))
        task.cancel()
        return await count(store)

    assert asyncio.run(run()) == 3


def test_a_nudge_is_followed_at_once_and_one_before_the_start_is_not_lost() -> None:
    async def run() -> tuple[Any, Any]:
        store = memory()
        worker = Worker(store, [Counting(store)], ["default"])
        await store.write(KEY, BlobWrite(encode(Session()), version=0, ttl=60, due=0))
        worker.session_written(KEY, 0.0)
        before = await count(store)
        task = running(worker)
        await until(lambda: _is(store, KEY))
        other = Key("default", "s2")
        await store.write(other, BlobWrite(encode(Session()), version=0, ttl=60, due=0))
        worker.session_written(other, 0.0)
        await until(lambda: _is(store, other))
        task.cancel()
        return before, await count(store, other)

    assert asyncio.run(run()) == (0, 3)


class Ending(Counting):
    """Work whose last look is over when more becomes due."""

    async def run(self, key: Key, unusable: int) -> bool:
        done = await super().run(key, unusable)
        if not done and len(self.tries) < 6:
            held = await self.store.read(key)
            assert held
            await self.store.write(key, BlobWrite(encode(Session()), version=held.version, ttl=60, due=0))
            self.worker.session_written(key, 0.0)
        return done

    worker: Worker


def test_a_nudge_while_work_ends_is_not_lost() -> None:
    async def run() -> list[int]:
        store = memory()
        await store.write(KEY, BlobWrite(encode(Session()), version=0, ttl=60, due=0))
        ending = Ending(store)
        ending.worker = Worker(store, [ending], ["default"])
        task = running(ending.worker)
        async with asyncio.timeout(5):
            while len(ending.tries) < 8:  # noqa: ASYNC110 - the work tells nobody
                await asyncio.sleep(0.01)
        task.cancel()
        return ending.tries

    assert len(asyncio.run(run())) == 8


async def _is(store: Store, key: Key) -> bool:
    return await count(store, key) == 3


def test_two_processes_never_do_one_piece_at_once() -> None:
    async def run() -> int:
        store = memory()
        await store.write(KEY, BlobWrite(encode(Session()), version=0, ttl=60, due=0))
        counting = Counting(store)
        tasks = [running(Worker(store, [counting], ["default"]), every=0.01) for _ in range(3)]
        await until(lambda: _is(store, KEY))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return counting.most

    assert asyncio.run(run()) == 1


def test_whatever_has_to_wait_is_no_task_yet() -> None:
    async def run() -> int:
        store = memory()
        await due_everywhere(store)
        most, task = 0, running(Worker(store, [Counting(store)], ["default"]))
        while not all([await count(store, key) == 3 for key in SESSIONS]):
            await asyncio.sleep(0.005)
            most = max(most, len(asyncio.all_tasks()))
        task.cancel()
        return most

    assert len(SESSIONS) >= 60
    assert hurried_loop.run(run()) < 30, "those that run, and those that are looked at together"


class Seen(Counting):
    """Its failures can be looked for afterwards."""

    seen: "weakref.ref[Exception] | None" = None

    async def run(self, key: Key, unusable: int) -> bool:
        try:
            return await super().run(key, unusable)
        except UpstreamBroken as error:
            self.seen = weakref.ref(error)
            raise


def test_nothing_of_a_failure_is_held_while_it_waits_to_be_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backoff, "_SESSION", Backoff(60.0, 300.0))

    async def run() -> bool:
        store = memory()
        await store.write(KEY, BlobWrite(encode(Session()), version=0, ttl=60, due=0))
        failing = Seen(store, fails=1)
        task = running(Worker(store, [failing], ["default"]))
        while failing.seen is None:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        held = failing.seen() is not None
        task.cancel()
        return held

    gc.disable()  # it finds late what nobody holds any more
    try:
        assert not asyncio.run(run())
    finally:
        gc.enable()


def test_what_fails_is_tried_again() -> None:
    async def run() -> list[int]:
        store = memory()
        await store.write(KEY, BlobWrite(encode(Session()), version=0, ttl=60, due=0))
        counting = Counting(store, fails=3)
        task = running(Worker(store, [counting], ["default"]))
        await until(lambda: _is(store, KEY))
        task.cancel()
        return counting.tries[:5]

    assert asyncio.run(run()) == [0, 0, 0, 0, 0]


def test_a_kind_of_work_that_always_fails_is_left_alone_for_a_while() -> None:
    async def run() -> int:
        store = memory()
        for number in range(100):
            await store.write(
                Key("default", f"s{number}"), BlobWrite(encode(Session()), version=0, ttl=60, due=0)
            )
        failing = Counting(store, fails=10_000)
        task = running(Worker(store, [failing], ["default"]))
        await asyncio.sleep(0.3)
        task.cancel()
        return len(failing.tries)

    assert 3 <= asyncio.run(run()) <= 12, "hundreds of sessions do not ask a model that is away"


SESSIONS = [Key("default", f"s{number}") for number in range(60)]
HOUR = 3600.0


async def due_everywhere(store: Store) -> None:
    for key in SESSIONS:
        await store.write(key, BlobWrite(encode(Session()), version=0, ttl=HOUR, due=0))


def test_a_model_that_refuses_for_good_is_asked_a_few_times_an_hour_over_all_sessions() -> None:
    async def run() -> tuple[int, int, set[Key]]:
        store = memory()
        await due_everywhere(store)
        failing = Counting(store, fails=1_000_000)
        task = running(Worker(store, [failing], ["default"]))
        await asyncio.sleep(HOUR)
        first = len(failing.tries)
        await asyncio.sleep(10 * HOUR)
        task.cancel()
        return first, len(failing.tries) - first, set(failing.stood_in)

    first, later, stood_in = hurried_loop.run(run())
    assert 5 <= first <= 30
    assert 100 <= later <= 121, "every five minutes, and not less"
    assert stood_in == set(SESSIONS)


def by_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of day goes as fast as a hurried loop."""
    began = time.time()
    for module in (worker, volatile):
        monkeypatch.setattr(module, "wall_time", lambda: began + asyncio.get_running_loop().time())


@pytest.mark.parametrize("pause", [1.0, 0.0])
def test_sessions_wait_in_the_store_for_a_model_that_is_away(
    monkeypatch: pytest.MonkeyPatch, pause: float
) -> None:
    """Those that come before it is known to be away are queued."""
    keys = [Key("default", f"call-{number}") for number in range(400)]
    by_the_loop(monkeypatch)

    async def run() -> tuple[int, set[Key], bool]:
        store = memory()
        failing = Counting(store, fails=1_000_000)
        background = Worker(store, [failing], ["default"])
        most, task = 0, running(background, every=5)
        for key in keys:
            await store.write(key, BlobWrite(encode(Session()), version=0, ttl=HOUR, due=0))
            background.session_written(key, 0.0)
            await asyncio.sleep(pause)
        for _ in range(400):
            await asyncio.sleep(1)
            most = max(most, len(background._tasks))
        failing.fails = 0
        await asyncio.sleep(301 + 60)
        task.cancel()
        return most, set(failing.stood_in), all([await count(store, key) == 3 for key in keys])

    most, stood_in, done = hurried_loop.run(run())
    assert most <= 110, "neither tasks nor back-offs for each session that is due"
    assert stood_in == set(keys), "what can be done without the model is done"
    assert done


def test_when_it_answers_again_all_is_done_within_five_minutes() -> None:
    async def run() -> bool:
        store = memory()
        await due_everywhere(store)
        failing = Counting(store, fails=1_000_000)
        task = running(Worker(store, [failing], ["default"]))
        await asyncio.sleep(3 * HOUR)
        failing.fails = 0
        await asyncio.sleep(301 + 60)
        task.cancel()
        return all([await count(store, key) == 3 for key in SESSIONS])

    assert hurried_loop.run(run())


class Quick(Counting):
    """All of its work takes no time."""

    async def begin(self, key: Key, session: Session) -> Session:
        if self.fails:
            self.fails -= 1
            raise OSError("the disk is full")
        counted, held = Session(state={"n": 3}), await self.store.read(key)
        assert held
        put = BlobWrite(encode(counted), version=held.version, ttl=HOUR)
        assert await self.store.write(key, put)
        return counted


@pytest.mark.parametrize("fails", [0, 1])
def test_what_takes_no_time_is_done_at_once_unless_it_fails(fails: int) -> None:
    async def run() -> int:
        store = memory()
        await store.write(KEY, BlobWrite(encode(Session()), version=0, ttl=HOUR, due=0))
        quick = Quick(store, fails)
        task = running(Worker(store, [quick], ["default"]))
        await until(lambda: _is(store, KEY))
        task.cancel()
        return len(quick.tries)

    assert (asyncio.run(run()) > 0) is bool(fails)


class Choosy(Counting):
    """Fails for one session alone."""

    async def run(self, key: Key, unusable: int) -> bool:
        if key != KEY:
            return await super().run(key, unusable)
        self.tries.append(unusable)
        raise RuntimeError


class Useless(Counting):
    """Raises ``fault`` for all sessions, or for ``only`` one."""

    def __init__(self, store: Any, fault: Exception | None, only: Key | None = None) -> None:
        super().__init__(store)
        self.fault, self.only = fault, only

    async def run(self, key: Key, unusable: int) -> bool:
        if self.fault and self.only in {None, key}:
            self.tries.append(unusable)
            raise self.fault
        return await super().run(key, unusable)


def test_one_session_that_always_fails_holds_up_no_other() -> None:
    async def run() -> tuple[Any, int]:
        store = memory()
        await store.write(KEY, BlobWrite(encode(Session()), version=0, ttl=60, due=0))
        choosy = Choosy(store)
        worker = Worker(store, [choosy], ["default"])
        task = running(worker)
        await asyncio.sleep(2 * HOUR)
        asked = len(choosy.tries)
        other = Key("default", "other")
        await store.write(other, BlobWrite(encode(Session()), version=0, ttl=60, due=0))
        worker.session_written(other, 0.0)
        await asyncio.sleep(1)
        task.cancel()
        return await count(store, other), asked

    done, asked = hurried_loop.run(run())
    assert done == 3
    assert asked <= 50


FAULTS = [
    StoreError("full"),
    RuntimeError("a bug"),
    WriteConflict(),
]
USELESS = [UnusableAnswer("useless"), InvalidSummary("too long"), InvalidFacts("no list")]


@pytest.mark.parametrize("fault", FAULTS, ids=repr)
def test_whatever_tells_of_no_model_that_is_away_holds_up_no_other(
    fault: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    class Faulty(Counting):
        async def run(self, key: Key, unusable: int) -> bool:
            if key in SESSIONS:
                self.tries.append(unusable)
                raise fault
            return await super().run(key, unusable)

    async def run() -> tuple[Any, bool, int]:
        store = memory()
        await due_everywhere(store)
        faulty = Faulty(store)
        worker = Worker(store, [faulty], ["default"])
        task = running(worker)
        await asyncio.sleep(HOUR)
        asked, failing = len(faulty.tries), any(worker.failing.values())
        other = Key("default", "other")
        await store.write(other, BlobWrite(encode(Session()), version=0, ttl=60, due=0))
        worker.session_written(other, 0.0)
        await asyncio.sleep(1)
        task.cancel()
        return await count(store, other), failing, asked

    done, failing, asked = hurried_loop.run(run())
    assert (done, failing) == (3, False)
    assert asked <= 30 * len(SESSIONS), "each rests by itself, ever longer"
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(said) <= 3, "sixty sessions do not fill the log"


@pytest.mark.parametrize("fault", USELESS, ids=repr)
def test_after_three_answers_of_no_use_the_model_rests(
    fault: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> tuple[list[int], list[bool], bool]:
        store = memory()
        await due_everywhere(store)
        useless = Useless(store, fault)
        works = Worker(store, [useless], ["default"])
        task = running(works)
        asked: list[int] = []
        for seconds in (1, HOUR):
            await asyncio.sleep(seconds)
            asked.append(len(useless.tries))
        failing = [any(works.failing.values())]
        useless.fault = None
        await asyncio.sleep(301)
        failing.append(any(works.failing.values()))
        task.cancel()
        return asked, failing, all([await count(store, key) == 3 for key in SESSIONS])

    (at_once, in_an_hour), failing, all_done = hurried_loop.run(run())
    assert at_once <= 3 + worker._AT_ONCE, "those that ran already"
    assert in_an_hour < at_once + 20, "once for all in pauses that grow to five minutes"
    assert failing == [True, False]
    assert all_done
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said.startswith(f"counting: 3 answers in a row could not be used ({fault})")
    assert "memory.counting.model" in said


def test_a_session_whose_words_no_model_can_use_holds_up_others_for_one_pause() -> None:
    async def run() -> Any:
        store = memory()
        await store.write(KEY, BlobWrite(encode(Session()), version=0, ttl=60, due=0))
        useless = Useless(store, InvalidFacts("no list"), only=KEY)
        worker = Worker(store, [useless], ["default"])
        task = running(worker)
        await asyncio.sleep(HOUR)
        assert worker.failing == {"counting": True}
        other = Key("default", "other")
        await store.write(other, BlobWrite(encode(Session()), version=0, ttl=60, due=0))
        worker.session_written(other, 0.0)
        await asyncio.sleep(301)
        task.cancel()
        return await count(store, other), worker.failing

    assert hurried_loop.run(run()) == (3, {"counting": False})


def test_one_session_that_always_fails_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        store = memory()
        choosy = Choosy(store)
        worker = Worker(store, [choosy], ["default"])
        task = running(worker)
        await store.write(KEY, BlobWrite(encode(Session()), version=0, ttl=60, due=0))
        for number in range(600):
            key = Key("default", f"s{number}")
            await store.write(key, BlobWrite(encode(Session()), version=0, ttl=60, due=0))
            worker.session_written(key, 0.0)
            worker.session_written(KEY, 0.0)
            await asyncio.sleep(0.01)
        task.cancel()

    hurried_loop.run(run())
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "a single session fails (RuntimeError)" in said


def test_sessions_of_which_no_model_is_known_keep_no_other_waiting(caplog: pytest.LogCaptureFixture) -> None:
    class Nameless(Counting):
        async def run(self, key: Key, unusable: int) -> bool:
            if key == KEY:
                return await super().run(key, unusable)
            raise NoModel

    async def run() -> tuple[Any, bool]:
        store, others = memory(), [key for key in SESSIONS if key != KEY]
        for key in others:
            await store.write(key, BlobWrite(encode(Session()), version=0, ttl=60, due=0))
        nameless = Nameless(store)
        worker = Worker(store, [nameless], ["default"])
        task = running(worker)
        await asyncio.sleep(HOUR)
        await store.write(KEY, BlobWrite(encode(Session()), version=0, ttl=60, due=0))
        worker.session_written(KEY, 0.0)
        await asyncio.sleep(1)
        task.cancel()
        return await count(store), set(nameless.stood_in) == set(others)

    assert hurried_loop.run(run()) == (3, True)
    assert not caplog.records


@pytest.mark.parametrize("fault", [NoModel, RuntimeError], ids=["nobody to ask", "a fault of ours"])
def test_who_asks_no_model_leaves_the_turn_to_the_next(fault: type[Exception]) -> None:
    class Few(Counting):
        async def run(self, key: Key, unusable: int) -> bool:
            if int(key.session[1:]) % 20:
                raise fault
            return await super().run(key, unusable)

    async def run() -> bool:
        store = memory()
        await due_everywhere(store)
        few = Few(store, fails=1_000_000)
        task = running(Worker(store, [few], ["default"]))
        await asyncio.sleep(3 * HOUR)
        few.fails = 0
        await asyncio.sleep(301 + 60)
        task.cancel()
        return all([await count(store, key) == 3 for key in SESSIONS[::20]])

    assert hurried_loop.run(run())


def test_answers_of_no_use_are_counted_apart_from_a_model_that_is_away() -> None:
    class Babbling(Counting):
        async def run(self, key: Key, unusable: int) -> bool:
            self.tries.append(unusable)
            if len(self.tries) > 9:
                return False
            raise UnusableAnswer if len(self.tries) > 4 else UpstreamBroken("away")

    async def run() -> list[int]:
        store = memory()
        await store.write(KEY, BlobWrite(encode(Session()), version=0, ttl=60, due=0))
        babbling = Babbling(store)
        task = running(Worker(store, [babbling], ["default"]))
        await asyncio.sleep(HOUR)
        task.cancel()
        return babbling.tries[:10]

    assert hurried_loop.run(run()) == [0, 0, 0, 0, 0, 1, 2, 3, 4, 5]


def test_what_becomes_due_while_a_model_is_away_is_stood_in_for_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    by_the_loop(monkeypatch)

    async def run() -> list[Key]:
        store = memory()
        await due_everywhere(store)
        failing = Counting(store, fails=1_000_000)
        worker = Worker(store, [failing], ["default"])
        task = running(worker, every=5)
        await asyncio.sleep(300)
        assert set(failing.stood_in) == set(SESSIONS)
        failing.stood_in.clear()
        held = await store.read(SESSIONS[-1])
        assert held
        await store.write(SESSIONS[-1], BlobWrite(encode(Session()), held.version, HOUR, due=0))
        worker.session_written(SESSIONS[-1], 0.0)
        await asyncio.sleep(6)
        task.cancel()
        return failing.stood_in

    assert SESSIONS[-1] in hurried_loop.run(run())


class Reading(VolatileStore):
    """Counts what is read and taken."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    async def read(self, key: Key, *, background: bool = False) -> StoredBlob | None:
        self.counts["read"] += 1
        return await super().read(key, background=background)

    async def take_due(self, tenants: Sequence[str], *, limit: int, lease: float) -> Sequence[DueSession]:
        self.counts["taken"] += 1
        return await super().take_due(tenants, limit=limit, lease=lease)


def test_turns_of_a_session_whose_work_fails_cost_nothing_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is due and fails is due again with each turn: neither is it taken nor read so often."""
    by_the_loop(monkeypatch)

    async def run() -> Counter[str]:
        driver = Reading()
        store = SessionStore(driver, codec.Plain())
        useless = Useless(store, InvalidFacts("no list"))
        worker = Worker(store, [useless], ["default"])
        task = running(worker, every=5)
        version = 0
        for seconds in (60, 100):
            driver.counts.clear()
            for _ in range(50 * seconds):
                held = await VolatileStore.read(driver, KEY)
                version = held.version if held else 0
                await store.write(KEY, BlobWrite(encode(Session()), version, HOUR, due=0))
                worker.session_written(KEY, 0.0)
                await asyncio.sleep(0.02)
        task.cancel()
        return driver.counts

    counts = hurried_loop.run(run())
    assert 20 <= counts["taken"] <= 110, "once a second at most, in 5,000 turns"
    assert counts["read"] <= 220, "and what stands in looks at it too"


def test_of_a_session_whose_work_is_not_due_nothing_is_read() -> None:
    async def run() -> int:
        driver = Reading()
        store = SessionStore(driver, codec.Plain())
        task = running(worker := Worker(store, [Counting(store)], ["default"]))
        await asyncio.sleep(0.05)
        for number in range(100):
            worker.session_written(Key("default", f"s{number}"), time.time() + 60)
            worker.session_written(Key("default", f"s{number}"), NEVER_DUE)
        await asyncio.sleep(0.05)
        task.cancel()
        return driver.counts["read"]

    assert asyncio.run(run()) == 0


class Later(Counting):
    """Work that becomes due when nothing was written for a second."""

    name = "later"

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.began = time.time()

    def due_at(self, session: Session) -> float:
        return max(self.began + 1.0, super().due_at(session))


def test_what_becomes_due_long_after_the_last_write_is_found() -> None:
    async def run() -> None:
        store = memory()
        await store.write(KEY, BlobWrite(encode(Session()), version=0, ttl=60, due=0))
        task = running(Worker(store, [Later(store)], ["default"]), every=0.05)
        await until(lambda: _is(store, KEY))
        task.cancel()

    asyncio.run(run())


def test_a_lease_of_a_process_that_was_killed_ends_by_itself() -> None:
    async def run() -> list[bool]:
        store = memory()
        killed = lease.lease(store, "counting", KEY, ttl=0.2)
        first = await killed.__aenter__()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        async with lease.lease(store, "counting", KEY) as second:
            pass
        await asyncio.sleep(0.3)
        async with lease.lease(store, "counting", KEY) as third:
            pass
        return [first, second, third]

    assert asyncio.run(run()) == [True, False, True]


def test_a_lease_is_kept_for_as_long_as_the_work_takes() -> None:
    async def run() -> bool:
        store = memory()
        async with lease.lease(store, "counting", KEY, ttl=0.2):
            await asyncio.sleep(0.5)
            async with lease.lease(store, "counting", KEY) as other:
                return other

    assert asyncio.run(run()) is False
