"""Passes an answer on to the client, with keep-alives and filler phrases while it is silent."""

import asyncio
from functools import partial
from time import perf_counter
from uuid import uuid4

import msgspec

from filters.base import Context
from filters.filler import Filler
from proxy.answer.response import LARGEST_ANSWER
from proxy.answer.sse import DONE, Framing, is_done
from proxy.answer.stream_filters import FilteredAnswer, chunk_event
from proxy.errors import UpstreamBroken, UpstreamError, UpstreamRefused, UpstreamTimeout
from proxy.http.reply import CHUNK, Header, Reply
from proxy.memory.tasks import in_thread_if_long
from proxy.observe.observation import LARGEST_COPY, AnswerCopy
from proxy.tools.rounds import Dialogue
from proxy.turn.pipeline import Pipeline
from proxy.upstream.attempt import ERROR_KEY, UpstreamAnswer, client_headers, retry_policy, split_at_error
from proxy.upstream.routing import Dispatch

# Proxies in front of us must not collect a stream, nor keep a copy of it.
UNBUFFERED: list[Header] = [(b"x-accel-buffering", b"no"), (b"cache-control", b"no-cache")]
_LINGER = 1.0
"""For how many seconds an upstream may leave a stream open behind its own end."""
# uvloop reads from a fast sender many times before it runs anything else.
_LARGEST_PUSH = 16_000
_STREAM: Header = (b"content-type", b"text/event-stream; charset=utf-8")
_COMMENT = b": keep-alive\n\n"
_CHECKS_PER_PERIOD = 8


async def relay_answer(pipeline: Pipeline, context: Context, dispatch: Dispatch, reply: Reply) -> None:
    """Asks the pipeline's upstreams and relays the answer to its end."""
    keep_alive = None
    answer = FilteredAnswer(pipeline.answer_filters, context) if pipeline.answer_filters else None
    if dispatch.streaming and (answer or pipeline.keep_alive):
        keep_alive = KeepAlive(pipeline, context, answer, reply, dispatch.model)
    try:
        await pass_on(await dispatch.begin(), answer, reply, dispatch.dialogue)
    except UpstreamRefused as error:
        error.redact(secret for target in pipeline.targets for secret in target.secrets)
        raise
    finally:
        if keep_alive:
            keep_alive.stop()
        if answer:
            answer.close()


async def pass_on(
    upstream: UpstreamAnswer, answer: FilteredAnswer | None, reply: Reply, dialogue: Dialogue | None = None
) -> None:
    """Relays an answer to its end and closes it; what its ``dialogue`` stores is stored before the end.

    Success and failure are recorded with the circuit breaker. Raises UpstreamError where a stream breaks off,
    once all that had arrived is relayed.
    """
    response, breaker = upstream.response, upstream.breaker
    try:
        if upstream.framing is not None:
            copy = reply.observation.answer
            stream = _RelayedStream(upstream, upstream.framing, answer, reply, dialogue, copy, LARGEST_ANSWER)
            await stream.run()
        elif reply.started:
            raise UpstreamBroken("The upstream was asked for a stream, and answered with something else.")
        else:
            body = upstream.data
            if answer:
                body = await in_thread_if_long(partial(answer.filter_body, body), 0, len(body))
            if dialogue:
                await dialogue.settle()
            await reply.begin(response.status, client_headers(response.headers), body, ends=True)
    except UpstreamTimeout:
        raise  # it may be due to a client that reads slowly
    except UpstreamError as error:
        if retry_policy(error).unhealthy:
            breaker.record_failure()
        raise
    finally:
        response.close()
    if not breaker.is_healthy:
        breaker.record_success()


