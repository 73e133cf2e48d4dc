"""Callers who ask again and again for a while, and what they heard."""

import asyncio
import time
from itertools import count

import msgspec

from bench.engine import Line, body, windows
from bench.serving import Running, Spent


class Block(msgspec.Struct):
    """What a block of load measured. Times are in milliseconds, of all streams and of all later deltas."""

    callers: int
    firsts: list[float] = []
    lags: list[float] = []
    errors: int = 0
    cpu: float = 0.0
    megabytes: float = 0.0

    @property
    def streams(self) -> int:
        """How many streams were heard to their end."""
        return len(self.firsts)

    def joined(self, other: "Block") -> "Block":
        """Two blocks as one."""
        firsts, lags = [*self.firsts, *other.firsts], [*self.lags, *other.lags]
        return Block(self.callers, firsts, lags, self.errors + other.errors)


def quantile(values: list[float], share: float) -> float:
    """The value below which that share of all values lies; 0 of none."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else 0.0


class Load:
    """Callers of one address; each posts a growing conversation of 16 turns, and then another.

    With ``sessions`` each conversation has a name, so that it is remembered.
    """

    def __init__(self, port: int, *, sessions: bool, key: str = "sk-bench") -> None:
        self._port = port
        self._sessions = sessions
        self._key = key
        self._numbers = count()
        self._windows = windows()

    async def block(self, callers: int, seconds: float, model: str, server: Running | None = None) -> Block:
        """That many callers for that long, spread over the time that one stream takes."""
        measured = Block(callers)
        before = server.spent() if server else Spent(0, 0)
        until = time.monotonic() + seconds
        bodies = [body(window, model) for window in self._windows]
        calls = [self._call(measured, bodies, until, 0.64 * i / callers) for i in range(callers)]
        watch = asyncio.create_task(_watched(measured, server))
        await asyncio.gather(*calls)
        watch.cancel()
        measured.cpu = (server.spent().seconds - before.seconds) * 1000 if server else 0.0
        return measured

    async def _call(self, measured: Block, bodies: list[bytes], until: float, late: float) -> None:
        await asyncio.sleep(late)
        line = Line("127.0.0.1", self._port)
        # Not all callers are at the same turn.
        turns = count(next(self._numbers) % len(bodies))
        headers = ""
        while time.monotonic() < until:
            turn = next(turns) % len(bodies)
            headers = self._headers() if not (turn and headers) else headers
            try:
                heard = await line.ask(bodies[turn], headers)
                measured.firsts.append(heard.first * 1000)
                measured.lags.extend(lag * 1000 for lag in heard.lags[1:])
            except (OSError, TimeoutError):
                measured.errors += 1
                await asyncio.sleep(0.05)
        line.close()

    def _headers(self) -> str:
        """What the requests of one conversation have in common."""
        name = f"bench-{self._port}-{next(self._numbers)}"
        session = f"x-session-id: {name}\r\n" if self._sessions else ""
        return f"authorization: Bearer {self._key}\r\n{session}"


async def _watched(measured: Block, server: Running | None) -> None:
    while server:
        measured.megabytes = max(measured.megabytes, server.spent().megabytes)
        await asyncio.sleep(0.7)
