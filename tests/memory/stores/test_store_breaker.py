"""A dead store costs the calls of one moment their deadline, and later ones nothing."""

import asyncio
import time

import pytest

from proxy.circuit import Backoff
from proxy.memory.errors import StoreError
from proxy.memory.stores import session_store
from proxy.memory.stores.session_store import SessionStore
from proxy.memory.stores.store import BlobWrite, Key
from tests.remembering import sessions

pytestmark = pytest.mark.anyio

KEY = Key("t", "s")
PATIENCE = 0.04
SLOW = (
    "Memory takes longer than memory.deadline (160 ms):"
    " turns are written, and no call knows what was said before"
)
IN_TIME = "Memory answers within memory.deadline again"


class Moody:
    """A store that answers, refuses or waits on request."""

    def __init__(self) -> None:
        self.delay = 0.0
        self.fails = True
        self.refuses = False
        self.asked: list[str] = []
        self.closed = False

    async def _answer(self, what: str) -> None:
        self.asked.append(what)
        if self.delay:
            await asyncio.sleep(self.delay)
            if self.fails:
                raise StoreError("too slow")
        if self.refuses:
            raise StoreError("refused")

    async def read(self, key, *, background=False):
        await self._answer("read")

    async def write(self, key, put):
        await self._answer("write")
        return True

    async def replace(self, key, put):
        await self._answer("replace")
        return True

    async def deleted(self, key):
        await self._answer("deleted")

    async def cold(self, key, *, start=0, limit=1000):
        await self._answer("cold")
        return [b"x"]

    async def delete(self, key):
        await self._answer("delete")
        return True

    async def list(self, tenant, *, after="", limit=100):
        await self._answer("list")
        return []

    async def ping(self):
        await self._answer("ping")

    async def aclose(self):
        self.closed = True


@pytest.fixture
async def store():
    return Moody()


@pytest.fixture
async def guard(store: Moody):
    guard = sessions(store, deadline=4 * PATIENCE)
    yield guard
    await guard.aclose()


def write(store):
    return store.write(KEY, BlobWrite(b"", version=0, ttl=1))


CALLS = {
    "read": lambda store: store.read(KEY),
    "write": write,
    "replace": lambda store: store.replace(KEY, BlobWrite(b"", version=0, ttl=1, cold=[b"x"])),
    "delete": lambda store: store.delete(KEY),
    "cold": lambda store: store.cold(KEY),
    "list": lambda store: store.list("t"),
    "ping": lambda store: store.ping(),
}


async def failing(awaitable) -> float:
    began = time.perf_counter()
    with pytest.raises(StoreError):
        await awaitable
    return time.perf_counter() - began


@pytest.mark.parametrize("call", CALLS)
async def test_a_store_that_answers_is_asked_each_time(store: Moody, guard: SessionStore, call: str):
    for _ in range(3):
        await CALLS[call](guard)
    assert store.asked == [call] * 3


@pytest.mark.parametrize("call", ["read", "write", "ping"])
async def test_while_it_is_slow_nobody_waits(store: Moody, guard: SessionStore, call: str):
    store.delay = 2 * PATIENCE
    await failing(guard.read(KEY))
    store.delay = 30  # whoever waits for an answer, or a second for a probe, takes too long
    before = [what for what in store.asked if what != "ping"]
    assert await failing(CALLS[call](guard)) < 0.9
    assert [what for what in store.asked if what != "ping"] == before


@pytest.mark.parametrize("call", sorted(CALLS.keys() - {"read", "write", "ping"}))
async def test_whoever_has_leisure_waits_for_the_next_probe(store: Moody, guard: SessionStore, call: str):
    store.delay = 2 * PATIENCE
    await failing(guard.read(KEY))
    store.delay = 0
    await CALLS[call](guard)
    assert store.asked[-1] == call


async def test_whoever_has_leisure_does_not_wait_for_ever(store: Moody, guard: SessionStore):
    store.delay = 2 * PATIENCE
    await failing(guard.read(KEY))
    assert 0.9 < await failing(guard.list("t")) < 5


async def test_it_is_asked_in_the_background_at_growing_intervals(store: Moody, guard: SessionStore):
    store.delay = 2 * PATIENCE
    await failing(guard.read(KEY))
    await asyncio.sleep(1.2)
    assert 3 <= store.asked.count("ping") <= 5


@pytest.mark.parametrize("refuses", [False, True])
async def test_it_is_used_again_as_soon_as_it_answers_in_time(
    store: Moody, guard: SessionStore, refuses: bool
):
    store.delay = 2 * PATIENCE
    await failing(write(guard))
    await asyncio.sleep(0.3)
    store.delay, store.refuses = 0, refuses
    await asyncio.sleep(1.1)
    store.asked.clear()
    if refuses:
        await failing(guard.read(KEY))
    else:
        await guard.read(KEY)
    assert store.asked == ["read"]


