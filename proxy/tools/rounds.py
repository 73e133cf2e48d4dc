"""Several answers of a model made one: it calls our tools, is told, and goes on."""

import asyncio
from collections.abc import Awaitable, Callable

from proxy.answer.framing import Framing
from proxy.errors import UpstreamBroken, UpstreamError, UpstreamTimeout
from proxy.tools.completed import Completed
from proxy.tools.dialogue import Dialogue, HeardRound
from proxy.tools.streamed import Streamed
from proxy.upstream import Headers, Response, is_stream, read_all

Again = Callable[[float], Awaitable[Response]]
"""Asks the model to go on from the dialogue as it stands, until when. Raises UpstreamError on refusal."""

_LARGEST = 64_000_000
_LINGER = 1.0
"""For how many seconds an upstream may leave a round open behind its own end."""


class Rounds:
    """A response whose tool calls are carried out where they are ours; the client sees one answer.

    ``since`` is how many rounds were done when it was asked for. Where others are asked at the same time, it
    begins anew once it knows too little. All its rounds together have until ``due``, while nobody says
    otherwise.
    """

    def __init__(self, first: Response, again: Again, dialogue: Dialogue, since: int, due: float) -> None:
        self.status: int = first.status
        self.headers: Headers = first.headers
        self._response = first
        self._again = again
        self._dialogue = dialogue
        self._since = since
        self._due = due
        self._framing = Framing()
        self._streaming = is_stream(first.headers)
        self._streamed = Streamed(dialogue)
        self._completed = Completed(dialogue)
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
            if await self._behind():
                await self._ask_again()
                continue
            shown = self._streamed.feed(self._framing.feed(data) if data else self._framing.close())
            if not data:
                shown += self._streamed.close()
            await self._carry_on(self._streamed, ended=not data)
            if shown:
                return shown
        return b""

    async def _behind(self) -> bool:
        """Whether tools were called elsewhere since this was asked for; what has lost waits to be let go."""
        overtaken = await self._dialogue.overtaken(self, self._since)
        if self._dialogue.left_to_another(self):
            await asyncio.sleep(self._due - asyncio.get_running_loop().time())
            raise UpstreamTimeout("Another upstream was to answer in its place.")
        return overtaken

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
            await self._carry_on(self._completed, ended=True)
            if shown:
                return shown
        return b""

    async def _carry_on(self, heard: HeardRound, *, ended: bool) -> None:
        """Asks again where our tools were called alone; else the answer ends here.

        What is called beside the client's own calls is carried out before they go out: whoever has them may
        leave.
        """
        if heard.mute:
            raise UpstreamBroken("The model went on calling memory tools, and said nothing.")
        if heard.aside:
            await self._dialogue.carry_aside(heard, self)
        if ended and heard.calls:
            await self._dialogue.carry_on(heard)
            await self._ask_again()
        elif ended:
            self._ended = True

    async def _ask_again(self) -> None:
        self._response.close()
        self._since = self._dialogue.rounds
        self._response = await self._again(self._due)
        if is_stream(self._response.headers) != self._streaming:
            raise UpstreamBroken("The upstream changed between a stream and a whole answer.")
        self._framing = Framing()
        self._streamed.begin()
        self._completed.begin()
