"""A silence before the model's first word, or between two, and what goes out into it."""

import asyncio
from collections.abc import Sequence
from types import TracebackType

from filters.base import Context
from filters.filler import Filler
from proxy.pipeline import Pipeline
from proxy.relay import UNBUFFERED
from proxy.reply import Header, Reply
from proxy.rewriting import Rewriting, event_of

_STREAM: Header = (b"content-type", b"text/event-stream; charset=utf-8")
_COMMENT = b": keep-alive\n\n"
# In each period it is looked so often whether anything went out.
_LOOKS = 8


class Silence:
    """Says the filler's phrase if the answer is late, and sends comments while nothing else goes out.

    ``tape`` is what went out so far. Whatever goes out first takes the status with it. Leaving it ends both.
    """

    def __init__(
        self, pipeline: Pipeline, context: Context, answer: Rewriting, reply: Reply, tape: Sequence[bytes]
    ) -> None:
        self._filler = next((each for each in pipeline.answer if isinstance(each, Filler)), None)
        self._keep_alive = pipeline.keep_alive
        self._context = context
        self._answer = answer
        self._reply = reply
        self._tape = tape
        self._waiting: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> None:
        if self._filler:
            self._waiting.append(asyncio.create_task(self._fill(self._filler)))
        if self._keep_alive:
            self._waiting.append(asyncio.create_task(self._hold(self._keep_alive)))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._waiting:
            task.cancel()

    async def _fill(self, filler: Filler) -> None:
        await asyncio.sleep(filler.after)
        if not (self._answer.begun or self._reply.ending):
            await self._begin()
            await self._reply.write(self._answer.first() + self._said(filler.phrase(self._context)))

    async def _hold(self, period: float) -> None:
        quiet, seen = 0, len(self._tape)
        while not self._reply.ending:
            await asyncio.sleep(period / _LOOKS)
            quiet = quiet + 1 if seen == len(self._tape) else 0
            if quiet == _LOOKS and not self._reply.ending:
                await self._begin()
                await self._reply.write(_COMMENT)
                quiet = 0
            seen = len(self._tape)

    async def _begin(self) -> None:
        if not self._reply.started:
            await self._reply.start(200, [_STREAM, *UNBUFFERED])

    def _said(self, phrase: str) -> bytes:
        delta = {"role": "assistant", "content": phrase}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        created = int(self._context.now)
        base = {"id": "chatcmpl-filler", "object": "chat.completion.chunk", "created": created}
        return event_of({**base, "model": "filler", "choices": [choice]})
