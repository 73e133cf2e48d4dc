"""A request as it goes on the wire."""

import asyncio
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import httptools

from proxy.answer.response import Headers
from proxy.errors import UpstreamBroken, UpstreamError, UpstreamTimeout

_METHOD = re.compile(r"(?!HEAD$|CONNECT$)[A-Z]+")
_PATH = re.compile(r"/[\x21\x22\x24-\x7e]*")
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_FRAMING = frozenset(
    (b"connection", b"content-length", b"expect", b"te", b"trailer", b"transfer-encoding", b"upgrade")
)
PIECE = 1 << 17
_GZIP, _ZLIB, _RAW = 31, 15, -15
_CM_MASK, _CM_DEFLATE = 0x0F, 8
# More than this waiting to be read, and the line stops until all of it has been.
UNREAD = 1 << 17
# uvloop counts time in milliseconds: a timer may ring this much early.
_TICK = 0.001
# Bytes that may come without completing a head or adding to a body: heads, chunk extensions, trailers.
_OVERHEAD = 64 << 10
# Below this, joining head and body costs less than a second buffer on the way out.
_JOINED = 64 << 10
_SWITCHING, _OK = 101, 200


@dataclass(frozen=True, slots=True)
class RequestHead:
    """What every request to one upstream has in its head."""

    before_path: bytes
    host: bytes
    proxy_lines: bytes

    def request(self, method: str, path: str, headers: Headers, body: bytes) -> tuple[bytes, bytes]:
        """Head and body; ValueError where a word of the caller's would break the head's lines."""
        if not _METHOD.fullmatch(method) or not _PATH.fullmatch(path):
            raise ValueError(f"{method!r} {path!r}: not a method and a path that this client sends")
        lines = [
            b"%b %b%b HTTP/1.1\r\n" % (method.encode(), self.before_path, path.encode()),
            self.proxy_lines,
        ]
        named = {_add(lines, name, value) for name, value in headers}
        if b"host" not in named:
            lines.append(b"host: %b\r\n" % self.host)
        if b"accept-encoding" not in named:
            lines.append(b"accept-encoding: identity\r\n")
        if body or method != "GET":
            lines.append(b"content-length: %d\r\n" % len(body))
        lines.append(b"\r\n")
        return b"".join(lines), body


def _add(lines: list[bytes], name: bytes, value: bytes) -> bytes:
    if not _NAME.fullmatch(name) or name in _FRAMING:
        raise ValueError(f"header {name!r}: no lower-case header name, or one that the client sets itself")
    # The value may be a key: it is never shown.
    if not _VALUE.fullmatch(value):
        raise ValueError(f"header {name!r}: its value holds a control character")
    lines.append(b"%b: %b\r\n" % (name, value))
    return name


