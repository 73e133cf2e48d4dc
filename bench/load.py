"""Load by callers who send requests for a while, and its measurements."""

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence
from itertools import count
from typing import NamedTuple

import msgspec

from bench.engine import TURNS, Conversation, Line, Reply
from bench.serving import Running, Spent

_LOOK = 2.0
# In seconds of CPU between two looks: an idle server takes less.
_AT_REST = 0.03
_LOOKS = 15


class Block(msgspec.Struct):
    """The measurements of a block of load. Times are in milliseconds, of all streams and all later deltas."""

    callers: int
    firsts: list[float] = []
    lags: list[float] = []
    errors: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    megabytes: float = 0.0

    @property
    def streams(self) -> int:
        """The number of streams that were read to their end."""
        return len(self.firsts)

    def joined(self, other: "Block") -> "Block":
        """Returns two blocks as one."""
        firsts, lags = [*self.firsts, *other.firsts], [*self.lags, *other.lags]
        return Block(self.callers, firsts, lags, self.errors + other.errors)


def quantile(values: list[float], share: float) -> float:
    """Returns a quantile of values; 0 if there are none."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else 0.0


class Callers(NamedTuple):
    """This many callers, silent for ``pause`` seconds between their turns.

    The name of ``model`` selects its answers.
    """

    count: int
    model: str
    pause: float = 0.0
    stream: bool = True


class Load:
    """Callers of one address; each makes one call of 16 turns after the other.

    With ``sessions`` each call has a session, so that it is remembered. Answers are replayed.
    """

    def __init__(self, port: int, *, sessions: bool, key: str = "sk-bench") -> None:
        self._port = port
        self._sessions = sessions
        self._key = key
        self._numbers = count()

    async def block(self, callers: Callers, seconds: float, server: Running | None = None) -> Block:
        """Runs these callers for a while."""
        until = time.monotonic() + seconds
        apart = callers.pause or 0.64  # spread over the time that one stream takes
        with _measured(callers.count, server) as measured:
            late = [apart * i / callers.count for i in range(callers.count)]
            await asyncio.gather(*(self._caller(measured, callers, until, each) for each in late))
        return measured

    async def growth(
        self, callers: int, starts: Sequence[int], turns: int, model: str, server: Running | None = None
    ) -> list[Block]:
        """Returns a block for each of these turns of calls that never end."""
        lines = [Line("127.0.0.1", self._port) for _ in range(callers)]
        calls = [Conversation(line, model, self._headers()) for line in lines]
        blocks, reached = [], 0
        for start in starts:
            await self._turns(Block(callers), calls, start - reached)
            await _at_rest(server)
            with _measured(callers, server) as measured:
                await self._turns(measured, calls, turns)
                await _at_rest(server)  # what is done behind a turn is part of it
            reached = start + turns
            blocks.append(measured)
        for line in lines:
            line.close()
        return blocks

    async def held(self, sessions: int, model: str, server: Running | None = None) -> Block:
        """Runs this many calls of two turns, 16 at once."""
        numbers = iter(range(sessions))

        async def caller() -> None:
            line = Line("127.0.0.1", self._port)
            for _ in numbers:
                call = Conversation(line, model, self._headers(), joined=True)
                await self._turns(measured, [call], 2)
            line.close()

        with _measured(16, server) as measured:
            await asyncio.gather(*(caller() for _ in range(16)))
            await _at_rest(server)
        return measured

    @staticmethod
    async def _turns(measured: Block, calls: Sequence[Conversation], turns: int) -> None:
        async def go_on(call: Conversation) -> None:
            for _ in range(turns):
                _note(measured, await call.turn())

        await asyncio.gather(*map(go_on, calls))

    async def _caller(self, measured: Block, callers: Callers, until: float, late: float) -> None:
        await asyncio.sleep(late)
        line, call = Line("127.0.0.1", self._port), None
        # Not all callers are at the same turn.
        for turn in count(next(self._numbers) % TURNS):
            if time.monotonic() >= until:
                break
            if call is None or turn % TURNS == 0:
                call = Conversation(line, callers.model, self._headers(), joined=True, stream=callers.stream)
            try:
                _note(measured, await call.turn())
            except (OSError, TimeoutError):
                measured.errors += 1
                await asyncio.sleep(0.05)
            await asyncio.sleep(callers.pause)
        line.close()

    def _headers(self) -> str:
        """Returns the headers of all requests of one conversation."""
        name = f"bench-{self._port}-{next(self._numbers)}"
        session = f"x-session-id: {name}\r\nx-user-id: {name}\r\n" if self._sessions else ""
        return f"authorization: Bearer {self._key}\r\n{session}"


def _note(measured: Block, reply: Reply) -> None:
    measured.firsts.append(reply.first * 1000)
    measured.lags.extend(lag * 1000 for lag in reply.lags[1:])


@contextlib.contextmanager
def _measured(callers: int, server: Running | None) -> Iterator[Block]:
    """Measures a block, with the server's use of CPU and memory."""
    block = Block(callers)
    before = server.spent() if server else Spent(0, 0)
    watch = asyncio.create_task(_watched(block, server))
    began = time.monotonic()
    yield block
    block.seconds = time.monotonic() - began
    watch.cancel()
    block.cpu = (server.spent().seconds - before.seconds) * 1000 if server else 0.0


async def _at_rest(server: Running | None) -> None:
    """Waits until the server is idle, at most half a minute: background work ends later than turns."""
    spent = 0.0
    for _ in range(_LOOKS if server else 0):
        before, spent = spent, server.spent().seconds
        if spent - before < _AT_REST:
            break
        await asyncio.sleep(_LOOK)


async def _watched(measured: Block, server: Running | None) -> None:
    while server:
        measured.megabytes = max(measured.megabytes, server.spent().megabytes)
        await asyncio.sleep(0.7)
