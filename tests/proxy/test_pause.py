"""A session is told of once more when nothing was written to it for a while."""

import asyncio

from proxy.memory.session import Session
from proxy.memory.store import Key
from proxy.pause import Pause

ONE, TWO = Key("t", "1"), Key("t", "2")


def test_a_session_is_told_of_once_after_the_pause() -> None:
    told: list[Key] = []

    async def run() -> list[int]:
        pause = Pause(told.append, after=0.1)
        counts = []
        for turn in range(3):
            pause.told(ONE, Session(turns=turn))
            pause.told(TWO, Session(turns=7)) if turn == 0 else None
            await asyncio.sleep(0.1)
            counts.append(len(told))
        await asyncio.sleep(0.3)
        pause.told(ONE, Session(turns=9))
        await asyncio.sleep(0.3)
        return counts

    assert asyncio.run(run())[0] == 0
    assert told == [TWO, ONE, ONE]
