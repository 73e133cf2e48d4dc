"""A silence before the model's first word, or between two, and what goes out into it."""

import asyncio
from types import TracebackType
from uuid import uuid4

from filters.base import Context
from filters.filler import Filler
from proxy.answer.rewriting import Rewriting, event_of
from proxy.edge.reply import Header, Reply
from proxy.pipeline import Pipeline
from proxy.relay import UNBUFFERED

_STREAM: Header = (b"content-type", b"text/event-stream; charset=utf-8")
_COMMENT = b": keep-alive\n\n"
# In each period it is looked so often whether anything went out.
_LOOKS = 8


class Silence:
    """Says the filler's phrase if the answer is late, and sends comments while nothing else goes out.

    ``model`` is what is asked. Whatever goes out first takes the status with it. Leaving it ends both.
    """

    def __init__(
        self, pipeline: Pipeline, context: Context, answer: Rewriting, reply: Reply, model: str
    ) -> None:
        self._filler = next((each for each in pipeline.answer if isinstance(each, Filler)), None)
        self._keep_alive = pipeline.keep_alive
        self._context = context
        self._answer = answer
        self._reply = reply
        self._model = model
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
        if self._answer.begun or self._reply.ending:
            return
        await self._begin()
        if not self._answer.begun:  # it may have, while the status was on its way
            await self._reply.write(self._answer.first() + self._said(filler.phrase(self._context)))

    async def _hold(self, period: float) -> None:
        sent = self._reply.watch.sent
        quiet, seen = 0, len(sent)
        while not self._reply.ending:
            await asyncio.sleep(period / _LOOKS)
            quiet = quiet + 1 if seen == len(sent) else 0
            if quiet == _LOOKS and not self._reply.ending:
                await self._begin()
                await self._reply.write(_COMMENT)
                quiet = 0
            seen = len(sent)

    async def _begin(self) -> None:
        if not self._reply.started:
            await self._reply.start(200, [_STREAM, *UNBUFFERED])

    def _said(self, phrase: str) -> bytes:
        """The phrase as a chunk, under a name that the answer takes on."""
        name = {"id": f"chatcmpl-{uuid4().hex}", "created": int(self._context.now)}
        self._answer.under(name)
        delta = {"role": "assistant", "content": phrase}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        base = {**name, "object": "chat.completion.chunk", "model": self._model}
        return event_of({**base, "choices": [choice]})
