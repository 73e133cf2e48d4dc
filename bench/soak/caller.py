"""Callers with separate connections: most listen, some interrupt, some hang up during an answer."""

import asyncio
import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, cast

from bench.soak.ledger import Ledger, Talk, Turn, mark

MODEL = "paced-50-25"
_SYSTEM = {"role": "system", "content": "You are a helpful voice assistant. Keep answers short. " * 4}
_HANGS_UP, _INTERRUPTS = 0.1, 0.1
_SHORTEST, _LONGEST = 4, 40
_SHOWN = 12
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_DEGRADED = re.compile(rb"\r\nx-turnkeeper-degraded: *([^\r]*)", re.IGNORECASE)
_SAID = re.compile(rb'"content": "([^"]+)"')
_DONE = b"data: [DONE]"
_ANSWERED_WITHIN = 30.0


class Reply(NamedTuple):
    """The result of one request: ``whole``, ``left``, ``broken``, ``too late`` or a status.

    ``first`` is the time to the first token in seconds; ``text`` is the part of the answer that was received.
    """

    outcome: str
    text: str = ""
    first: float | None = None
    degraded: str = ""


class Phone(asyncio.Protocol):
    """One connection, which stays open between two turns."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._transport: asyncio.Transport | None = None
        self._ended: asyncio.Future[None] | None = None
        self._answer = bytearray()
        self._first: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Stores the connection."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's own word
        """Ends the request under way."""
        self._transport = None
        self._end()

    def data_received(self, data: bytes) -> None:
        """Collects data, and detects the end of the answer."""
        if self._first is None and b"@" in data:
            self._first = time.monotonic()
        self._answer += data
        if self._answer.endswith(b"0\r\n\r\n") or (data.endswith(b"}}") and _is_whole(self._answer)):
            self._end()

    def _end(self) -> None:
        if self._ended and not self._ended.done():
            self._ended.set_result(None)

    async def dial(self) -> None:
        """Opens the connection if it is closed; raises OSError if no server answers."""
        if self._transport is None:
            await asyncio.get_running_loop().create_connection(lambda: self, "127.0.0.1", self._port)

    async def ask(self, body: bytes, session: str, patience: float | None = None) -> Reply:
        """Reads one answer; the caller hangs up after ``patience`` seconds."""
        kept = self._transport is not None
        reply = await self._ask(body, session, patience)
        # A kept connection may be closed at the very moment in which it is used: then one asks again.
        if kept and reply.outcome == "nothing":
            return await self._ask(body, session, patience)
        return reply

    async def _ask(self, body: bytes, session: str, patience: float | None) -> Reply:
        await self.dial()
        self._ended, self._first = asyncio.get_running_loop().create_future(), None
        self._answer.clear()
        began = time.monotonic()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nx-session-id: {session}\r\n"
        said = f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
        cast("asyncio.Transport", self._transport).write(said)
        try:
            async with asyncio.timeout(patience or _ANSWERED_WITHIN):
                await self._ended
        except TimeoutError:
            self.hang_up()
            return self._reply(began, "too late" if patience is None else "left")
        return self._reply(began, None)

    def _reply(self, began: float, outcome: str | None) -> Reply:
        head, _, rest = bytes(self._answer).partition(b"\r\n\r\n")
        said = unchunked(rest)
        degraded = _DEGRADED.search(head)
        return Reply(
            outcome or _outcome(head, said),
            b"".join(_SAID.findall(said)).decode(),
            None if self._first is None else self._first - began,
            degraded[1].decode() if degraded else "",
        )

    def hang_up(self) -> None:
        """Closes the connection, even during an answer."""
        if self._transport:
            self._transport.close()
            self._transport = None


def _outcome(head: bytes, said: bytes) -> str:
    if not head:
        return "nothing"
    if not head.startswith(b"HTTP/1.1 200"):
        return head[9:12].decode()
    return "whole" if _DONE in said else "broken"


def _is_whole(answer: bytearray) -> bool:
    head, _, rest = bytes(answer).partition(b"\r\n\r\n")
    length = _LENGTH.search(head)
    return length is not None and len(rest) >= int(length[1])


def unchunked(data: bytes) -> bytes:
    """Returns the body from the chunks that have arrived completely."""
    pieces, place = [], 0
    while (end := data.find(b"\r\n", place)) >= 0:
        try:
            size = int(data[place:end].split(b";")[0], 16)
        except ValueError:
            break  # an error, which comes with its length
        if not size or end + 2 + size > len(data):
            break
        pieces.append(data[end + 2 : end + 2 + size])
        place = end + 4 + size
    return b"".join(pieces)


class First(NamedTuple):
    """The time of a caller's first token in seconds, and when it was measured."""

    at: float
    waited: float


