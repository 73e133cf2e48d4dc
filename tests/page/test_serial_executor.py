"""Work that is no call goes through one by one, however long one piece takes."""

import asyncio
import threading

import pytest

from proxy.page.request import SerialExecutor

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_what_comes_of_it_comes_back():
    turnstile = SerialExecutor(5.0)
    assert await turnstile.run(lambda: 1) == 1
    with pytest.raises(ZeroDivisionError):
        await turnstile.run(lambda: 1 / 0)
    assert await turnstile.run(lambda: 2) == 2


async def test_one_piece_goes_after_the_other():
    turnstile, inside, most = SerialExecutor(5.0), [0], [0]

    def work() -> None:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        threading.Event().wait(0.02)
        inside[0] -= 1

    await asyncio.gather(*(turnstile.run(work) for _ in range(5)))
    assert most == [1]


async def test_whoever_gives_up_lets_nobody_in_beside_what_still_runs():
    turnstile, end = SerialExecutor(1.0), threading.Event()
    with pytest.raises(TimeoutError):
        await turnstile.run(end.wait)
    with pytest.raises(TimeoutError):
        await turnstile.run(lambda: 1)
    end.set()
    assert await turnstile.run(lambda: 2) == 2