class _Inflater(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    @property
    def unconsumed_tail(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = 0, /) -> bytes: ...


class Decoder:
    """A compressed body, fed as it comes and given out in bounded pieces."""

    __slots__ = ("_gzip", "_inflater", "_tail", "more")

    def __init__(self, *, gzip: bool) -> None:
        self.more = False
        self._gzip = gzip
        self._tail = b""
        self._inflater: _Inflater | None = None

    def feed(self, data: bytes) -> bytes:
        """The next piece, at most 128 KB; `more` says that another can be had without new bytes."""
        data = self._tail + data if self._tail else data
        pieces: list[bytes] = []
        room = PIECE
        while room and (data or self.more):
            out, data = self._step(data, room)
            pieces.append(out)
            room -= len(out)
        self._tail, self.more = data, not room
        return b"".join(pieces)

    def end(self) -> None:
        """True to its word: the compressed body ended where it should have."""
        if self._inflater is not None and not self._inflater.eof:
            raise UpstreamBroken("the model's compressed answer was cut short")

    def _step(self, data: bytes, room: int) -> tuple[bytes, bytes]:
        inflater = self._current(data)
        if inflater is None:
            return b"", b""
        try:
            out = inflater.decompress(data, room)
        except zlib.error as error:
            raise UpstreamBroken(f"the model's compressed answer is damaged: {error}") from None
        self.more = len(out) == room
        return out, inflater.unused_data if inflater.eof else inflater.unconsumed_tail

    def _current(self, data: bytes) -> _Inflater | None:
        inflater = self._inflater
        if inflater is not None and not inflater.eof:
            return inflater
        if inflater is not None and not data.lstrip(b"\0"):  # padding after the last member
            self.more = False
            return None
        self._inflater = zlib.decompressobj(self._window(data))
        return self._inflater

    def _window(self, data: bytes) -> int:
        # Some servers call raw deflate "deflate", which should be zlib: the first byte tells them apart.
        if self._gzip:
            return _GZIP
        return _ZLIB if data[0] & _CM_MASK == _CM_DEFLATE else _RAW


def decoder_of(headers: Headers) -> Decoder | None:
    """What undoes the body's coding, None for a plain one; UpstreamBroken for a coding unknown here."""
    coding = b", ".join(value for name, value in headers if name == b"content-encoding").strip().lower()
    if coding in (b"", b"identity"):
        return None
    if coding in (b"gzip", b"x-gzip", b"deflate"):
        return Decoder(gzip=coding != b"deflate")
    raise UpstreamBroken(
        f"the model answered in the content encoding {coding[:40]!r}, which was not asked for"
    )


class Carrier(Protocol):
    """The connection, as far as its answer knows it."""

    def resume(self) -> None:
        """Bytes may come again."""

    def drop(self) -> None:
        """The connection is closed at once, and tells its answer nothing more."""


class HttpResponse:
    """One answer as it arrives: the head, then the bytes that nobody has read yet."""

    __slots__ = (
        "_chunks", "_decoder", "_due", "_fault", "_leave", "_line", "_loop", "_peer", "_rings", "_take_in",
        "_timer", "_waiter", "complete", "headers", "status", "unread",
    )  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop, leave: Callable[[], None], peer: str) -> None:
        self.status = 0
        self.headers: Headers = ()
        self.complete = False
        self.unread = 0
        self._loop = loop
        self._peer = peer
        self._leave: Callable[[], None] | None = leave
        self._line: Carrier | None = None
        self._chunks: list[bytes] = []
        self._decoder: Decoder | None = None
        self._fault: UpstreamError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._take_in: Callable[[bytes], bool] | None = None
        self._due = self._rings = 0.0

    # What the caller does with it.

    async def read(self) -> bytes:
        """All that has arrived since the last read, b"" at the end; may be cancelled and called again."""
        while True:
            if self._chunks or (self._decoder is not None and self._decoder.more):
                if not self._chunks:  # of little that came much is made: others have their turn in between
                    await asyncio.sleep(0)
                if data := self._take():
                    return data
            elif self._fault is not None:
                raise self._fault.with_traceback(None)
            elif self.complete:
                return self._end()
            else:
                await self._news()

    def offer(self, take: Callable[[bytes], bool]) -> None:
        """From now on `take` is asked whether it takes what arrives, before anybody is woken to read it."""
        self._take_in = take

    def due(self, at: float) -> None:
        """An answer that is not whole when loop.time() passes `at` raises UpstreamTimeout from then on."""
        self._due = at
        if self._leave is None or (self._timer is not None and self._rings <= at):
            return  # over, or the timer rings early enough and will see that it was put off
        self._stop_timer()
        self._rings = at
        self._timer = self._loop.call_at(at, self._ring)

    def close(self) -> None:
        """Nothing more is wanted: an unfinished answer's connection is aborted at once."""
        self._forget()
        if not self.complete and self._fault is None:
            self._fault = UpstreamBroken("the answer was closed before its end")
        self._hang_up()

    # What the client and the connection do with it.

    async def head(self) -> None:
        """Return when status and headers are there."""
        while not self.status:
            if self._fault is not None:
                raise self._fault.with_traceback(None)
            await self._news()
        self._decoder = decoder_of(self.headers)

    def attach(self, line: Carrier) -> None:
        """The request is about to go out on `line`."""
        self._line = line

    def reset(self) -> None:
        """What the first line did is forgotten: the request is sent once more."""
        self._fault = None
        self._stop_timer()

    def push(self, data: bytes) -> None:
        """Some bytes of the body came."""
        self._chunks.append(data)
        self.unread += len(data)

    def finish(self) -> None:
        """The whole answer is here."""
        self.complete = True
        self._settle()
        self.wake()

    def fail(self, fault: UpstreamError) -> None:
        """The line is gone: what came before is read first, then `fault` is raised."""
        self._line = None
        self._fault = self._fault or fault
        if self.status:
            self._settle()
        self.wake()

    def hand_over(self) -> bool:
        """Whether somebody took all that is here at once."""
        if self._take_in is None or self._decoder is not None or not self._chunks:
            return False
        chunks = self._chunks
        try:
            if not self._take_in(chunks[0] if len(chunks) == 1 else b"".join(chunks)):
                return False
        except UpstreamError as fault:
            self._break(fault)
            return False
        chunks.clear()
        self.unread = 0
        return True

    def wake(self) -> None:
        """Whoever waits looks again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _news(self) -> "asyncio.Future[None]":
        self._waiter = self._loop.create_future()
        return self._waiter

    def _take(self) -> bytes:
        chunks = self._chunks
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        if self._decoder is not None:
            data = self._decode(self._decoder, data)
            if self._decoder.more:
                return data
        if self.unread > UNREAD and self._line is not None:
            self._line.resume()
        self.unread = 0
        return data

    def _decode(self, decoder: Decoder, data: bytes) -> bytes:
        try:
            return decoder.feed(data)
        except UpstreamBroken as fault:
            self._break(fault)
            raise

    def _end(self) -> bytes:
        if self._decoder is not None:
            self._decoder.end()
        return b""

    def _ring(self) -> None:
        self._timer = None
        if self._due - self._loop.time() > _TICK:
            self.due(self._due)
            return
        self._break(UpstreamTimeout(self._overdue()))
        self.wake()

    def _overdue(self) -> str:
        missing = "the rest of its answer" if self.status else "any answer"
        return f"{self._peer} did not send {missing} in time; check whether the model is overloaded"

    def _break(self, fault: UpstreamError) -> None:
        self._forget()
        self._fault = fault
        self._hang_up()

    def _forget(self) -> None:
        self._chunks.clear()
        self._decoder = None

    def _hang_up(self) -> None:
        line, self._line = self._line, None
        if line is not None and not self.complete:
            line.drop()
        self._settle()

    def _settle(self) -> None:
        self._line = self._take_in = None
        self._stop_timer()
        leave, self._leave = self._leave, None
        if leave is not None:
            leave()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Stale(UpstreamBroken):
    """A connection that was kept died before the first byte of this answer: the request may be sent again."""


class Home(Protocol):
    """Where a connection comes from and returns to."""

    def keep(self, connection: "Connection", /) -> None:
        """It may carry another request."""

    def lost(self, connection: "Connection", /) -> None:
        """It is gone."""


class Connection(asyncio.Protocol):
    """One socket: a request goes out, its answer is parsed as it comes, and then the next may go."""

    __slots__ = (
        "_answer", "_headers", "_home", "_keep_alive", "_overhead", "_parser", "_paused", "_peer", "_size",
        "_transport", "expires",
    )  # fmt: skip

    def __init__(self, home: Home, peer: str) -> None:
        self.expires = 0.0
        self._home = home
        self._peer = peer
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._answer: HttpResponse | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._overhead = self._size = 0
        self._paused = self._keep_alive = False

    @property
    def alive(self) -> bool:
        """Whether bytes can still go either way."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def answering(self) -> bool:
        """Whether it is in the middle of an answer, the head being there."""
        return self._answer is not None and bool(self._answer.status)

    def send(self, answer: HttpResponse, head: bytes, body: bytes) -> None:
        """The request goes out, and what comes back is `answer`'s."""
        answer.attach(self)
        self._overhead = self._size = 0
        self._headers = []
        if self._transport is None or self._transport.is_closing():
            answer.fail(self._loss(None, answer))
            return
        self._answer = answer
        if len(body) < _JOINED:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))

    def resume(self) -> None:
        """Bytes may come again."""
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    def drop(self) -> None:
        """The connection is closed at once, and tells its answer nothing more."""
        self._answer = None
        if self._transport is not None:
            self._transport.abort()

    def fail(self, fault: UpstreamError) -> None:
        """The connection is closed at once, and its answer, if it carries one, ends in `fault`."""
        answer, self._answer = self._answer, None
        self.drop()
        if answer is not None:
            answer.fail(fault)

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Bytes can go either way."""
        self._transport = transport  # type: ignore[assignment]  # a stream socket's is a Transport
        self._parser = httptools.HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        """Some bytes came."""
        answer, parser = self._answer, self._parser
        if answer is None or parser is None:
            self.drop()  # nobody asked for anything
            return
        self._overhead += len(data)
        try:
            parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._garbled(answer, error)
        else:
            self._progress(answer)

    def eof_received(self) -> None:
        """No more will come."""
        self._over(None)
        self.drop()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        self._over(exc)
        # The parser holds this object: letting go of it leaves nothing for the garbage collector.
        self._parser = self._transport = None
        self._home.lost(self)

    # What the parser calls.

    def on_message_begin(self) -> None:
        """An answer begins, or bytes that nobody asked for."""
        if self._answer is None or self._answer.complete:
            raise UpstreamBroken("bytes after the end")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header is whole, or a trailer."""
        self._size += len(name) + len(value)
        if self._size > _OVERHEAD:
            raise UpstreamBroken("its head is larger than 64 KB")
        if self._answer is not None and not self._answer.status:  # else a trailer
            self._headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        """A head is whole: an interim one is forgotten."""
        answer, parser = self._answer, self._parser
        if answer is None or parser is None:
            return
        status = parser.get_status_code()
        if status >= _OK:
            self._open(answer, status, keep_alive=parser.should_keep_alive())
        elif status < 100 or status == _SWITCHING:  # noqa: PLR2004  (no class of status below 1xx)
            raise UpstreamBroken(f"a status {status} that was not asked for")
        else:
            self._headers = []

    def on_body(self, data: bytes) -> None:
        """A piece of the body came."""
        self._overhead = 0
        if self._answer is not None:
            self._answer.push(data)

    def on_message_complete(self) -> None:
        """An answer is whole, or an interim one."""
        if self._answer is not None and self._answer.status:
            self._answer.complete = True

    def _open(self, answer: HttpResponse, status: int, *, keep_alive: bool) -> None:
        for name, value in self._headers:
            if name == b"transfer-encoding" and value.lower() != b"chunked":
                raise UpstreamBroken(f"the transfer encoding {value[:40]!r} that was not asked for")
        answer.headers, answer.status = self._headers, status
        self._keep_alive, self._overhead = keep_alive, 0

    def _progress(self, answer: HttpResponse) -> None:
        if answer.complete:
            self._finish(answer)
            return
        if self._overhead > _OVERHEAD:
            self.fail(self._malformed("more than 64 KB of head, chunk extensions or trailers"))
            return
        if answer.hand_over():
            return
        if answer.unread > UNREAD and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        answer.wake()

    def _finish(self, answer: HttpResponse) -> None:
        self._answer = None
        # An answer may overtake its request: the rest of that must not go before the next one.
        if self._keep_alive and self._transport is not None and not self._transport.get_write_buffer_size():
            self.resume()
            self._home.keep(self)
        else:
            self.drop()
        answer.finish()

    def _garbled(self, answer: HttpResponse, error: Exception) -> None:
        if answer.complete:
            self._keep_alive = False
            self._finish(answer)
        else:
            self.fail(self._malformed(str(error.__context__ or error)))

    def _malformed(self, what: str) -> UpstreamBroken:
        return UpstreamBroken(f"{self._peer} sent a malformed answer: {what}; check that it speaks HTTP/1.1")

    def _over(self, exc: Exception | None) -> None:
        answer, self._answer = self._answer, None
        if answer is None:
            return
        if exc is None and answer.status and not self._framed:
            answer.finish()
        else:
            answer.fail(self._loss(exc, answer))

    @property
    def _framed(self) -> bool:
        return any(name in (b"content-length", b"transfer-encoding") for name, _ in self._headers)

    def _loss(self, exc: Exception | None, answer: HttpResponse) -> UpstreamBroken:
        why = str(exc) if exc is not None else "connection closed"
        if answer.status:
            return UpstreamBroken(f"{self._peer} broke off in the middle of its answer: {why}")
        waited = self.expires > 0
        kind = Stale if waited and not self._overhead else UpstreamBroken
        return kind(f"{self._peer} closed the connection without an answer: {why}; check that it is up")
