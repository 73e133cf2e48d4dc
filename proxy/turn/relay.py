"""Passes an answer on to the client as it comes, and fills silences in it."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from uuid import uuid4

from filters.base import Context
from filters.filler import Filler
from proxy.answer.sse import Framing, is_done
from proxy.answer.stream_filters import FilteredAnswer, chunk_event
from proxy.errors import UpstreamBroken, UpstreamError
from proxy.http.reply import Header, Reply
from proxy.tools.dialogue import Dialogue
from proxy.turn.pipeline import Pipeline
from proxy.upstream.attempt import UpstreamAnswer, client_headers
from proxy.upstream.opening import split_at_error

# Proxies in front of us must not collect a stream, nor keep a copy of it.
UNBUFFERED: list[Header] = [(b"x-accel-buffering", b"no"), (b"cache-control", b"no-cache")]
_LINGER = 1.0
"""For how many seconds an upstream may leave a stream open behind its own end."""
# uvloop reads a sender that is fast many times before anybody else has a turn.
_MUCH = 16_000
_LONG = 100_000
# What has gone out is kept until the turn is recorded.
_LARGEST_ANSWER = 64_000_000
_STREAM: Header = (b"content-type", b"text/event-stream; charset=utf-8")
_COMMENT = b": keep-alive\n\n"
# In each period it is looked so often whether anything went out.
_LOOKS = 8


async def pass_on(
    begun: UpstreamAnswer, answer: FilteredAnswer, reply: Reply, dialogue: Dialogue | None = None
) -> None:
    """Passes an answer on to its end, before which what its ``dialogue`` has changed is changed.

    Raises UpstreamError where a stream breaks off; all that was there has been passed on by then.
    """
    if begun.framing is not None:
        await _stream(begun, begun.framing, answer, reply, dialogue)
    elif reply.started:
        raise UpstreamBroken("The upstream was asked for a stream, and answered with something else.")
    else:
        response, shown = begun.response, await _beside(answer.filter_body, begun.data)
        if dialogue:
            await dialogue.settle()
        await reply.send_whole(response.status, client_headers(response.headers), shown)


async def _stream(
    begun: UpstreamAnswer, framing: Framing, answer: FilteredAnswer, reply: Reply, dialogue: Dialogue | None
) -> None:
    response = begun.response
    if not reply.started:
        await reply.start(response.status, [*client_headers(response.headers), *UNBUFFERED])
    opened, refused = split_at_error(begun.data)
    first = answer.opening() + await _beside(answer.feed, opened)
    await reply.write(first)
    reply.observation.mark_first_token()
    passage = RelayedStream(begun, opened, framing, answer, reply, dialogue=dialogue)
    passage.passed_on(first)
    response.offer(passage.take)
    rest = b""
    try:
        if fault := answer.error or refused:
            raise fault
        await passage.read_on()
        rest = answer.feed(framing.close())
        if answer.error:
            raise answer.error
    except UpstreamError:
        rest += answer.feed(passage.unended())
        if not passage.whole:  # what breaks behind its own end is whole
            await reply.write(rest + answer.close())
            raise
    if dialogue:
        await dialogue.settle()
    await reply.end(rest + answer.close())


class RelayedStream:
    """A stream on its way to the client.

    ``opened`` is what has gone out of it. What arrives while nobody holds anything back goes on at once,
    from within the upstream's own call, and no task is woken for it. All else goes through the task.
    """

    def __init__(  # noqa: PLR0913 - what a stream goes through
        self,
        begun: UpstreamAnswer,
        opened: bytes,
        framing: Framing,
        answer: FilteredAnswer,
        reply: Reply,
        *,
        dialogue: Dialogue | None,
    ) -> None:
        self._response = begun.response
        self._framing = framing
        self._cut = framing.feed
        self._answer = answer
        self._reply = reply
        self._dialogue = dialogue
        self._outlet = reply.outlet
        self._filtered = answer.active
        self._over = False
        self._room = _LARGEST_ANSWER
        self._waiting = False
        self._failure: Exception | None = None
        self._refused: UpstreamError | None = None
        self._note(opened)

    @property
    def whole(self) -> bool:
        """Whether the stream's end was passed on."""
        return not self._answer.error and self._over

    def passed_on(self, shown: bytes) -> None:
        """What tools have told to be changed is changed as soon as the client has heard of it."""
        if self._dialogue:
            self._dialogue.commit_if_reached(shown)

    def unended(self) -> bytes:
        """The end of a stream that broke off before the blank line behind it."""
        rest = self._framing.close()
        ended = not self._over and is_done(rest)
        self._over = self._over or ended
        return rest if ended else b""

    def take(self, data: bytes) -> bool:
        """Passes data on, if the task waits for it and the client reads."""
        outlet = self._outlet
        if outlet is None or not (self._waiting and outlet.is_writable) or self._failure or len(data) > _MUCH:
            return False
        try:
            if shown := self._shown(data):
                outlet.write(shown)
                self._reply.note_sent(shown)
        except UpstreamError:
            raise
        except Exception as error:  # noqa: BLE001 - a filter may raise anything: that is the turn's own fault
            self._failure = error
            return False
        if self._refused:
            raise self._refused
        return True

    async def read_on(self) -> None:
        """Passes on what was not taken, until the end."""
        while data := await self._read():
            if self._failure:
                raise self._failure
            events = self._events(data)
            shown = await _beside(self._answer.feed, events) if self._filtered else events
            self._refused = self._answer.error or self._refused
            if shown:
                await self._reply.write(shown)
                self.passed_on(shown)
            if self._refused:
                raise self._refused

    async def _read(self) -> bytes:
        self._waiting = True
        try:
            return await self._response.read()
        finally:
            self._waiting = False

    def _shown(self, data: bytes) -> bytes:
        events = self._events(data)
        if not (events and self._filtered):
            return events
        shown = self._answer.feed(events)
        self._refused = self._answer.error or self._refused
        return shown

    def _events(self, data: bytes) -> bytes:
        """What is whole by now, up to an error, which is then ``_refused``."""
        self._room -= len(data)
        if self._room < 0:
            raise UpstreamBroken("The upstream's answer has more than 64 MB.")
        events = self._cut(data)
        if not events:
            return b""
        events, self._refused = split_at_error(events)
        self._note(events)
        return events

    def _note(self, events: bytes) -> None:
        if is_done(events) and not self._over:  # whoever reads to the end of the body would wait for nothing
            self._over = True
            self._response.due(asyncio.get_running_loop().time() + _LINGER)


async def _beside(work: Callable[[bytes], bytes], data: bytes) -> bytes:
    """What filters make of data; where that is much, in a thread, and other calls go on."""
    return work(data) if len(data) < _LONG else await asyncio.to_thread(work, data)


class Silence:
    """Says the filler's phrase if the answer is late, and sends comments while nothing else goes out.

    ``model`` is what is asked. Whatever goes out first takes the status with it. Leaving it ends both.
    """

    def __init__(
        self, pipeline: Pipeline, context: Context, answer: FilteredAnswer, reply: Reply, model: str
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
        if self._answer.started or self._reply.ending:
            return
        await self._begin()
        if not self._answer.started:  # it may have, while the status was on its way
            await self._reply.write(self._answer.opening() + self._said(filler.phrase(self._context)))

    async def _hold(self, period: float) -> None:
        sent = self._reply.observation.chunks
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
        self._answer.adopt_name(name)
        delta = {"role": "assistant", "content": phrase}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        base = {**name, "object": "chat.completion.chunk", "model": self._model}
        return chunk_event({**base, "choices": [choice]})