async def test_a_hiccup_shuts_it_off_for_no_longer_than_a_probe_takes(store: Moody, guard: SessionStore):
    store.delay = 2 * PATIENCE
    asked = asyncio.create_task(failing(guard.read(KEY)))
    await asyncio.sleep(PATIENCE)
    store.delay = 0
    await asked
    await asyncio.sleep(PATIENCE / 2)
    await guard.read(KEY)


async def test_a_quick_refusal_shuts_nothing_off(store: Moody, guard: SessionStore):
    store.refuses = True
    for _ in range(3):
        await failing(guard.read(KEY))
    assert store.asked == ["read"] * 3


async def test_a_long_list_shuts_nothing_off(store: Moody, guard: SessionStore):
    store.delay = 2 * PATIENCE
    await failing(guard.list("t"))
    await failing(guard.cold(KEY))
    assert store.asked == ["list", "cold"]


async def test_many_failures_at_once_start_one_probe(store: Moody, guard: SessionStore):
    store.delay = 2 * PATIENCE
    await asyncio.gather(*[failing(guard.read(KEY)) for _ in range(20)])
    await asyncio.sleep(PATIENCE)
    assert store.asked.count("ping") == 1


async def test_closing_ends_the_probe_and_the_store(store: Moody, guard: SessionStore):
    store.delay = 2 * PATIENCE
    await failing(guard.read(KEY))
    await guard.aclose()
    assert store.closed
    pings = store.asked.count("ping")
    await asyncio.sleep(0.3)
    assert store.asked.count("ping") == pings


async def test_a_caller_who_leaves_says_nothing_of_the_store(store: Moody, guard: SessionStore):
    store.delay = 10
    asked = asyncio.create_task(guard.read(KEY))
    await asyncio.sleep(2 * PATIENCE)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    store.delay = 0
    await guard.read(KEY)


@pytest.fixture
async def background():
    return Moody()


@pytest.fixture
async def distant(store: Moody, background: Moody):
    """A store that does not answer in time, and has just been shut off; there is another way to it."""
    store.delay = 2 * PATIENCE
    guard = sessions(store, deadline=4 * PATIENCE, background_driver=background)
    await failing(guard.read(KEY))
    yield guard
    await guard.aclose()


async def asked(background: Moody) -> None:
    while not background.asked:  # noqa: ASYNC110 - nobody rings a bell
        await asyncio.sleep(0)


@pytest.mark.parametrize("call", ["write", "replace", "deleted", "delete", "cold", "list"])
async def test_what_no_call_waits_for_goes_on_at_leisure(distant: SessionStore, background: Moody, call: str):
    await asked(background)
    await (CALLS | {"deleted": lambda store: store.deleted(KEY)})[call](distant)
    assert background.asked == ["ping", call]
    assert distant.breaker.is_open


async def test_a_call_asks_no_store_that_answers_too_late(distant: SessionStore, background: Moody):
    await asked(background)
    assert await failing(distant.read(KEY)) < PATIENCE
    await distant.read(KEY, background=True)
    assert background.asked == ["ping", "read"]


async def test_a_store_that_does_not_even_answer_at_leisure_is_not_written(store: Moody, background: Moody):
    store.delay, background.refuses = 2 * PATIENCE, True
    guard = sessions(store, deadline=4 * PATIENCE, background_driver=background)
    await failing(guard.read(KEY))
    await asked(background)
    await failing(write(guard))
    assert background.asked == ["ping"]
    await guard.aclose()
    assert background.closed


async def test_the_way_at_leisure_is_left_once_the_store_answers_in_time(
    distant: SessionStore, store: Moody, background: Moody
):
    await asked(background)
    store.delay = 0
    while distant.breaker.is_open:  # noqa: ASYNC110 - nobody rings a bell
        await asyncio.sleep(0.01)
    await write(distant)
    assert background.asked == ["ping"]
    assert store.asked[-1] == "write"


async def test_an_answer_later_than_the_deadline_opens_nothing(store: Moody, guard: SessionStore):
    store.delay = 2 * PATIENCE
    await failing(guard.read(KEY))
    store.fails, store.delay = False, 5 * PATIENCE
    await asyncio.sleep(8 * PATIENCE)
    assert guard.breaker.is_open


async def test_the_log_says_once_that_memory_is_slow_and_once_that_it_is_not(
    store: Moody, background: Moody, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(session_store, "_REPORT_AFTER", -1.0)
    monkeypatch.setattr(session_store, "_BACKOFF", Backoff(PATIENCE, PATIENCE))
    store.delay = 2 * PATIENCE
    guard = sessions(store, deadline=4 * PATIENCE, background_driver=background)
    await failing(guard.read(KEY))
    while len(background.asked) < 3:  # noqa: ASYNC110 - nobody rings a bell
        await asyncio.sleep(0.01)
    assert [record.message for record in caplog.records] == [SLOW]
    store.delay = 0
    while guard.breaker.is_open:  # noqa: ASYNC110 - nobody rings a bell
        await asyncio.sleep(0.01)
    assert [record.message for record in caplog.records] == [SLOW, IN_TIME]
    background.asked.clear()
    await asyncio.sleep(4 * PATIENCE)
    assert background.asked == [], "it is probed no more"
    await guard.aclose()
