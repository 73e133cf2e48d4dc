"""uvicorn's HTTP/1 protocol with limits, errors in OpenAI's shape and direct writes."""

import asyncio
import secrets
import socket
from collections.abc import Callable, Iterator
from typing import Final

import httptools
from uvicorn._types import ASGI3Application, ASGISendEvent
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from proxy.errors import HeadTooLarge, RequestError, TooSlow, TurnkeeperError
from proxy.http.reply import OUTLET

LARGEST_HEAD: Final = 65_536
HEAD_TIMEOUT: Final = 20.0
BODY_TIMEOUT: Final = 60.0
READ_TIMEOUT: Final = 60.0
_LINGER: Final = 2.0
_ARRIVAL: Final = 0.5
"""How long a request may take to arrive, in seconds, that the server's end has overtaken."""
_PROBES: Final = (0.002, 0.02, 0.1, 0.2, 0.3, 0.4, 1.0, 2.0)
"""The pauses between probes, in seconds: the second byte to a client that is gone finds that out."""
_MOST_PIPELINED: Final = 8
_FRAMING: Final = (b"content-length", b"transfer-encoding")
_NO_BODY: Final = (b"content-length", b"0")


class ChunkedOutlet:
    """Writes one answer's chunks without a task and without an ASGI message."""

    __slots__ = ("_callback", "_corked", "_cycle")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._callback: Callable[[], None] | None = None
        self._corked: CorkedTransport | None = None

    @property
    def is_writable(self) -> bool:
        """Whether the answer goes out in chunks, and the client reads them."""
        cycle = self._cycle
        return bool(cycle.chunked_encoding) and not (cycle.flow.write_paused or cycle.disconnected)

    @property
    def may_have_left(self) -> bool:
        """Whether the client has ended its side of the connection, as one does that leaves."""
        return isinstance(self._cycle.transport, ProbedTransport)

    def write(self, data: bytes) -> None:
        """Writes a chunk (RFC 9112, 7.1); only while ``is_writable``."""
        self._cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def cork(self) -> None:
        """Has a head wait for its body, unless the client does not read: sending would wait then."""
        cycle = self._cycle
        if not cycle.flow.write_paused:
            cycle.transport = self._corked = CorkedTransport(cycle.transport)  # type: ignore[assignment]

    def uncork(self) -> None:
        """Writes a head that still waits."""
        corked, self._corked = self._corked, None
        if corked is not None:
            self._cycle.transport = corked.transport
            corked.flush()

    def on_disconnect(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls ``callback`` when the client disconnects; the function that is returned ends that."""
        self._cycle.flow.resume_reading()  # a paused transport does not notice the disconnect
        self._callback = callback
        if self._cycle.disconnected:
            self.disconnect()
        return self._forget_callback

    def disconnect(self) -> None:
        """Calls the callback, if there is one."""
        if self._callback is not None:
            self._callback()
            self._callback = None

    def _forget_callback(self) -> None:
        self._callback = None


class CorkedTransport:
    """A connection to which a first piece goes together with the second one."""

    __slots__ = ("_first", "transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self._first = b""

    def write(self, data: bytes) -> None:
        """Keeps the first piece, and writes it before the next one."""
        if self._first:
            data, self._first = self._first + data, b""
            self.transport.write(data)
        else:
            self._first = data

    def flush(self) -> None:
        """Writes what was kept."""
        if self._first:
            self.write(b"")

    def close(self) -> None:
        """Closes the connection once all is written."""
        self.flush()
        self.transport.close()

    def is_closing(self) -> bool:
        """Whether it is closed, or about to be."""
        return self.transport.is_closing()


class ProbedTransport:
    """A connection whose client has ended its side. Whether it still reads, bytes of the answer find out.

    A client that is gone resets the connection. Before the answer begins these bytes are the first ones of
    its status line, and later zeros before the length of its next chunk (RFC 9112, 7.1).
    """

    _START: Final = b"HTTP/1.1 "

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._sent = 0

    def probe(self, *, started: bool) -> None:
        """Sends a byte."""
        if started:
            self._transport.write(b"0")
        elif self._sent < len(self._START):
            self._transport.write(self._START[self._sent : self._sent + 1])
            self._sent += 1

    def write(self, data: bytes) -> None:
        """Writes what has not been sent of the data."""
        sent, self._sent = self._sent, 0
        self._transport.write(data[sent:])

    def close(self) -> None:
        """Closes the connection once all is written."""
        self._transport.close()

    def is_closing(self) -> bool:
        """Whether it is closed, or about to be."""
        return self._transport.is_closing()


class Protocol(HttpToolsProtocol):
    """One connection. Errors are in OpenAI's shape, and never inside another request's answer.

    A request has a timeout for its head and another for its body, and the client one to read its answer. A
    client that has ended its side of the connection still gets what it has asked for.
    """

    _running: RequestResponseCycle | None = None
    _outlet: ChunkedOutlet | None = None
    _error: TurnkeeperError | None = None
    _timer: asyncio.TimerHandle | None = None
    _read_timer: asyncio.TimerHandle | None = None
    _probe_timer: asyncio.TimerHandle | None = None
    _head_size = 0
    _in_head = _in_body = _progressed = _restoring_body = _refused = _half_closed = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts the timeout of the first request."""
        super().connection_made(transport)
        self._timer = self.loop.call_later(HEAD_TIMEOUT, self._on_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        """Disconnects all requests, the running one first."""
        for timer in (self._timer, self._read_timer, self._probe_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)
        for cycle in self._open_cycles():
            self._disconnect(cycle)

    def data_received(self, data: bytes) -> None:
        """Feeds the parser, and refuses what it cannot read."""
        if self._refused:
            return
        size, self._progressed = self._head_size, False
        try:
            self._feed(data)
            if not self._progressed:  # the parser keeps a header until it has its end, and reports none of it
                self._head_size = size
                self._count_head(len(data))
        except httptools.HttpParserError:
            self._refuse(self._error or RequestError("This is no HTTP/1 request.", code="invalid_http"))
        else:
            if self._timer is None and (self._in_head or self._in_body):
                self._start_timer()

    def shutdown(self) -> None:
        """Ends the connection behind the requests that have come. A first one may be on its way."""
        if self.cycle is None or self._in_head:
            self.loop.call_later(_ARRIVAL, super().shutdown)
        else:
            super().shutdown()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Goes on with the requests that are whole; whether the connection stays open for that."""
        if self._in_head or self._in_body or self._refused or not self._open_cycles():
            return False
        self._half_closed = True
        self._open_cycles()[-1].keep_alive = False
        self._probe(iter(_PROBES))
        return True

    def pause_writing(self) -> None:
        """Gives a client that does not read its time to do so."""
        super().pause_writing()
        self._read_timer = self.loop.call_later(READ_TIMEOUT, self.transport.abort)

    def resume_writing(self) -> None:
        """Goes on with a client that reads again."""
        if self._read_timer is not None:
            self._read_timer.cancel()
        super().resume_writing()

    def on_message_begin(self) -> None:
        """Begins a request."""
        if not self._restoring_body:
            self._unset_keepalive_if_required()
            super().on_message_begin()
            self._head_size, self._in_head, self._progressed = 0, True, True

    def on_url(self, url: bytes) -> None:
        """Takes a part of the request's target."""
        if not self._restoring_body:
            self._count_head(len(url))
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Takes a header; a trailer is dropped, since any hop may have added it (RFC 9110, 6.5.1)."""
        if not self._restoring_body:
            self._count_head(len(name) + len(value))
            if self._in_head:
                self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Starts answering the request, or queues it behind those before it."""
        if self._restoring_body:
            return
        self._check_head()
        super().on_headers_complete()
        self._in_head, self._in_body, self._progressed = False, True, True
        if self._timer is not None:
            self._stop_timer()
        if len(self.pipeline) > _MOST_PIPELINED:
            self._fail_ahead()
        self.flow.resume_reading()  # or the disconnect of a client that sends ahead goes unnoticed

    def on_body(self, body: bytes) -> None:
        """Takes a part of the body."""
        self._head_size, self._progressed = 0, True
        super().on_body(body)
        if self.flow.read_paused and self.cycle is not self._running:
            self._fail_ahead()

    def on_message_complete(self) -> None:
        """Ends the request, but for a body that the parser takes for another protocol's data."""
        if self.parser.should_upgrade() and self._framing():
            return
        self._in_body, self._progressed = False, True
        if self._timer is not None:
            self._stop_timer()
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        if cycle.scope["http_version"] == "1.0":
            cycle.send = UnframedSend(cycle)  # type: ignore[method-assign]
        self._running, self._outlet = cycle, ChunkedOutlet(cycle)
        if self._half_closed:
            self._probe(iter(_PROBES))
        extensions: dict[str, object] = {OUTLET: self._outlet}
        cycle.scope["extensions"] = extensions  # type: ignore[typeddict-item]  # an extension of our own
        super()._start_asgi_task(cycle, app)

    def _probe(self, pauses: Iterator[float]) -> None:
        """Finds out, after each pause again, whether the client of the running request is still there."""
        cycle = self._running
        if cycle is None or cycle.response_complete:
            return
        if cycle.response_started and not cycle.chunked_encoding:
            if not cycle.expected_content_length:  # an answer without a length ends with the connection
                self.transport.close()
            return
        if not isinstance(cycle.transport, ProbedTransport):
            cycle.transport = ProbedTransport(self.transport)  # type: ignore[assignment]
        cycle.transport.probe(started=cycle.response_started)  # type: ignore[attr-defined]
        # A client on this machine has reset the connection by now: its next turn may come at once.
        own = self.transport.get_extra_info("socket")
        if own is not None and own.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
            return
        if (pause := next(pauses, None)) is not None:
            self._probe_timer = self.loop.call_later(pause, self._probe, pauses)

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # A client that offers another protocol, as Java's does with h2c, is answered in HTTP/1.1.
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            if framing := self._framing():
                self._restoring_body = True
                self.parser.feed_data(b"POST / HTTP/1.1\r\nhost: x\r\n%s: %s\r\n\r\n" % framing)
                self._restoring_body = False
            if rest := data[upgrade.args[0] :]:
                self._feed(rest)

    def _framing(self) -> tuple[bytes, bytes] | None:
        """The header that says how long the body is, if there is a body."""
        framing = (header for header in self.headers if header[0] in _FRAMING and header != _NO_BODY)
        return next(framing, None)

    # Each error below is stored, and a bare HttpParserError raised: an error that is raised would hold its
    # frame, and so the connection with all that it has sent.

    def _check_head(self) -> None:
        """Refuses a head that two readers could take for two requests (RFC 9112, 3.2 and 6.1)."""
        hosts = 0
        codings = None
        for name, value in self.headers:
            if name == b"host":
                hosts += 1
            elif name == b"transfer-encoding":
                codings = value.strip().lower() if codings is None else b"several"
            elif name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
        if hosts > 1 or (hosts == 0 and self.parser.get_http_version() == "1.1"):
            self._error = RequestError(f"'Host' must be there once; {hosts} came.", code="invalid_http")
        elif codings not in {None, b"chunked"}:
            message = "'Transfer-Encoding' must be 'chunked', once, or absent."
            self._error = RequestError(message, code="invalid_http")
        else:
            return
        raise httptools.HttpParserError

    def _count_head(self, size: int) -> None:
        self._head_size += size
        if self._head_size > LARGEST_HEAD:
            self._error = HeadTooLarge(f"The request's head has more than {LARGEST_HEAD} bytes.")
            raise httptools.HttpParserError

    def _fail_ahead(self) -> None:
        self._error = RequestError("Too much was sent ahead of the answers; wait for them.")
        raise httptools.HttpParserError

    def _start_timer(self) -> None:
        timeout = HEAD_TIMEOUT if self._in_head else BODY_TIMEOUT
        self._timer = self.loop.call_later(timeout, self._on_timeout)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timeout(self) -> None:
        self._timer = None
        if not (self._in_head or self._in_body):
            if not self.flow.read_paused:
                self.transport.close()
        elif self.flow.read_paused:  # it is this side that does not read
            self._start_timer()
        else:
            self._refuse(TooSlow("The request took too long to arrive."))

    def _refuse(self, error: TurnkeeperError) -> None:
        """Ends the connection: at once with an error, or behind the answers that are under way."""
        broken = self.cycle if self._in_body else None
        before = [cycle for cycle in self._open_cycles() if cycle is not broken]
        self._refused = True
        self.flow.resume_reading()  # what comes is dropped, and a disconnect is noticed
        if before:
            self.pipeline = type(self.pipeline)(each for each in self.pipeline if each[0] is not broken)
            before[-1].keep_alive = False
        elif broken is None or not broken.response_started:
            self.transport.write(_error_response(error))
            self.transport.write_eof()
            self.loop.call_later(_LINGER, self.transport.close)  # a client that still sends could not read it
        else:
            self.transport.close()
        if broken is not None:
            self._disconnect(broken)

    def _open_cycles(self) -> list[RequestResponseCycle]:
        """The requests that are not answered yet, in the order in which they came."""
        queued = [cycle for cycle, _ in reversed(self.pipeline)]
        running = [self._running] if self._running is not None else []
        return [cycle for cycle in (*running, *queued) if not cycle.response_complete]

    def _disconnect(self, cycle: RequestResponseCycle) -> None:
        cycle.disconnected = True
        cycle.message_event.set()
        if cycle is self._running and self._outlet is not None:
            self._outlet.disconnect()


class UnframedSend:
    """A cycle's ``send`` for HTTP/1.0, which knows no chunks: answers end with the connection.

    Before each message, uvicorn's check of the length is set to what it holds (RFC 9112, 6.3).
    """

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._send = cycle.send
        self._has_length = False

    async def __call__(self, message: ASGISendEvent) -> None:
        """Sends one message of the answer."""
        if message["type"] == "http.response.start":
            headers = message.get("headers", ())
            self._has_length = any(name.lower() == b"content-length" for name, _ in headers)
            self._cycle.chunked_encoding = None if self._has_length else False
        elif message["type"] == "http.response.body" and not self._has_length:
            self._cycle.expected_content_length = len(message.get("body", b""))
        await self._send(message)


def _error_response(error: TurnkeeperError) -> bytes:
    """A whole answer in bytes, for a request that never became one; the connection closes behind it."""
    body = error.body()
    head = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "x-content-type-options": "nosniff",
        "x-turnkeeper-error": error.origin,
        "connection": "close",
        "x-request-id": f"req_{secrets.token_hex(12)}",
        "server-timing": "request;dur=0.00",
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    return STATUS_LINE[error.status] + lines.encode() + b"\r\n" + body