class _RelayedStream(msgspec.Struct, eq=False):
    """A stream that is relayed to the client.

    While the client keeps up, data is written from within the upstream's own callback (``take``), which wakes
    no task. All else goes through ``run``.
    """

    upstream: UpstreamAnswer
    framing: Framing
    answer: FilteredAnswer | None
    reply: Reply
    dialogue: Dialogue | None
    copy: AnswerCopy
    budget: int
    _in_event: bool = False
    """Whether the last event has arrived in part."""
    _done: bool = False
    _error: UpstreamError | None = None
    _failure: Exception | None = None

    async def run(self) -> None:
        """Relays the stream to its end."""
        response, reply, dialogue = self.upstream.response, self.reply, self.dialogue
        opening = self.upstream.data
        if opening.rfind(ERROR_KEY) >= 0:
            opening, self._error = split_at_error(opening)
        headers = client_headers(response.headers)
        headers += UNBUFFERED
        data = opening
        if self.answer:
            if self.answer.active and not reply.started:  # filters may take their time
                await reply.begin(response.status, headers)
            data = self.answer.opening() + await self._filter_in_thread_if_long(opening)
            if not self.answer.active:
                self.answer = None
        if reply.started:
            await reply.write(data)
        else:
            await reply.begin(response.status, headers, data)
        reply.observation.mark_first_token()
        if opening.rfind(DONE) >= 0:
            self._note_done(opening)
        if dialogue:
            dialogue.commit_if_reached(data)
        rest = b""
        try:
            rest = await self._read_to_end()
            if self._in_event:  # something came behind the last blank line
                event, self._error = split_at_error(self.framing.close())
                event = self._filter(event)
                if self._error:
                    raise self._error
                rest += event
        except UpstreamError as error:
            # What broke off is whole all the same where its last event ends it. An error in that tells more.
            event, last_error = split_at_error(self.framing.close())
            self._error = self._error or last_error
            if not self._done and is_done(event):
                self._done = True
                rest += self._filter(event)
            if self.answer and self.answer.error:
                self._done = False
            if not self._done:
                await reply.write(rest + self._close_filters())
                raise self._error or error from None
        if dialogue:
            await dialogue.settle()
        await reply.write(rest + self._close_filters() if self.answer else rest, ends=True)

    async def _read_to_end(self) -> bytes:
        """Relays what ``take`` refused; returns the last events if the stream's end came with them."""
        response, reply = self.upstream.response, self.reply
        if self._error:
            raise self._error
        self._in_event = bool(self.framing.rest)
        response.offer(self.take)
        while data := await response.read():
            if self._failure:
                raise self._failure
            events = self._whole_events(data)
            if response.exhausted and not (self._error or self.answer):
                return events
            self._note_done(events)
            if self.answer:
                events = await self._filter_in_thread_if_long(events)
            if events:
                await reply.write(events)
                if self.dialogue:
                    self.dialogue.commit_if_reached(events)
            if self._error:
                raise self._error
        return b""

    def take(self, data: bytes) -> bool:
        """Writes data to the client; false where that has to wait, and ``run`` does it."""
        reply, size = self.reply, len(data)
        if not reply.is_writable or size > _LARGEST_PUSH:
            return False
        # Looks that nearly always find nothing; backwards they take half as long.
        if (
            not self._in_event
            and data.endswith(b"\n\n")
            and data.rfind(ERROR_KEY) < 0
            and data.rfind(DONE) < 0
            and not self.answer
            and size <= self.budget
        ):
            self.budget -= size
            reply.client.transport.write(CHUNK % (size, data))
            copy = self.copy
            if copy.size + size <= LARGEST_COPY:  # as ``add`` does, without a call for each piece
                copy.size += size
                copy.pieces.append(data)
                copy.times.append(perf_counter())
            else:
                copy.add(data)
            return True
        try:
            events = self._whole_events(data)
            self._note_done(events)
            if events := self._filter(events):
                reply.client.transport.write(CHUNK % (len(events), events))
                self.copy.add(events)
        except UpstreamError:
            raise
        except Exception as error:  # noqa: BLE001 - a filter may raise anything: the task raises it
            self._failure = error
            return False
        if self._error:
            raise self._error
        return True

    def _whole_events(self, data: bytes) -> bytes:
        """The events that are complete, up to an error event, which is kept in ``_error``."""
        self.budget -= len(data)
        if self.budget < 0:
            raise UpstreamBroken("The upstream's answer has more than 64 MB.")
        events = data
        if self._in_event or not data.endswith(b"\n\n"):
            events = self.framing.feed(data)
            self._in_event = bool(self.framing.rest)
        if events.rfind(ERROR_KEY) >= 0:
            events, self._error = split_at_error(events)
        return events

    def _note_done(self, events: bytes) -> None:
        # A client that reads to the end of the body would wait for an upstream that leaves the stream open.
        if is_done(events) and not self._done:
            self._done = self.reply.ending = True
            self.upstream.response.due(asyncio.get_running_loop().time() + _LINGER)

    def _filter(self, events: bytes) -> bytes:
        """The events behind the filters, up to an error, which is kept in ``_error``."""
        if self.answer is None or not events:
            return events
        passed = self.answer.feed(events)
        self._error = self.answer.error or self._error
        return passed

    async def _filter_in_thread_if_long(self, events: bytes) -> bytes:
        return await in_thread_if_long(partial(self._filter, events), 0, len(events))

    def _close_filters(self) -> bytes:
        return self.answer.close() if self.answer else b""


class KeepAlive:
    """Sends the filler's phrase if the answer is late, and SSE comments while nothing else is sent.

    Whichever comes first begins the reply. ``model`` is the name of the model in the phrase's chunk.
    """

    def __init__(
        self, pipeline: Pipeline, context: Context, answer: FilteredAnswer | None, reply: Reply, model: str
    ) -> None:
        self._context = context
        self._reply = reply
        self._model = model
        self._tasks: list[asyncio.Task[None]] = []
        filler = next((each for each in pipeline.answer_filters if isinstance(each, Filler)), None)
        if filler and answer:
            self._tasks.append(asyncio.create_task(self._say_filler(filler, answer)))
        if pipeline.keep_alive:
            self._tasks.append(asyncio.create_task(self._send_comments(pipeline.keep_alive)))

    def stop(self) -> None:
        """Ends the phrase and the comments."""
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()  # they refer to this object

    async def _say_filler(self, filler: Filler, answer: FilteredAnswer) -> None:
        await asyncio.sleep(filler.after)
        if answer.started or self._reply.ending:
            return
        await self._start()
        if answer.started:  # the answer may have come while the status was on its way
            return
        opening, phrase = answer.opening(), filler.phrase(self._context)
        name = {"id": f"chatcmpl-{uuid4().hex}", "created": int(self._context.now)}
        answer.adopt_name(name)
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
            await self._reply.begin(200, [_STREAM, *UNBUFFERED])
