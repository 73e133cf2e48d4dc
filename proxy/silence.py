"""A silence before the model's first word, and what is said into it."""

import asyncio
from collections.abc import Iterable
from types import TracebackType

from filters.base import AnswerFilter, Context
from filters.filler import Filler
from proxy.relay import UNBUFFERED
from proxy.reply import Header, Reply
from proxy.rewriting import Rewriting, event_of

_STREAM: Header = (b"content-type", b"text/event-stream; charset=utf-8")


class Silence:
    """Says the filler's phrase if the answer has not begun in time; leaving it ends the waiting."""

    def __init__(
        self, filters: Iterable[AnswerFilter], context: Context, answer: Rewriting, reply: Reply
    ) -> None:
        self._filler = next((each for each in filters if isinstance(each, Filler)), None)
        self._context = context
        self._answer = answer
        self._reply = reply
        self._waiting: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        if self._filler:
            self._waiting = asyncio.create_task(self._fill(self._filler))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._waiting:
            self._waiting.cancel()

    async def _fill(self, filler: Filler) -> None:
        await asyncio.sleep(filler.after)
        if not self._reply.started:
            await self._reply.start(200, [_STREAM, *UNBUFFERED])
            await self._reply.write(self._answer.first() + self._said(filler.phrase(self._context)))

    def _said(self, phrase: str) -> bytes:
        delta = {"role": "assistant", "content": phrase}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        created = int(self._context.now)
        base = {"id": "chatcmpl-filler", "object": "chat.completion.chunk", "created": created}
        return event_of({**base, "model": "filler", "choices": [choice]})
