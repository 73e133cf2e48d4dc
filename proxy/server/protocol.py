"""HTTP/1.1 on one connection: parses requests, and answers them in order."""

import asyncio
import secrets
import socket
from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn
from urllib.parse import unquote

import httptools
import uvicorn
from uvicorn.server import ServerState

from proxy.errors import HeadTooLarge, RequestError, TooSlow, TurnkeeperError
from proxy.http.reply import STATUS_LINES, Client, Reply
from proxy.http.request import Request
from proxy.server.app import App

LARGEST_HEAD: Final = 65_536
HEAD_TIMEOUT: Final = 20.0
BODY_TIMEOUT: Final = 60.0
READ_TIMEOUT: Final = 60.0
_LINGER: Final = 2.0
_ARRIVAL: Final = 0.5
"""How many seconds a request may take to arrive after the server has begun to shut down."""
_PROBES: Final = (0.002, 0.02, 0.1, 0.2, 0.3, 0.4, 1.0, 2.0)
"""The pauses between probes, in seconds; the second byte to a client that has gone reveals it."""
_PROBE: Final = b"HTTP/1.1 "
_MOST_PIPELINED: Final = 8
_READ_AHEAD: Final = 65_536
"""How many bytes of a body are read before the application reads them."""
_FRAMING: Final = ("content-length", "transfer-encoding")


