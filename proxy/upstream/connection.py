"""HTTP/1.1 over one connection: a request goes out, and its response is read as it arrives."""

import asyncio
import zlib
from collections.abc import Callable

import httptools

from proxy.answer.response import Headers, Response
from proxy.errors import UpstreamBroken, UpstreamError, UpstreamTimeout

_SWITCHING, _OK = 101, 200
# Limit, in bytes, of what neither completes a head nor adds to a body: heads, chunk extensions, trailers.
_OVERHEAD = 64 << 10
# Below this, joining head and body costs less than a second buffer on the way out.
_JOINED = 64 << 10
# With more unread bytes than this, the connection stops reading from the socket until all are read.
_UNREAD = 1 << 17
# uvloop counts time in milliseconds: a timer may fire this much early.
_TICK = 0.001
_PIECE = 1 << 17
_GZIP, _ZLIB, _RAW = 31, 15, -15
_CM_MASK, _CM_DEFLATE = 0x0F, 8


class StaleConnection(UpstreamBroken):
    """A reused connection was lost before the first byte of a response: the request may be sent again."""


class HttpResponse:
    """A response as it arrives: the head, then the bytes that have not been read yet.

    ``on_end`` is called once, when the connection carries no more of the response. Where the connection goes
    to ``on_idle`` instead, ``on_end`` is not called.
    """

    __slots__ = (
        "_error", "_loop", "chunks", "coding", "complete", "connection", "deadline", "headers",
        "on_end", "status", "take", "unread", "waiter",
    )  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop, on_end: Callable[[], None]) -> None:
        self.status = 0
        self.headers: Headers = ()
        self.coding = b""
        self.chunks: list[bytes] = []
        self.unread = 0
        self.complete = False
        self.connection: Connection | None = None
        self.take: Callable[[bytes], bool] | None = None
        self.waiter: asyncio.Future[None] | None = None
        self._loop = loop
        self.on_end: Callable[[], None] | None = on_end
        self._error: UpstreamError | None = None
        self.deadline = 0.0

    # The interface for the reader, as in proxy.answer.response.

    async def read(self) -> bytes:
        """Returns all bytes since the last read, b"" at the end; a cancelled read loses nothing."""
        chunks = self.chunks
        while not chunks:
            if self._error is not None:
                raise self._error.with_traceback(None)
            if self.complete:
                return b""
            waiter = self.waiter = self._loop.create_future()
            try:
                await waiter
            finally:
                self.waiter = None
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        if self.unread > _UNREAD and self.connection is not None:
            self.connection.resume()
        self.unread = 0
        return data

    def offer(self, take: Callable[[bytes], bool]) -> None:
        """Passes bytes that arrive while a read waits to `take`; `read` returns them where that is false."""
        if not self.complete:
            self.take = take

    @property
    def exhausted(self) -> bool:
        """Whether `read` would return b"" at once."""
        return self.complete and not self.chunks and self._error is None

    def due(self, at: float) -> None:
        """Sets the loop time after which an incomplete response fails with UpstreamTimeout."""
        self.deadline = at
        if self.connection is not None:
            self.connection.watch(at)

    def close(self) -> None:
        """Ends the response; the connection of an incomplete one is aborted."""
        if self.complete:
            self.chunks.clear()
        else:
            self.abort(self._error or UpstreamBroken("the answer was closed before its end"))

    # The interface for the client and the connection.

    async def head(self) -> None:
        """Waits for the status and the headers; raises UpstreamError where the connection fails first."""
        while not self.status:
            if self._error is not None:
                raise self._error.with_traceback(None)
            self.waiter = self._loop.create_future()
            await self.waiter

    def reset(self) -> None:
        """Clears the error of a failed connection, so that the request can be sent again."""
        self._error = None

    def wake(self) -> None:
        """Wakes the reader that waits, if there is one."""
        waiter, self.waiter = self.waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def end(self) -> None:
        """Detaches the response from its connection, calls ``on_end`` and wakes the reader."""
        self.connection = self.take = None
        on_end, self.on_end = self.on_end, None
        if on_end is not None:
            on_end()
        self.wake()

    def fail(self, error: UpstreamError) -> None:
        """Records that the connection is lost: `read` returns what came before, then raises `error`."""
        self.connection = None
        self._error = self._error or error
        if self.status:
            self.end()
        else:
            self.wake()

    def abort(self, error: UpstreamError) -> None:
        """Drops all unread bytes; the connection of an incomplete response is closed at once."""
        self.chunks.clear()
        self._error = error
        if self.connection is not None and not self.complete:
            self.connection.drop()
        self.end()


