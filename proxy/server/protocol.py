"""The shortest way from a turn to its client's socket: for what need not wait."""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import Final

import httptools
from uvicorn._types import ASGI3Application, ASGISendEvent
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from proxy.errors import HeadTooLarge, RequestError, TooSlow, TurnkeeperError
from proxy.http.reply import OUTLET

LARGEST_HEAD: Final = 65_536
HEAD_WITHIN: Final = 20.0
BODY_WITHIN: Final = 60.0
READ_WITHIN: Final = 60.0
_LINGER: Final = 2.0
_AHEAD: Final = 8
_FRAMING: Final = (b"content-length", b"transfer-encoding")
_NO_BODY: Final = (b"content-length", b"0")


class ChunkedOutlet:
    """One answer's chunks, written without a task and without a message."""

    __slots__ = ("_cycle", "_leave")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._leave: Callable[[], None] | None = None

    @property
    def is_writable(self) -> bool:
        """Whether the answer goes out in chunks, and the client reads them."""
        cycle = self._cycle
        return bool(cycle.chunked_encoding) and not (cycle.flow.write_paused or cycle.disconnected)

    def write(self, data: bytes) -> None:
        """A chunk, on its way when this returns; only while it ``flows`` (RFC 9112, 7.1)."""
        self._cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def on_disconnect(self, leave: Callable[[], None]) -> Callable[[], None]:
        """Calls ``leave`` when the client leaves, once the request is there; what is returned ends that."""
        self._cycle.flow.resume_reading()  # whoever does not listen learns of nobody's leaving
        self._leave = leave
        if self._cycle.disconnected:
            self.disconnect()
        return self._stop

    def disconnect(self) -> None:
        """The client has left."""
        if self._leave is not None:
            self._leave()
            self._leave = None

    def _stop(self) -> None:
        self._leave = None


