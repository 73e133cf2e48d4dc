"""Streams an answer to the client, with keep-alives and filler phrases while it is silent."""

import asyncio
from functools import partial
from types import TracebackType
from uuid import uuid4

from filters.base import Context
from filters.filler import Filler
from proxy.answer.sse import DONE, Framing, is_done
from proxy.answer.stream_filters import FilteredAnswer, chunk_event
from proxy.errors import UpstreamBroken, UpstreamError
from proxy.http.reply import Header, Reply
from proxy.memory.tasks import in_thread_if_long
from proxy.tools.dialogue import Dialogue
from proxy.turn.pipeline import Pipeline
from proxy.upstream.attempt import UpstreamAnswer, client_headers
from proxy.upstream.opening import ERROR_KEY, split_at_error

# Proxies in front of us must not collect a stream, nor keep a copy of it.
UNBUFFERED: list[Header] = [(b"x-accel-buffering", b"no"), (b"cache-control", b"no-cache")]
_LINGER = 1.0
"""For how many seconds an upstream may leave a stream open behind its own end."""
# uvloop reads from a fast sender many times before it runs anything else.
_LARGEST_PUSH = 16_000
_LARGEST_ANSWER = 64_000_000
_STREAM: Header = (b"content-type", b"text/event-stream; charset=utf-8")
_COMMENT = b": keep-alive\n\n"
_CHECKS_PER_PERIOD = 8


async def pass_on(
    upstream: UpstreamAnswer, answer: FilteredAnswer, reply: Reply, dialogue: Dialogue | None = None
) -> None:
    """Passes an answer on to its end; the changes of its ``dialogue`` are made before that.

    Raises UpstreamError where a stream breaks off; all that was there has been passed on by then.
    """
    response = upstream.response
    if upstream.framing is not None:
        await _RelayedStream(upstream, upstream.framing, answer, reply, dialogue).run()
        return
    if reply.started:
        raise UpstreamBroken("The upstream was asked for a stream, and answered with something else.")
    body = await in_thread_if_long(partial(answer.filter_body, upstream.data), 0, len(upstream.data))
    if dialogue:
        await dialogue.settle()
    await reply.send_whole(response.status, client_headers(response.headers), body)