class Connection(asyncio.Protocol):
    """One socket, which carries one request at a time.

    ``on_idle`` is called with the connection when it can carry another request, and ``on_lost`` when it is
    closed. ``expires`` is the loop time at which an idle connection is closed; 0 before its first response.
    """

    __slots__ = (
        "_body", "_headers", "_keep_alive", "_loop", "_on_idle", "_on_lost", "_overhead", "_parser",
        "_paused", "_peer", "_response", "_rings_at", "_size", "_timer", "expires", "on_body", "transport",
    )  # fmt: skip

    def __init__(
        self,
        peer: str,
        *,
        on_idle: Callable[["Connection"], None],
        on_lost: Callable[["Connection"], None],
    ) -> None:
        self.expires = 0.0
        self._peer = peer
        self._on_idle = on_idle
        self._on_lost = on_lost
        self.transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._response: HttpResponse | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self.on_body = self._body.append  # called by the parser without a Python frame
        self._overhead = self._size = 0
        self._paused = self._keep_alive = False
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = 0.0

    @property
    def answering(self) -> bool:
        """Whether a response is under way whose head has arrived."""
        return self._response is not None and bool(self._response.status)

    def send(self, response: HttpResponse, head: bytes, body: bytes) -> None:
        """Sends a request; `response` is filled as the answer arrives."""
        response.connection = self
        self._overhead = self._size = 0
        self._headers = []
        if self.transport is None or self.transport.is_closing():
            response.fail(self._loss(None, response))
            return
        self._response = response
        if len(body) < _JOINED:
            self.transport.write(head + body)
        else:
            self.transport.writelines((head, body))

    def watch(self, at: float) -> None:
        """Checks by loop time `at` whether the response is late.

        One timer serves all requests in turn: it is restarted where it would fire too late, or fires early.
        """
        if self._timer is not None:
            if self._rings_at <= at:
                return
            self._timer.cancel()
        self._rings_at = at
        self._timer = self._loop.call_at(at, self._ring)

    def resume(self) -> None:
        """Resumes reading from the socket."""
        self._paused = False
        if self.transport is not None:
            self.transport.resume_reading()

    def drop(self) -> None:
        """Closes the connection at once; its response is not notified."""
        self._response = None
        if self.transport is not None:
            self.transport.abort()

    def fail(self, error: UpstreamError) -> None:
        """Closes the connection at once; a response under way fails with `error`."""
        response, self._response = self._response, None
        self.drop()
        if response is not None:
            response.fail(error)

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the transport, and creates the parser."""
        self.transport = transport  # type: ignore[assignment]  # a stream socket's is a Transport
        self._parser = httptools.HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        """Parses bytes, and passes what they add to the response to its reader."""
        response, parser, body = self._response, self._parser, self._body
        if response is None or parser is None:
            self.drop()  # bytes that no request asked for
            return
        self._overhead += len(data)
        try:
            parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            # The bytes before the error are still read; the connection is not used again.
            self._keep_alive = False
            if not response.complete:
                response.chunks += body
                body.clear()
                self.fail(self._malformed(str(error.__context__ or error)))
        if response.complete:
            self._complete(response)
            return
        if not body:
            if self._overhead > _OVERHEAD:
                self.fail(self._malformed("more than 64 KB of head, chunk extensions or trailers"))
            response.wake()
            return
        self._overhead = 0
        data = body[0] if len(body) == 1 else b"".join(body)
        body.clear()
        if response.take is not None and response.waiter is not None:
            try:
                if response.take(data):
                    return
            except UpstreamError as error:
                response.abort(error)
                return
        response.wake()
        response.chunks.append(data)
        response.unread += len(data)
        if response.unread > _UNREAD and not self._paused and self.transport is not None:
            self._paused = True
            self.transport.pause_reading()

    def eof_received(self) -> None:
        """Ends the response under way, and closes the connection."""
        self._end(None)
        self.drop()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fails the response under way, and reports the connection as lost."""
        self._end(exc)
        if self._timer is not None:
            self._timer.cancel()
        # Breaks the cycle with the parser, so that nothing is left for the garbage collector.
        self._parser = self.transport = None
        self._on_lost(self)

    # Called by the parser.

    def on_message_begin(self) -> None:
        """Raises UpstreamBroken for a response that no request asked for."""
        if self._response is None or self._response.complete:
            raise UpstreamBroken("bytes after the end")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Adds a header; drops a trailer. Raises UpstreamBroken where they exceed 64 KB."""
        self._size += len(name) + len(value)
        if self._size > _OVERHEAD:
            raise UpstreamBroken("its head is larger than 64 KB")
        if self._response is not None and not self._response.status:  # else a trailer
            self._headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        """Fills in status and headers of the response; the head of an interim response is dropped.

        Raises UpstreamBroken for a status or a transfer encoding that was not asked for.
        """
        response, parser = self._response, self._parser
        assert response is not None and parser is not None  # noqa: S101, PT018 - the message has begun
        status = parser.get_status_code()
        if status < _OK:
            if status < 100 or status == _SWITCHING:  # noqa: PLR2004  (no class of status below 1xx)
                raise UpstreamBroken(f"a status {status} that was not asked for")
            self._headers = []
            return
        for name, value in self._headers:
            if name == b"transfer-encoding" and value.lower() != b"chunked":
                raise UpstreamBroken(f"the transfer encoding {value[:40]!r} that was not asked for")
            if name == b"content-encoding":
                response.coding = b"%b, %b" % (response.coding, value) if response.coding else value
        response.headers, response.status = self._headers, status
        self._keep_alive, self._overhead = parser.should_keep_alive(), 0

    def on_message_complete(self) -> None:
        """Marks the response as complete, unless this was an interim one."""
        if self._response is not None and self._response.status:
            self._response.complete = True

    def _complete(self, response: HttpResponse) -> None:
        """Ends a complete response, and keeps the connection if it can carry another one."""
        self._response = None
        response.chunks += self._body
        self._body.clear()
        # A response may come before its request is sent whole: the rest must not precede the next request.
        if self._keep_alive and self.transport is not None and not self.transport.get_write_buffer_size():
            response.on_end = None
            self._on_idle(self)
        else:
            self.drop()
        response.end()

    def _end(self, exc: Exception | None) -> None:
        """Ends the response under way; one without a length is complete when its connection ends."""
        response, self._response = self._response, None
        if response is None:
            return
        framed = any(name in (b"content-length", b"transfer-encoding") for name, _ in self._headers)
        if exc is None and response.status and not framed:
            response.complete = True
            response.end()
        else:
            response.fail(self._loss(exc, response))

    def _ring(self) -> None:
        self._timer, response = None, self._response
        if response is None:
            return
        if response.deadline - self._loop.time() > _TICK:
            self.watch(response.deadline)
        else:
            missing = "the rest of its answer" if response.status else "any answer"
            response.abort(
                UpstreamTimeout(
                    f"{self._peer} did not send {missing} in time; check whether the model is overloaded"
                )
            )

    def _malformed(self, what: str) -> UpstreamBroken:
        return UpstreamBroken(f"{self._peer} sent a malformed answer: {what}; check that it speaks HTTP/1.1")

    def _loss(self, exc: Exception | None, response: HttpResponse) -> UpstreamBroken:
        why = str(exc) if exc is not None else "connection closed"
        if response.status:
            return UpstreamBroken(f"{self._peer} broke off in the middle of its answer: {why}")
        kind = StaleConnection if self.expires > 0 and not self._overhead else UpstreamBroken
        return kind(f"{self._peer} closed the connection without an answer: {why}; check that it is up")


class DecodedResponse(Response):
    """A response whose body is compressed, decoded in pieces of at most 128 KB as it is read."""

    def __init__(self, response: HttpResponse, *, gzip: bool) -> None:
        self.status: int = response.status
        self.headers: Headers = response.headers
        self._response = response
        self._gzip = gzip
        self._inflater: zlib._Decompress | None = None
        self._tail = b""
        self._has_more = False  # whether another piece can be decoded without new bytes

    async def read(self) -> bytes:
        """Returns the next decoded piece, b"" at the end; raises UpstreamBroken for damaged data."""
        while True:
            data = b""
            if self._has_more:  # a few bytes may unpack to many: other tasks run between two pieces
                await asyncio.sleep(0)
            elif not (data := await self._response.read()):
                if self._inflater is not None and not self._inflater.eof:
                    raise UpstreamBroken("the model's compressed answer was cut short")
                return b""
            try:
                if data := self._decode(data):
                    return data
            except zlib.error as damage:
                error = UpstreamBroken(f"the model's compressed answer is damaged: {damage}")
                self._response.abort(error)
                raise error from None

    def _decode(self, data: bytes) -> bytes:
        data, pieces, room = self._tail + data, list[bytes](), _PIECE
        while room and (data or self._has_more):
            inflater = self._inflater
            if inflater is None or inflater.eof:
                if inflater is not None and not data.lstrip(b"\0"):  # padding after the last member
                    data = b""
                    break
                # Some servers send raw deflate as "deflate", which means zlib: the first byte differs.
                window = _GZIP if self._gzip else _ZLIB if data[0] & _CM_MASK == _CM_DEFLATE else _RAW
                inflater = self._inflater = zlib.decompressobj(window)
            piece = inflater.decompress(data, room)
            self._has_more = len(piece) == room
            data = inflater.unused_data if inflater.eof else inflater.unconsumed_tail
            pieces.append(piece)
            room -= len(piece)
        self._tail, self._has_more = data, not room
        return b"".join(pieces)

    def due(self, at: float) -> None:
        """Sets the deadline of the response."""
        self._response.due(at)

    def close(self) -> None:
        """Ends the response; the connection of an incomplete one is aborted."""
        self._tail, self._inflater, self._has_more = b"", None, False
        self._response.close()


def decoded(response: HttpResponse) -> Response:
    """Returns the response, decoded if its body is compressed; raises UpstreamBroken for other codings."""
    coding = response.coding.strip().lower()
    if coding in (b"", b"identity"):
        return response
    if coding in (b"gzip", b"x-gzip", b"deflate"):
        return DecodedResponse(response, gzip=coding != b"deflate")
    raise UpstreamBroken(
        f"the model answered in the content encoding {coding[:40]!r}, which was not asked for"
    )
