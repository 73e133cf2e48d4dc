"""A connection to the model."""

import asyncio
from typing import Protocol

import httptools

from proxy.errors import UpstreamBroken, UpstreamError
from proxy.http1.answer import UNREAD, Answer

# Bytes that may come without completing a head or adding to a body: heads, chunk extensions, trailers.
_OVERHEAD = 64 << 10
# Below this, joining head and body costs less than a second buffer on the way out.
_JOINED = 64 << 10
_SWITCHING, _OK = 101, 200


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
        self._answer: Answer | None = None
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

    def send(self, answer: Answer, head: bytes, body: bytes) -> None:
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

    def _open(self, answer: Answer, status: int, *, keep_alive: bool) -> None:
        for name, value in self._headers:
            if name == b"transfer-encoding" and value.lower() != b"chunked":
                raise UpstreamBroken(f"the transfer encoding {value[:40]!r} that was not asked for")
        answer.headers, answer.status = self._headers, status
        self._keep_alive, self._overhead = keep_alive, 0

    def _progress(self, answer: Answer) -> None:
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

    def _finish(self, answer: Answer) -> None:
        self._answer = None
        # An answer may overtake its request: the rest of that must not go before the next one.
        if self._keep_alive and self._transport is not None and not self._transport.get_write_buffer_size():
            self.resume()
            self._home.keep(self)
        else:
            self.drop()
        answer.finish()

    def _garbled(self, answer: Answer, error: Exception) -> None:
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

    def _loss(self, exc: Exception | None, answer: Answer) -> UpstreamBroken:
        why = str(exc) if exc is not None else "connection closed"
        if answer.status:
            return UpstreamBroken(f"{self._peer} broke off in the middle of its answer: {why}")
        waited = self.expires > 0
        kind = Stale if waited and not self._overhead else UpstreamBroken
        return kind(f"{self._peer} closed the connection without an answer: {why}; check that it is up")
