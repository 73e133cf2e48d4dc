"""A caller's own line to the proxy: what is asked over it, and what of the answer was heard."""

import asyncio
import re
import time
from typing import NamedTuple, cast

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_DEGRADED = re.compile(rb"\r\nx-turnkeeper-degraded: *([^\r]*)", re.IGNORECASE)
_SAID = re.compile(rb'"content": "([^"]+)"')
_DONE = b"data: [DONE]"
_LONGEST = 30.0


class Heard(NamedTuple):
    """What became of one request: ``whole``, ``left``, ``broken``, ``too late`` or a status.

    ``first`` are the seconds to the first token; ``text`` is what was heard of the answer.
    """

    outcome: str
    text: str = ""
    first: float | None = None
    degraded: str = ""


class Phone(asyncio.Protocol):
    """One connection, which is kept between two turns."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._transport: asyncio.Transport | None = None
        self._ended: asyncio.Future[None] | None = None
        self._answer = bytearray()
        self._first: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Takes the connection."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's own word
        """Whatever was awaited ends here."""
        self._transport = None
        self._end()

    def data_received(self, data: bytes) -> None:
        """Keeps what comes, and sees whether it was the last of it."""
        if self._first is None and b"@" in data:
            self._first = time.monotonic()
        self._answer += data
        if self._answer.endswith(b"0\r\n\r\n") or (data.endswith(b"}}") and _is_whole(self._answer)):
            self._end()

    def _end(self) -> None:
        if self._ended and not self._ended.done():
            self._ended.set_result(None)

    async def dial(self) -> None:
        """Opens the line, where it is not open; raises OSError if nobody is there."""
        if self._transport is None:
            await asyncio.get_running_loop().create_connection(lambda: self, "127.0.0.1", self._port)

    async def ask(self, body: bytes, session: str, patience: float | None = None) -> Heard:
        """One answer; ``patience`` is after how many seconds the caller hangs up."""
        kept = self._transport is not None
        heard = await self._asked(body, session, patience)
        # A kept connection may be closed at the very moment in which it is used: then one asks again.
        if kept and heard.outcome == "nothing":
            return await self._asked(body, session, patience)
        return heard

    async def _asked(self, body: bytes, session: str, patience: float | None) -> Heard:
        await self.dial()
        self._ended, self._first = asyncio.get_running_loop().create_future(), None
        self._answer.clear()
        began = time.monotonic()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nx-session-id: {session}\r\n"
        said = f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
        cast("asyncio.Transport", self._transport).write(said)
        try:
            async with asyncio.timeout(patience or _LONGEST):
                await self._ended
        except TimeoutError:
            self.hang_up()
            return self._heard(began, "too late" if patience is None else "left")
        return self._heard(began, None)

    def _heard(self, began: float, outcome: str | None) -> Heard:
        head, _, rest = bytes(self._answer).partition(b"\r\n\r\n")
        said = unchunked(rest)
        degraded = _DEGRADED.search(head)
        return Heard(
            outcome or _outcome(head, said),
            b"".join(_SAID.findall(said)).decode(),
            None if self._first is None else self._first - began,
            degraded[1].decode() if degraded else "",
        )

    def hang_up(self) -> None:
        """Leaves, in the middle of an answer, too."""
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
    """The body in chunks that came in whole."""
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
