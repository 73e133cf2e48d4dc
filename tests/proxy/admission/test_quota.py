"""Limits of API keys: turns at once, windows of a minute, and counts that are shared with other servers."""

import asyncio
import threading
import time
from collections.abc import Mapping

import pytest

from proxy.admission.quota import Quota, RateLimits, Remaining, Windows, duration, weight
from proxy.errors import LimitExceeded
from proxy.memory.errors import StoreError
from proxy.memory.stores.counts import Count, LocalCounts, Permit
from tests.reading_client import ReadingClient

BOTH = RateLimits(requests_per_minute=3, tokens_per_minute=10)
DEADLINE = 0.05
REST = 0.02
LIMITS = RateLimits(requests_per_minute=100)
TURN = {"requests": 1, "tokens": 0}


@pytest.mark.parametrize(
    ("seconds", "written"),
    [(0, "0ms"), (0.12, "120ms"), (0.9999, "1s"), (1, "1s"), (8.64, "8.64s"), (60, "1m0s"), (361.2, "6m1s")],
)
def test_a_duration_is_written_as_openai_writes_it(seconds: float, written: str) -> None:
    assert duration(seconds) == written


async def turn(quota: Quota) -> str:
    """Why a turn was refused, or "done"."""
    try:
        async with quota.admit("acme", 0, ReadingClient().reply()):
            await asyncio.sleep(0)
            return "done"
    except LimitExceeded as refused:
        return refused.type


async def bursts() -> list[list[str]]:
    """Each of four turns that begin before any of them has been counted; the second finds the places free."""
    quota = Quota(RateLimits(requests_per_minute=9, concurrent_streams=2))
    return [await asyncio.gather(*[turn(quota) for _ in range(4)]) for _ in range(2)]


def test_of_a_burst_no_more_are_let_in_than_there_are_places() -> None:
    assert asyncio.run(bursts()) == [["done", "done", "streams", "streams"]] * 2


async def refusals() -> list[str]:
    quota = Quota(RateLimits(requests_per_minute=1, concurrent_streams=1))
    return [await turn(quota) for _ in range(3)]


def test_who_is_refused_for_another_reason_gives_the_place_back() -> None:
    assert asyncio.run(refusals()) == ["done", "requests", "requests"]


async def left_after(asked: int, *pieces: bytes) -> str:
    """The tokens that a turn of so many bytes, answered in pieces, leaves of a thousand."""
    quota = Quota(RateLimits(tokens_per_minute=1000))
    client = ReadingClient()
    async with quota.admit("acme", asked, reply := ReadingClient().reply()):
        for piece in pieces:
            reply.observation.answer.add(piece)
    await quota.aclose()
    async with quota.admit("acme", 0, reply := client.reply()):
        await reply.begin(200, [])
    return client.header("x-ratelimit-remaining-tokens")


def test_where_the_model_counts_no_tokens_four_bytes_are_one_and_each_piece_is() -> None:
    assert asyncio.run(left_after(400, *[b"data: {}\n\n"] * 3)) == "897"
    assert asyncio.run(left_after(400)) == "1000"  # nothing was answered


@pytest.mark.parametrize(
    ("usage", "left"),
    [
        ('{"prompt_tokens": 30, "completion_tokens": 4}', "966"),
        ('{"prompt_tokens": 30}', "970"),
        ('{"completion_tokens": 4}', "996"),
        ('{"prompt_tokens": 0, "completion_tokens": 0}', "1000"),
    ],
)
def test_where_the_model_counts_any_its_own_count_is_taken(usage: str, left: str) -> None:
    piece = f'data: {{"choices": [], "usage": {usage}}}\n\n'.encode()
    assert asyncio.run(left_after(400, piece)) == left


async def remaining(windows: Windows) -> dict[str, Remaining]:
    """What a turn leaves."""
    found = await windows.count("acme", TURN)
    assert found is not None
    return found