class _RelayedStream:
    """A stream on its way to the client.

    What arrives while the client keeps up goes on at once, from within the upstream's own callback, and wakes
    no task. All else goes through the task.
    """

    def __init__(
        self,
        upstream: UpstreamAnswer,
        framing: Framing,
        answer: FilteredAnswer,
        reply: Reply,
        dialogue: Dialogue | None,
    ) -> None:
        self._response = upstream.response
        self._error: UpstreamError | None
        self._opening, self._error = split_at_error(upstream.data)
        self._framing = framing
        self._answer = answer
        self._reply = reply
        self._dialogue = dialogue
        self._outlet = reply.outlet
        self._is_filtered = answer.active
        self._done = False
        self._budget = _LARGEST_ANSWER
        self._waiting = False
        self._failure: Exception | None = None

    async def run(self) -> None:
        """Passes the stream on to its end."""
        answer, reply, status = self._answer, self._reply, self._response.status
        headers = [*client_headers(self._response.headers), *UNBUFFERED]
        if self._is_filtered and not reply.started:  # filters may take their time
            await reply.start(status, headers)
        feed = partial(answer.feed, self._opening)  # filters work on large pieces in a thread
        opening = answer.opening() + await in_thread_if_long(feed, 0, len(self._opening))
        if reply.started:
            await reply.write(opening)
        else:
            await reply.begin(status, headers, opening)
        reply.observation.mark_first_token()
        self._note_done(self._opening)
        if self._dialogue:
            self._dialogue.commit_if_reached(opening)
        self._response.offer(self.take)
        rest = b""
        try:
            if error := answer.error or self._error:
                raise error
            rest = await self._read_to_end()
            rest += answer.feed(self._framing.close())
            if answer.error:
                raise answer.error
        except UpstreamError:
            # A stream that breaks behind its own end, or before the last blank line, is whole.
            tail = self._framing.close()
            if not self._done and is_done(tail):
                self._done = True
                rest += answer.feed(tail)
            if answer.error or not self._done:
                await reply.write(rest + answer.close())
                raise
        if self._dialogue:
            await self._dialogue.settle()
        await reply.end(rest + answer.close())

    def take(self, data: bytes) -> bool:
        """Passes data on, if the task waits for it and the client reads."""
        outlet = self._outlet
        if outlet is None or not (self._waiting and outlet.is_writable):
            return False
        if len(data) > _LARGEST_PUSH or self._failure:
            return False
        try:
            events = self._whole_events(data)
            if events and self._is_filtered:
                events = self._answer.feed(events)
                self._error = self._answer.error or self._error
            if events:
                outlet.write(events)
                self._reply.note_sent(events)
        except UpstreamError:
            raise
        except Exception as error:  # noqa: BLE001 - a filter may raise anything: the task raises it
            self._failure = error
            return False
        if self._error:
            raise self._error
        return True

    async def _read_to_end(self) -> bytes:
        """Passes on what was not taken; returns the last events where the end came with them."""
        while True:
            self._waiting = True
            try:
                data = await self._response.read()
            finally:
                self._waiting = False
            if not data:
                return b""
            if self._failure:
                raise self._failure
            events = self._whole_events(data)
            if self._is_filtered:
                events = await in_thread_if_long(partial(self._answer.feed, events), 0, len(events))
                self._error = self._answer.error or self._error
            if self._response.exhausted and not (self._error or self._is_filtered):
                return events
            if events:
                await self._reply.write(events)
                if self._dialogue:
                    self._dialogue.commit_if_reached(events)
            if self._error:
                raise self._error

    def _whole_events(self, data: bytes) -> bytes:
        """The events that are whole by now, up to an error, which ``_error`` then is."""
        self._budget -= len(data)
        if self._budget < 0:
            raise UpstreamBroken("The upstream's answer has more than 64 MB.")
        events = self._framing.feed(data)
        # A look that is nearly always in vain; backwards it takes half as long.
        if events.rfind(ERROR_KEY) >= 0 or events.rfind(DONE) >= 0:
            events, self._error = split_at_error(events)
            self._note_done(events)
        return events

    def _note_done(self, events: bytes) -> None:
        # A client that reads to the end of the body would wait for an upstream that leaves the stream open.
        if is_done(events) and not self._done:
            self._done = self._reply.ending = True
            self._response.due(asyncio.get_running_loop().time() + _LINGER)


class KeepAlive:
    """Says the filler's phrase if the answer is late, and sends comments while nothing else goes out.

    ``model`` is what is asked. The first of these to go out starts the reply. Leaving it ends both.
    """

    def __init__(
        self, pipeline: Pipeline, context: Context, answer: FilteredAnswer, reply: Reply, model: str
    ) -> None:
        self._pipeline = pipeline
        self._context = context
        self._answer = answer
        self._reply = reply
        self._model = model
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> None:
        filler = next((each for each in self._pipeline.answer_filters if isinstance(each, Filler)), None)
        if filler:
            self._tasks.append(asyncio.create_task(self._say_filler(filler)))
        if self._pipeline.keep_alive:
            self._tasks.append(asyncio.create_task(self._send_comments(self._pipeline.keep_alive)))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()

    async def _say_filler(self, filler: Filler) -> None:
        await asyncio.sleep(filler.after)
        if self._answer.started or self._reply.ending:
            return
        await self._start()
        if self._answer.started:  # the answer may have come while the status was on its way
            return
        opening, phrase = self._answer.opening(), filler.phrase(self._context)
        name = {"id": f"chatcmpl-{uuid4().hex}", "created": int(self._context.now)}
        self._answer.adopt_name(name)
        delta = {"role": "assistant", "content": phrase}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        chunk = {**name, "object": "chat.completion.chunk", "model": self._model, "choices": [choice]}
        await self._reply.write(opening + chunk_event(chunk))

    async def _send_comments(self, period: float) -> None:
        answer = self._reply.observation.answer
        quiet, count = 0, answer.count
        while not self._reply.ending:
            await asyncio.sleep(period / _CHECKS_PER_PERIOD)
            quiet = quiet + 1 if count == answer.count else 0
            if quiet == _CHECKS_PER_PERIOD and not self._reply.ending:
                await self._start()
                await self._reply.write(_COMMENT)
                quiet = 0
            count = answer.count

    async def _start(self) -> None:
        if not self._reply.started:
            await self._reply.start(200, [_STREAM, *UNBUFFERED])