class Protocol(asyncio.Protocol, Client):
    """One connection. Errors are in OpenAI's shape, and never within another request's answer.

    The head and the body of a request have timeouts, and so has the client's reading of the answer. A client
    that has closed its side of the connection still gets its answers. ``write_paused`` is whether the client
    does not read.
    """

    transport: asyncio.Transport

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],  # noqa: ARG002 - uvicorn passes it
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        on_made: Callable[[], None] | None = None,
    ) -> None:
        self._on_made = on_made
        self.server_state = server_state
        self.write_paused = False
        self._loop = _loop or asyncio.get_running_loop()
        self._app: App = config.app  # type: ignore[assignment]
        self._idle_timeout = config.timeout_keep_alive
        self._open: list[Request] = []
        """The requests that are not answered yet, in order; the first one is running."""
        self._arriving: Request | None = None
        """The request whose body is arriving."""
        self._headers: dict[str, str] = {}
        self._repeated: list[str] = []
        self._url = b""
        self._head_size = 0
        self._error: TurnkeeperError | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due: float | None = None
        """The deadline for data from the client, in loop time; ``None`` if none is expected."""
        self._read_timer: asyncio.TimerHandle | None = None
        self._probe_timer: asyncio.TimerHandle | None = None
        self._reads_again: asyncio.Event | None = None
        self._is_new = True
        self._in_head = self._progressed = self._restoring_body = False
        self._refused = self._half_closed = self.read_paused = False
        self._make_parser()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts the timeout of the first request."""
        self.server_state.connections.add(self)  # type: ignore[arg-type]
        self.transport = transport
        self._wait(HEAD_TIMEOUT)
        if self._on_made is not None:
            self._on_made()

    def connection_lost(self, exc: Exception | None) -> None:
        """Disconnects all requests, the running one first."""
        self.server_state.connections.discard(self)
        for timer in (self._timer, self._probe_timer):
            if timer is not None:
                timer.cancel()
        open_requests, self._open, self._arriving = self._open, [], None
        for request in open_requests:
            _disconnect(request)
        self.resume_writing()
        if exc is None:
            self.transport.close()
        del self._parser  # it refers to this object

    def data_received(self, data: bytes) -> None:
        """Feeds the parser, and refuses data that it cannot parse."""
        if self._refused:
            return
        size, self._progressed = self._head_size, False
        try:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                self._stay_with_http(data[upgrade.args[0] :])
            if not self._progressed:  # the parser reports a header only once it has its end
                self._head_size = size + len(data)
                if self._head_size > LARGEST_HEAD:
                    self._fail_head()
        except httptools.HttpParserError:
            self._refuse(self._error or RequestError("This is not an HTTP/1 request.", code="invalid_http"))
        else:
            if self._due is None and (self._in_head or self._arriving is not None):
                self._wait(HEAD_TIMEOUT if self._in_head else BODY_TIMEOUT)

    def eof_received(self) -> bool:
        """Keeps answering complete requests; returns whether the connection stays open for them."""
        if self._in_head or self._arriving is not None or self._refused or not self._open:
            return False
        self._half_closed = True
        self._open[-1].reply.keep_alive = False
        self._probe(iter(_PROBES))
        return True

    def pause_writing(self) -> None:
        """Starts the timeout of a client that does not read."""
        self.write_paused = True
        self._reads_again = asyncio.Event()
        self._read_timer = self._loop.call_later(READ_TIMEOUT, self.transport.abort)
        if self._open:
            self._open[0].reply.is_writable = False

    def resume_writing(self) -> None:
        """Continues with a client that reads again."""
        self.write_paused = False
        if self._read_timer is not None:
            self._read_timer.cancel()
        if self._reads_again is not None:
            self._reads_again.set()
            self._reads_again = None

    async def drain(self) -> None:
        """Returns once the client reads, or has disconnected."""
        while self._reads_again is not None:
            await self._reads_again.wait()

    def resume_reading(self) -> None:
        """Reads from the client again, if that was paused; a disconnect goes unnoticed until then."""
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()

    def answered(self) -> None:
        """Continues with the next request, or closes the connection after the last one."""
        request = self._open.pop(0)
        if not request.reply.keep_alive:
            self.transport.close()
        if self.transport.is_closing():
            return
        if self.read_paused:
            self.resume_reading()
        if self._open:
            self._start(self._open[0])
        elif self._arriving is None:
            self._due = self._loop.time() + self._idle_timeout
            if self._timer is None:
                self._timer = self._loop.call_at(self._due, self._on_timer)

    def shutdown(self) -> None:
        """Closes the connection after the requests that have arrived; one on its way has half a second."""
        if self._is_new or self._in_head:
            self._loop.call_later(_ARRIVAL, self._end)
        else:
            self._end()

    # The parser's callbacks. An error is stored and a bare HttpParserError raised, since the traceback of a
    # raised error would keep the connection and its data alive.

    def on_message_begin(self) -> None:
        """Begins a request."""
        if not self._restoring_body:
            self._headers, self._repeated, self._url = {}, [], b""
            self._head_size, self._due = 0, None
            self._in_head = self._progressed = True

    def on_url(self, url: bytes) -> None:
        """Adds a part of the request's target."""
        if self._in_head:
            self._url += url
            self._head_size += len(url)
            if self._head_size > LARGEST_HEAD:
                self._fail_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Adds a header; drops a trailer, since any hop may have added it (RFC 9110, 6.5.1)."""
        self._head_size += len(name) + len(value)
        if self._head_size > LARGEST_HEAD:
            self._fail_head()
        if self._in_head:
            key = name.decode("latin-1").lower()
            if key in self._headers:
                self._repeated.append(key)
            self._headers[key] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Queues the request after earlier ones."""
        if self._restoring_body:
            return
        parser, headers = self._parser, self._headers
        version = parser.get_http_version()
        if "host" not in headers or self._repeated or "transfer-encoding" in headers:
            self._check_head(version)
        url = httptools.parse_url(self._url)
        path = url.path.decode("ascii")
        method = parser.get_method().decode("ascii")
        is_current = version != "1.0"
        keep_alive = is_current and parser.should_keep_alive()
        reply = Reply(self, keep_alive=keep_alive, takes_chunks=is_current, has_body=method != "HEAD")
        request = self._arriving = Request(
            client=self,
            reply=reply,
            method=method,
            path=unquote(path) if "%" in path else path,
            raw_path=url.path,
            query_string=url.query or b"",
            headers=headers,
            http_version=version,
            awaits_continue=headers.get("expect", "").lower() == "100-continue",
        )
        self._is_new = self._in_head = False
        self._progressed, self._due = True, None
        self._open.append(request)
        if len(self._open) > 1:
            if len(self._open) > 1 + _MOST_PIPELINED:
                self._fail_ahead()
        elif request.awaits_continue or int(headers.get("content-length", 0)) > self._app.small_body:
            self._start(request)  # it may be refused before its body comes
        if self.read_paused:
            self.resume_reading()  # otherwise the disconnect of a client that pipelines goes unnoticed

    def on_body(self, body: bytes) -> None:
        """Adds a part of the body."""
        self._head_size, self._progressed = 0, True
        request = self._arriving
        assert request is not None  # noqa: S101
        if request.reply.is_complete:
            return
        if not request.body:
            request.body = body
        elif isinstance(request.body, bytearray):
            request.body += body
        else:
            request.body = bytearray(request.body + body)
        if len(request.body) > _READ_AHEAD:
            if request is not self._open[0]:
                self._fail_ahead()
            if request.task is None:
                self._start(request)
            if not self.read_paused:
                self.read_paused = True
                self.transport.pause_reading()
        request.has_news = True
        if request.arrival is not None:
            request.arrival.set()

    def on_message_complete(self) -> None:
        """Completes the request and starts answering it, unless its body is taken for another protocol."""
        if self._parser.should_upgrade() and self._framing():
            return
        request, self._arriving = self._arriving, None
        assert request is not None  # noqa: S101
        self._progressed, self._due = True, None
        request.is_whole = request.has_news = True
        if request.arrival is not None:
            request.arrival.set()
        if not self._open:  # it was answered before it was complete
            self._wait(self._idle_timeout)
        elif request is self._open[0] and request.task is None:
            self._start(request)

    def _make_parser(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        # Data after a request with "connection: close" is dropped.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def _start(self, request: Request) -> None:
        tasks = self.server_state.tasks
        task = request.task = self._loop.create_task(self._app.answer(request))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        if self._half_closed:
            self._probe(iter(_PROBES))

    def _end(self) -> None:
        if self._open:
            self._open[-1].reply.keep_alive = False
        else:
            self.transport.close()

    def _probe(self, pauses: Iterator[float]) -> None:
        """Checks, after each pause again, whether the client of the running request still reads.

        A client that has gone resets the connection. Before the answer begins, the probes are the first bytes
        of its status line, and later zeros before the length of its next chunk (RFC 9112, 7.1).
        """
        if not self._open:
            return
        reply = self._open[0].reply
        if reply.head_sent and not reply.is_chunked:
            if not reply.has_end:
                self.transport.close()
            return
        reply.may_have_left = True
        if reply.head_sent:
            self.transport.write(b"0")
        elif reply.sent_ahead < len(_PROBE):
            self.transport.write(_PROBE[reply.sent_ahead : reply.sent_ahead + 1])
            reply.sent_ahead += 1
        # A client on this machine has reset the connection by now, and its next turn may follow at once.
        own = self.transport.get_extra_info("socket")
        if own is not None and own.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
            return
        if (pause := next(pauses, None)) is not None:
            self._probe_timer = self._loop.call_later(pause, self._probe, pauses)

    def _stay_with_http(self, rest: bytes) -> None:
        """Continues in HTTP/1.1 if a client offers another protocol, as Java's does with h2c."""
        while True:
            self._make_parser()
            self._head_size = 0
            if framing := self._framing():
                self._restoring_body = True
                self._parser.feed_data(f"POST / HTTP/1.1\r\nhost: x\r\n{framing}\r\n\r\n".encode("latin-1"))
                self._restoring_body = False
            try:
                self._parser.feed_data(rest)
            except httptools.HttpParserUpgrade as upgrade:
                rest = rest[upgrade.args[0] :]
            else:
                return

    def _framing(self) -> str:
        """Returns the header with the length or coding of the body; empty if there is no body."""
        for name in _FRAMING:
            if self._headers.get(name, "0") != "0":
                return f"{name}: {self._headers[name]}"
        return ""

    def _check_head(self, version: str) -> None:
        """Refuses a head that two servers could parse differently (RFC 9112, 3.2 and 6.1)."""
        hosts = ("host" in self._headers) + self._repeated.count("host")
        coding = self._headers.get("transfer-encoding")
        if hosts > 1 or (hosts == 0 and version == "1.1"):
            self._error = RequestError(
                f"'Host' must be sent exactly once; it was sent {hosts} times.", code="invalid_http"
            )
        elif coding is not None and (
            coding.strip().lower() != "chunked" or "transfer-encoding" in self._repeated
        ):
            message = "'Transfer-Encoding' must be 'chunked', once, or absent."
            self._error = RequestError(message, code="invalid_http")
        else:
            return
        raise httptools.HttpParserError

    def _fail_head(self) -> NoReturn:
        self._error = HeadTooLarge(f"The request's head has more than {LARGEST_HEAD} bytes.")
        raise httptools.HttpParserError

    def _fail_ahead(self) -> NoReturn:
        self._error = RequestError("Too much was sent before the answers; wait for them.")
        raise httptools.HttpParserError

    def _wait(self, seconds: float) -> None:
        """Sets the timeout, in seconds, for the data that is expected from the client."""
        self._due = self._loop.time() + seconds
        # A timer that fires before the deadline is set again then, so that most turns need no new timer.
        if self._timer is not None and self._timer.when() > self._due:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self._loop.call_at(self._due, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._due is None:
            return
        if self._loop.time() < self._due:
            self._timer = self._loop.call_at(self._due, self._on_timer)
        elif not self._in_head and self._arriving is None:
            self.transport.close()
        elif self.read_paused:  # it is this side that does not read
            self._wait(BODY_TIMEOUT)
        else:
            self._refuse(TooSlow("The request took too long to arrive."))

    def _refuse(self, error: TurnkeeperError) -> None:
        """Ends the connection: at once with an error, or after the answers that are still due."""
        broken = self._arriving
        before = [request for request in self._open if request is not broken]
        self._refused, self._due = True, None
        self.resume_reading()  # further data is dropped, and a disconnect is noticed
        if before:
            self._open = before
            before[-1].reply.keep_alive = False
        elif broken is None or not broken.reply.head_sent:
            self.transport.write(_error_response(error))
            self.transport.write_eof()
            self._loop.call_later(
                _LINGER, self.transport.close
            )  # a client that still sends could not read the error
        else:
            self.transport.close()
        if broken is not None:
            _disconnect(broken)


def _disconnect(request: Request) -> None:
    reply = request.reply
    reply.disconnected, reply.is_writable = True, False
    if request.arrival is not None:
        request.arrival.set()
    if reply.watcher is not None:
        reply.watcher.cancel()


def _error_response(error: TurnkeeperError) -> bytes:
    """Returns the whole response for an invalid request, after which the connection is closed."""
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
    return STATUS_LINES[error.status] + b"\r\n" + lines.encode() + b"\r\n" + body
