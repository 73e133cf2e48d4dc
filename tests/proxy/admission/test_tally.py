"""Who counts: a Redis that comes and goes is asked less and less often."""

import asyncio
import threading
import time

import pytest

from proxy.admission.quota import FallbackWindows, RateLimits
from proxy.memory.errors import StoreError
from proxy.memory.stores.counts import Count, LocalCounts

DEADLINE = 0.05
REST = 0.02
LIMITS = RateLimits(requests_per_minute=100)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Fickle(LocalCounts):
    """Refuses to count for as long as it is ``away``, and waits until it is ``free``."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False
        self.free = asyncio.Event()
        self.free.set()

    async def add(self, key: str, amount: int, *, lasting: float) -> Count:
        await self.free.wait()
        if self.away:
            raise StoreError("it is away")
        return await super().add(key, amount, lasting=lasting)


async def rests(tally: FallbackWindows, counts: Fickle, times: int) -> list[float]:
    """How long it was left alone, each time that it failed right after it had come back."""
    found = []
    for _ in range(times):
        counts.away = True
        await tally.count_request("acme")
        counts.away = False
        began = time.monotonic()
        while tally.is_alone:  # noqa: ASYNC110 - nobody rings a bell
            await asyncio.sleep(REST / 10)
        found.append(time.monotonic() - began)
    return found


@pytest.mark.anyio
async def test_what_comes_and_goes_is_left_alone_for_longer_each_time() -> None:
    counts = Fickle()
    tally = FallbackWindows(LIMITS, counts, deadline=DEADLINE, pause=REST)
    found = await rests(tally, counts, 4)
    assert all(rest >= 2**n * REST * 0.9 for n, rest in enumerate(found)), found
    await tally.aclose()


@pytest.mark.anyio
async def test_what_was_well_for_a_minute_is_asked_soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = Fickle()
    tally = FallbackWindows(LIMITS, counts, deadline=DEADLINE, pause=REST)
    await rests(tally, counts, 5)
    monkeypatch.setattr("proxy.admission.quota._SOON", 0.0)
    assert (await rests(tally, counts, 1))[0] < 8 * REST
    await tally.aclose()


def test_what_was_counted_while_the_loop_was_busy_is_not_late() -> None:
    async def busy() -> bool:
        loop, counts = asyncio.get_running_loop(), Fickle()
        counts.free.clear()
        tally = FallbackWindows(LIMITS, counts, deadline=DEADLINE)
        asking = asyncio.create_task(tally.count_request("acme"))
        for _ in range(4):
            await asyncio.sleep(0)
        bell = threading.Timer(DEADLINE / 2, loop.call_soon_threadsafe, [counts.free.set])
        bell.start()
        time.sleep(2 * DEADLINE)
        await asking
        return tally.is_alone

    uvloop = pytest.importorskip("uvloop")  # which looks at its clock first
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(busy()) is False