class Watched(LocalCounts):
    """Notes what is asked of it; its clock stands still."""

    def __init__(self) -> None:
        super().__init__(lambda: 100.0)
        self.asked: list[tuple[str, dict[str, int]]] = []

    async def count(
        self,
        key: str,
        amounts: Mapping[str, int],
        permit: Permit | None = None,
        *,
        ttl: float,
        deferrable: bool = False,
    ) -> dict[str, Count]:
        self.asked.append((key, dict(amounts)))
        return await super().count(key, amounts, permit, ttl=ttl, deferrable=deferrable)


def test_all_limits_are_asked_for_at_once() -> None:
    counts = Watched()
    left = asyncio.run(Windows(BOTH, counts).count("acme", TURN))
    assert counts.asked == [("acme", TURN)]
    assert left == {"requests": Remaining(3, 2, 60.0), "tokens": Remaining(10, 10, 60.0)}


@pytest.mark.parametrize(("spent", "left"), [(9, 1), (10, -1), (25, -1)])
def test_a_turn_is_let_in_while_any_token_is_left(spent: int, left: int) -> None:
    async def asked() -> dict[str, Remaining]:
        windows = Windows(BOTH, None)
        await windows.count("acme", {"tokens": spent})
        await windows.count("other", {"tokens": 5})
        return await remaining(windows)

    assert asyncio.run(asked())["tokens"].remaining == left