class Protocol(HttpToolsProtocol):
    """One connection. What it refuses, it refuses in OpenAI's shape, and never inside another's answer."""

    _running: RequestResponseCycle | None = None
    _outlet: ChunkedOutlet | None = None
    _fault: TurnkeeperError | None = None
    _due: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _size = 0
    _in_head = _in_body = _moved = _declining = _deaf = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has come; it has its time to say something."""
        super().connection_made(transport)
        self._due = self.loop.call_later(HEAD_WITHIN, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has left, and all of its requests with it, the one in work first of all."""
        self._cancel(self._due, self._unread)
        super().connection_lost(exc)
        for cycle in self._open():
            self._drop(cycle)

    def data_received(self, data: bytes) -> None:
        """Feeds the parser, and says what is wrong with what it cannot read."""
        if self._deaf:
            return
        before, self._moved = self._size, False
        try:
            self._feed(data)
            if not self._moved:  # a header without an end is none yet, and the parser keeps it
                self._size = before
                self._count(len(data))
        except httptools.HttpParserError:
            self._refuse(self._fault or RequestError("This is no HTTP/1 request.", code="invalid_http"))
        else:
            self._watch_the_clock()

    def pause_writing(self) -> None:
        """The client does not read: that may last for a while, and not for ever."""
        super().pause_writing()
        self._unread = self.loop.call_later(READ_WITHIN, self.transport.abort)

    def resume_writing(self) -> None:
        """The client reads again."""
        self._cancel(self._unread)
        super().resume_writing()

    def on_message_begin(self) -> None:
        """A request begins."""
        if not self._declining:
            self._unset_keepalive_if_required()
            super().on_message_begin()
            self._size, self._in_head, self._moved = 0, True, True

    def on_url(self, url: bytes) -> None:
        """A part of the request's target."""
        if not self._declining:
            self._count(len(url))
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; what stands behind a body is none (RFC 9110, 6.5.1), and could be anybody's."""
        if not self._declining:
            self._count(len(name) + len(value))
            if self._in_head:
                super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is there: the request is answered, or waits for those before it."""
        if self._declining:
            return
        self._fault = head_error(self.parser.get_http_version(), self.headers)
        if self._fault:
            raise httptools.HttpParserError
        super().on_headers_complete()
        self._in_head, self._in_body, self._moved = False, True, True
        self._stop_the_clock()
        self._bound_what_is_ahead(len(self.pipeline) > _AHEAD)
        self.flow.resume_reading()  # or nobody sees a client leave that sends ahead

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._size, self._moved = 0, True
        super().on_body(body)
        self._bound_what_is_ahead(self.flow.read_paused and self.cycle is not self._running)

    def on_message_complete(self) -> None:
        """The request is there; a body is still to come that the parser took for another protocol's."""
        if not (self.parser.should_upgrade() and self._framing()):
            self._in_body, self._moved = False, True
            self._stop_the_clock()
            super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        if cycle.scope["http_version"] == "1.0":
            unframe(cycle)
        self._running, self._outlet = cycle, ChunkedOutlet(cycle)
        extensions: dict[str, object] = {OUTLET: self._outlet}
        cycle.scope["extensions"] = extensions  # type: ignore[typeddict-item]  # an extension of our own
        super()._start_asgi_task(cycle, app)

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._decline(data[upgrade.args[0] :])

    def _decline(self, rest: bytes) -> None:
        """Goes on in HTTP/1.1 with a client that offers another protocol, as Java's does with h2c."""
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        if framing := self._framing():
            self._declining = True
            self.parser.feed_data(b"POST / HTTP/1.1\r\nhost: x\r\n%s: %s\r\n\r\n" % framing)
            self._declining = False
        if rest:
            self._feed(rest)

    def _framing(self) -> tuple[bytes, bytes] | None:
        """The header that tells the body's length, where there is a body."""
        framing = (header for header in self.headers if header[0] in _FRAMING and header != _NO_BODY)
        return next(framing, None)

    def _count(self, more: int) -> None:
        self._size += more
        if self._size > LARGEST_HEAD:
            self._fault = HeadTooLarge(f"The request's head has more than {LARGEST_HEAD} bytes.")
            # Raised, the fault would hold this frame, and so the connection with all that it was sent.
            raise httptools.HttpParserError

    def _bound_what_is_ahead(self, too_much: bool) -> None:  # noqa: FBT001 - what is asked is all it takes
        if too_much:
            self._fault = RequestError("Too much was sent ahead of the answers; wait for them.")
            raise httptools.HttpParserError

    def _watch_the_clock(self) -> None:
        """A request that is not there yet has its time: one for the head, another for the body."""
        if self._due is None and (self._in_head or self._in_body):
            self._due = self.loop.call_later(HEAD_WITHIN if self._in_head else BODY_WITHIN, self._too_slow)

    def _stop_the_clock(self) -> None:
        self._cancel(self._due)
        self._due = None

    def _too_slow(self) -> None:
        self._due = None
        if self.flow.read_paused:  # it is we who do not listen
            self._watch_the_clock()
        elif self._in_head or self._in_body:
            self._refuse(TooSlow("The request took too long to arrive."))
        else:
            self.transport.close()

    def _refuse(self, error: TurnkeeperError) -> None:
        """Ends the connection: at once with an error, or behind what is still being answered."""
        broken = self.cycle if self._in_body else None
        before = [cycle for cycle in self._open() if cycle is not broken]
        self._deaf = True
        self.flow.resume_reading()  # what comes is dropped, and a client who leaves is seen
        if before:
            self.pipeline = type(self.pipeline)(each for each in self.pipeline if each[0] is not broken)
            before[-1].keep_alive = False
        elif broken is None or not broken.response_started:
            self.transport.write(error_response(error))
            self.transport.write_eof()
            self.loop.call_later(_LINGER, self.transport.close)  # who still sends could not read it otherwise
        else:
            self.transport.close()
        if broken is not None:
            self._drop(broken)

    def _open(self) -> list[RequestResponseCycle]:
        """What is not answered yet, in the order in which it came."""
        queued = [cycle for cycle, _ in reversed(self.pipeline)]
        running = [self._running] if self._running is not None else []
        return [cycle for cycle in (*running, *queued) if not cycle.response_complete]

    def _drop(self, cycle: RequestResponseCycle) -> None:
        cycle.disconnected = True
        cycle.message_event.set()
        if cycle is self._running and self._outlet is not None:
            self._outlet.disconnect()

    @staticmethod
    def _cancel(*timers: asyncio.TimerHandle | None) -> None:
        for timer in filter(None, timers):
            timer.cancel()


def head_error(version: str, headers: Sequence[tuple[bytes, bytes]]) -> RequestError | None:
    """What is wrong with a head whose names are in lower case (RFC 9112, 3.2 and 6.1)."""
    names = [name for name, _ in headers]
    hosts = names.count(b"host")
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        return RequestError(f"'Host' must be there once; {hosts} came.", code="invalid_http")
    if b"transfer-encoding" in names and not _just_chunked(headers):
        return RequestError("'Transfer-Encoding' must be 'chunked', once, or absent.", code="invalid_http")
    return None


def _just_chunked(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    codings = [value.strip().lower() for name, value in headers if name == b"transfer-encoding"]
    return codings == [b"chunked"]


def error_response(error: TurnkeeperError) -> bytes:
    """The whole answer, after which the connection closes."""
    body = error.body()
    head = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",
        "x-request-id": f"req_{secrets.token_hex(12)}",
        "server-timing": "request;dur=0.00",
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    return STATUS_LINE[error.status] + lines.encode() + b"\r\n" + body


class UnframedSend:
    """A cycle's ``send``, told before each message how long the body is that it shall expect."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._send = cycle.send
        self._measured = False

    async def __call__(self, message: ASGISendEvent) -> None:
        """One message of the answer, its body as it is."""
        if message["type"] == "http.response.start":
            self._measured = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
            self._cycle.chunked_encoding = None if self._measured else False
        elif message["type"] == "http.response.body" and not self._measured:
            self._cycle.expected_content_length = len(message.get("body", b""))
        await self._send(message)


def unframe(cycle: RequestResponseCycle) -> None:
    """From now on the cycle sends no chunks."""
    cycle.send = UnframedSend(cycle)  # type: ignore[method-assign]