class Crowd:
    """All callers, with the results of their turns. ``pause`` is the mean pause between turns in seconds."""

    def __init__(self, port: int, ledger: Ledger, *, pause: float, seed: int = 1) -> None:
        self.outcomes: Counter[str] = Counter()
        self.firsts: list[First] = []
        self.degraded: list[float] = []
        self.talking = 0
        self._port = port
        self._ledger = ledger
        self._pause = pause
        self._dice = random.Random(seed)
        self._numbers = 0

    async def talk(self, callers: int, until: float) -> None:
        """Runs this many callers, who begin one after the other, until a given time."""
        late = min(10.0, (until - time.monotonic()) / 10)
        await asyncio.gather(*(self._caller(until, late * place / callers) for place in range(callers)))

    async def _caller(self, until: float, late: float) -> None:
        await asyncio.sleep(late)
        self.talking += 1
        while time.monotonic() < until:
            self._numbers += 1
            await self._call(f"soak-{self._numbers}", until)
        self.talking -= 1

    async def _call(self, name: str, until: float) -> None:
        """Runs one call; half of the voice platforms replay recent messages, the others only the newest."""
        phone, turns, window = Phone(self._port), list[Turn](), list[dict[str, Any]]()
        shown = _SHOWN if self._dice.random() < 0.5 else 0
        for number in range(1, self._dice.randint(_SHORTEST, _LONGEST) + 1):
            words = f"Question {number} of {name}, in as many words as people use"

            posted = partial(_body, [_SYSTEM, *window[len(window) - shown :]], number)
            turn, reply = await self._turn(phone, name, words, posted)
            turns.append(turn)
            window += _replayed(words, reply, number)
            if time.monotonic() >= until:
                break
            await asyncio.sleep(self._dice.uniform(0.3, 1.7) * self._pause)
        phone.hang_up()
        self._ledger.add(Talk(name, turns, time.monotonic()))

    async def _turn(
        self, phone: Phone, name: str, words: str, posted: Callable[[str], bytes]
    ) -> tuple[Turn, Reply]:
        dice, withdrawn = self._dice.random(), ""
        if dice < _INTERRUPTS:
            withdrawn = words[: len(words) // 2]
            other = await self._second_line()
            early = asyncio.create_task(self._ask(other, posted(withdrawn), name))
            await asyncio.sleep(self._dice.uniform(0.15, 0.6))
            reply = await self._ask(phone, posted(words), name)
            self.outcomes[f"superseded: {(await early).outcome}"] += 1
            other.hang_up()
        else:
            patience = self._dice.uniform(0.01, 1.2) if dice > 1 - _HANGS_UP else None
            reply = await self._ask(phone, posted(words), name, patience)
        self.outcomes[reply.outcome] += 1
        whole = mark(reply.text) if reply.outcome == "whole" else None
        return Turn(words, whole, bool(reply.text), withdrawn), reply

    async def _second_line(self) -> Phone:
        """Opens a connection in advance: if it were opened later, newer words could arrive first."""
        other = Phone(self._port)
        with suppress(OSError):
            await other.dial()
        return other

    async def _ask(self, phone: Phone, body: bytes, name: str, patience: float | None = None) -> Reply:
        try:
            reply = await phone.ask(body, name, patience)
        except OSError as error:
            return Reply(type(error).__name__)
        now = time.monotonic()
        if reply.first is not None:
            self.firsts.append(First(now, reply.first))
        if reply.degraded:
            self.degraded.append(now)
        return reply


def _replayed(words: str, reply: Reply, number: int) -> list[dict[str, Any]]:
    """Returns a turn as it is replayed later: the user's words, and the received part of the answer."""
    said = [{"role": "user", "content": words, "turn_id": number}]
    if not reply.text:
        return said
    cut = {"metadata": {"interrupted": True}} if reply.outcome != "whole" else {}
    return [*said, {"role": "assistant", "content": reply.text, "turn_id": number, **cut}]


def _body(before: list[dict[str, Any]], number: int, words: str) -> bytes:
    newest = {"role": "user", "content": words, "turn_id": number}
    asked = {"model": MODEL, "stream": True, "turn_id": number, "messages": [*before, newest]}
    return json.dumps(asked).encode()
