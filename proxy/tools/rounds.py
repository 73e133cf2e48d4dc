"""Several answers of a model made one: it calls our tools, is told, and goes on."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from filters.message import Message
from proxy.errors import UpstreamBroken, UpstreamError
from proxy.framing import Framing
from proxy.tools.completed import Completed
from proxy.tools.kit import Carrying
from proxy.tools.offer import Offer
from proxy.tools.streamed import Streamed
from proxy.upstream import Headers, Response, is_stream, read_all

Again = Callable[[Sequence[Message], bool, float], Awaitable[Response]]
"""Asks the model once more: with these messages behind the others, whether for the last time, and until when.

Raises UpstreamError where it refuses.
"""

_LARGEST = 64_000_000
_LINGER = 1.0
"""For how many seconds an upstream may leave a round open behind its own end."""


class Tools(msgspec.Struct, frozen=True):
    """What one turn may call, who carries it out, and how often the model may be asked again.

    ``again`` names an upstream each time that it was.
    """

    offer: Offer
    kit: Carrying
    most: int
    again: list[str] = []


class Rounds:
    """A response whose tool calls are carried out where they are ours; the client sees one answer.

    The last time that the model is asked again, it may not call our tools. All rounds
    together have until ``due``, while nobody says otherwise.
    """

    def __init__(self, first: Response, again: Again, tools: Tools, due: float) -> None:
        self.status: int = first.status
        self.headers: Headers = first.headers
        self._response = first
        self._again = again
        self._kit = tools.kit
        self._left = tools.most
        self._said: list[Message] = []
        self._due = due
        self._framing = Framing()
        self._streaming = is_stream(first.headers)
        self._streamed = Streamed(tools.offer.own)
        self._completed = Completed(tools.offer.own)
        self._ended = False

    async def read(self) -> bytes:
        """As a response's: what the client is to see, b"" at the end."""
        if self._ended:
            return b""
        return await (self._read_stream() if self._streaming else self._read_whole())

    def offer(self, take: Callable[[bytes], bool]) -> None:
        """As a response may: nothing is handed over, because all of it has to be looked at."""

    def due(self, at: float) -> None:
        """As a response's, for this round and those to come."""
        self._due = at
        self._response.due(at)

    def close(self) -> None:
        """Nothing more is wanted."""
        self._ended = True
        self._response.close()

    async def _read_stream(self) -> bytes:
        while not self._ended:
            data = await self._heard()
            shown = self._streamed.feed(self._framing.feed(data) if data else self._framing.close())
            if not data:
                shown += self._streamed.close()
                await self._carry_on(self._streamed)
            if shown:
                return shown
        return b""

    async def _heard(self) -> bytes:
        """What comes next; what breaks or stays open behind its own end is whole."""
        if self._streamed.done and self._streamed.calls:
            self._response.due(min(self._due, asyncio.get_running_loop().time() + _LINGER))
        try:
            return await self._response.read()
        except UpstreamError:
            if not self._streamed.done:
                raise
            return b""

    async def _read_whole(self) -> bytes:
        while not self._ended:
            shown = self._completed.feed(await read_all(self._response, _LARGEST))
            await self._carry_on(self._completed)
            if shown:
                return shown
        return b""

    async def _carry_on(self, heard: Streamed | Completed) -> None:
        """Asks again where our tools were called alone; else the answer ends here."""
        for call in heard.aside:
            await self._told(call)
        if not heard.calls:
            self._ended = True
            return
        called = Message(role="assistant", content=heard.text or None, tool_calls=[*heard.calls])
        self._said += [called, *[await self._result(call) for call in heard.calls]]
        await self._ask_again()

    async def _result(self, call: dict[str, Any]) -> Message:
        return Message(role="tool", tool_call_id=call["id"], content=await self._told(call))

    async def _told(self, call: dict[str, Any]) -> str:
        function = call["function"]
        return await self._kit.carry_out(function["name"], function["arguments"])

    async def _ask_again(self) -> None:
        self._left -= 1
        self._response.close()
        self._response = await self._again(self._said, self._left <= 0, self._due)
        if is_stream(self._response.headers) != self._streaming:
            raise UpstreamBroken("The upstream changed between a stream and a whole answer.")
        self._framing = Framing()
        for heard in (self._streamed, self._completed):
            heard.begin_again(last=self._left <= 0)