def test_of_requests_there_are_as_many_as_the_limit_says() -> None:
    async def asked() -> list[int]:
        windows = Windows(RateLimits(requests_per_minute=3), None)
        return [(await remaining(windows))["requests"].remaining for _ in range(5)]

    assert asyncio.run(asked()) == [2, 1, 0, -1, -1]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Fickle(LocalCounts):
    """Refuses to count for as long as it is ``away``, and waits until it is ``free``."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.away = False
        self.free = asyncio.Event()
        self.free.set()

    async def count(
        self,
        key: str,
        amounts: Mapping[str, int],
        permit: Permit | None = None,
        *,
        ttl: float,
        deferrable: bool = False,
    ) -> dict[str, Count]:
        self.asked += 1
        await self.free.wait()
        if self.away:
            raise StoreError("it is away")
        return await super().count(key, amounts, permit, ttl=ttl, deferrable=deferrable)


@pytest.mark.anyio
@pytest.mark.parametrize("hangs", [True, False])
async def test_each_counts_alone_until_the_shared_counts_answer(*, hangs: bool) -> None:
    counts = Fickle()
    counts.away = not hangs
    if hangs:
        counts.free.clear()
    windows = Windows(BOTH, counts, deadline=DEADLINE, pause=REST)
    alone = [(await remaining(windows))["requests"].remaining for _ in range(2)]
    while counts.asked < 4:  # noqa: ASYNC110 - one was asked for at first, the others are probes
        await asyncio.sleep(REST)
    assert alone == [2, 1] and windows.is_alone
    counts.away = False
    counts.free.set()
    while windows.is_alone:  # noqa: ASYNC110 - nobody rings a bell
        await asyncio.sleep(REST)
    assert (await remaining(windows))["requests"].remaining == 2
    await windows.aclose()


@pytest.mark.anyio
async def test_tokens_that_the_shared_counts_do_not_take_are_counted_here() -> None:
    counts = Fickle()
    counts.away = True
    windows = Windows(BOTH, counts, deadline=DEADLINE)
    await windows.count("acme", {"tokens": 9})
    assert windows.is_alone
    await windows.count("other", {"tokens": 9})
    assert (await remaining(windows))["tokens"].remaining == 1
    async with asyncio.timeout(10):
        await windows.aclose()  # though it would be probed in a second


async def rests(windows: Windows, counts: Fickle, times: int) -> list[float]:
    """How long it was left alone, each time that it failed right after it had come back."""
    found = []
    for _ in range(times):
        counts.away = True
        await windows.count("acme", TURN)
        counts.away = False
        began = time.monotonic()
        while windows.is_alone:  # noqa: ASYNC110 - nobody rings a bell
            await asyncio.sleep(REST / 10)
        found.append(time.monotonic() - began)
    return found


@pytest.mark.anyio
async def test_what_comes_and_goes_is_left_alone_for_longer_each_time() -> None:
    counts = Fickle()
    windows = Windows(LIMITS, counts, deadline=DEADLINE, pause=REST)
    found = await rests(windows, counts, 4)
    assert all(rest >= 2**n * REST * 0.9 for n, rest in enumerate(found)), found
    await windows.aclose()


@pytest.mark.anyio
async def test_what_was_well_for_a_minute_is_asked_soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = Fickle()
    windows = Windows(LIMITS, counts, deadline=DEADLINE, pause=REST)
    await rests(windows, counts, 5)
    monkeypatch.setattr("proxy.admission.quota._SOON", 0.0)
    assert (await rests(windows, counts, 1))[0] < 8 * REST
    await windows.aclose()


def test_what_was_counted_while_the_loop_was_busy_is_not_late() -> None:
    async def busy() -> bool:
        loop, counts = asyncio.get_running_loop(), Fickle()
        counts.free.clear()
        windows = Windows(LIMITS, counts, deadline=DEADLINE)
        asking = asyncio.create_task(windows.count("acme", TURN))
        for _ in range(4):
            await asyncio.sleep(0)
        bell = threading.Timer(DEADLINE / 2, loop.call_soon_threadsafe, [counts.free.set])
        bell.start()
        time.sleep(2 * DEADLINE)
        await asking
        return windows.is_alone

    uvloop = pytest.importorskip("uvloop")  # which looks at its clock first
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(busy()) is False


KB = 1000


@pytest.mark.parametrize(
    ("size", "requests"), [(0, 1), (1, 1), (64 * KB, 1), (64 * KB + 1, 2), (15_000 * KB, 235)]
)
def test_what_asks_no_model_weighs_a_request_for_each_64_kilobytes_begun(size: int, requests: int) -> None:
    assert weight(size) == requests


async def by_size(quota: Quota, size: int, answer: int = 0) -> str:
    """The requests that such a one leaves, or why it is refused."""
    client = ReadingClient()
    try:
        async with quota.admit_by_size("acme", size, reply := client.reply()):
            await reply.begin(200, [], b"x" * answer, ends=True)
            return client.header("x-ratelimit-remaining-requests")
    except LimitExceeded as refused:
        return refused.type


def test_a_request_by_its_size_takes_as_many_as_it_weighs_and_is_refused_once_none_are_left() -> None:
    async def asked() -> list[str]:
        quota = Quota(RateLimits(requests_per_minute=10))
        return [await by_size(quota, size * KB) for size in (100, 640, 0, 0)]

    assert asyncio.run(asked()) == ["8", "0", "requests", "requests"]


def test_what_an_answer_weighs_beside_its_request_is_counted_when_it_has_been_sent() -> None:
    async def asked() -> list[str]:
        quota = Quota(RateLimits(requests_per_minute=10))
        before = await by_size(quota, 30 * KB, answer=200 * KB)
        await asyncio.sleep(0)
        return [before, await by_size(quota, 0)]

    assert asyncio.run(asked()) == ["9", "5"]


def test_a_request_that_asks_no_model_needs_no_tokens_and_is_one_of_the_answers_at_once() -> None:
    async def asked() -> list[str]:
        quota = Quota(RateLimits(requests_per_minute=9, tokens_per_minute=10, concurrent_streams=1))
        async with quota.admit("acme", 0, reply := ReadingClient().reply()):
            during = await by_size(quota, 0)
            for _ in range(10):
                reply.observation.answer.add(b"data: {}\n\n")
        await asyncio.sleep(0)
        return [during, await turn(quota), await by_size(quota, 0)]

    assert asyncio.run(asked()) == ["streams", "tokens", "6"]
