"""A session is told of once more when nothing was written to it for a while."""

import asyncio

from proxy.background.worker import IdleTimer
from proxy.memory.session import Session
from proxy.memory.stores.store import Key

ONE, TWO = Key("t", "1"), Key("t", "2")
AFTER = 1.0
"""Seconds; many times what lies between two writes, though a machine is busy."""


def test_a_session_is_told_of_once_after_the_pause() -> None:
    told: list[tuple[Key, float]] = []

    async def until(count: int) -> None:
        async with asyncio.timeout(10):
            while len(told) < count:  # noqa: ASYNC110  (the listener is no coroutine)
                await asyncio.sleep(0.01)

    async def run() -> list[float]:
        """When each was written last before it was told of."""
        now = asyncio.get_running_loop().time
        pause = IdleTimer(lambda key: told.append((key, now())), after=AFTER)
        pause.session_written(ONE, Session())
        two = now()
        pause.session_written(TWO, Session(next_turn=7))
        for turn in range(1, 3):
            await asyncio.sleep(0.1)
            one = now()
            pause.session_written(ONE, Session(next_turn=turn))
        await until(2)
        again = now()
        pause.session_written(ONE, Session(next_turn=9))
        await until(3)
        return [two, one, again]

    written = asyncio.run(run())
    assert [key for key, _ in told] == [TWO, ONE, ONE]
    assert all(at - last >= AFTER for (_, at), last in zip(told, written, strict=True))
