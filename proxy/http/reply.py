"""The answer to one request: a status once, then bytes of the body, then the end.

A long value is sent as slices of JSON: nothing else runs while a large one is encoded.
"""

import asyncio
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from http import HTTPStatus
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from proxy.errors import Superseded, TurnkeeperError
from proxy.observe.observation import Observation

if TYPE_CHECKING:
    from uvicorn.server import ServerState

Header = tuple[bytes, bytes]
_PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}
STATUS_LINES: Final = {
    status: f"HTTP/1.1 {status} {_PHRASES.get(status, '')}".encode() for status in range(100, 600)
}
CHUNK: Final = b"%x\r\n%b\r\n"
"""A chunk of a body, of its length and its bytes (RFC 9112, 7.1)."""
CLOSE: Final = (b"connection", b"close")
"""The header of an answer behind which the connection ends."""
_JSON: Final = (b"content-type", b"application/json")
_NO_SNIFFING: Final = (b"x-content-type-options", b"nosniff")
# All that a header may hold (RFC 9110, 5.5).
_VISIBLE: Final = bytes([9, *range(32, 127), *range(128, 256)])
_LINE: Final = b"%b: %b".__mod__
_NO_BODY: Final = frozenset({204, 304})
_CHUNKED: Final = (b"transfer-encoding", b"chunked")
# To copy more costs as much as a second write.
_JOINED: Final = 64 << 10

_SLICE: Final = 64_000
# A user's export is an object of arrays of sessions, which are objects of arrays of messages. So is an
# explanation, with steps in the place of sessions.
_LEVELS: Final = 4


class _Nowhere(asyncio.Transport):
    """A connection that leads nowhere."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Drops bytes."""


class Client:
    """The connection to a client, as a reply uses it; this one leads nowhere.

    ``write_paused`` is while the client does not read. ``server_state`` has the headers of all answers.
    """

    def __init__(self) -> None:
        self.transport: asyncio.Transport = _Nowhere()
        self.write_paused = False
        self.server_state: ServerState = SimpleNamespace(default_headers=())  # type: ignore[assignment]

    async def drain(self) -> None:
        """Returns once the client reads, or has disconnected."""

    def resume_reading(self) -> None:
        """Reads from the client again, if that was paused; a disconnect goes unnoticed until then."""

    def answered(self) -> None:
        """Goes on behind an answer that is complete."""


def _ignore(data: bytes) -> None:
    """What is no answer of a model is not copied."""


class Reply(msgspec.Struct, eq=False):
    """An answer that takes headers until it starts; ``observation``, set by then, notes its course.

    While it ``is_writable``, the client reads, and a CHUNK may be written to its transport at once. ``size``
    is how many bytes of the body were sent beside such chunks; ``note_sent`` records those bytes. When the
    client disconnects, ``watcher`` is cancelled, the task of a request that has come whole; a client
    ``may_have_left`` that has ended its side of the connection. ``keep_alive`` is whether the connection goes
    on behind the answer, ``takes_chunks`` whether the client speaks HTTP/1.1, ``has_body`` whether it asked
    for more than a head, and ``has_end`` whether the end of the body is marked. Of the
    status line ``sent_ahead`` bytes are with the client before it is sent.
    """

    client: Client
    observation: Observation = msgspec.UNSET  # type: ignore[assignment]
    keep_alive: bool = True
    takes_chunks: bool = True
    has_body: bool = True
    headers: list[Header] = []
    started: bool = False
    head_sent: bool = False
    is_chunked: bool = False
    is_writable: bool = False
    has_end: bool = True
    ending: bool = False
    is_complete: bool = False
    disconnected: bool = False
    may_have_left: bool = False
    sent_ahead: int = 0
    size: int = 0
    watcher: asyncio.Task[None] | None = None
    note_sent: Callable[[bytes], None] = _ignore

    def add_header(self, name: str, value: str) -> None:
        """Adds a header to the answer, whichever it will be; ``name`` is in lower case."""
        self.headers.append((name.encode("latin-1"), value.encode("latin-1")))

    def add_degraded(self, name: str) -> None:
        """Names something that was left out of the turn, in the answer's header too."""
        self.observation.report.degraded.append(name)
        self.add_header("x-turnkeeper-degraded", name)

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Sends an ASGI message of another application, with this reply's headers added to its own."""
        if message["type"] == "http.response.start":
            await self.begin(message["status"], [(name.lower(), value) for name, value in message["headers"]])
        else:
            await self.write(message.get("body", b""), ends=not message.get("more_body", False))

    async def begin(
        self, status: int, headers: Sequence[Header], data: bytes = b"", *, ends: bool = False
    ) -> None:
        """Sends status, headers and the first bytes of the body in one write; all of it where it ``ends``.

        Headers that were added before win over ``headers`` of the same name.
        """
        self.observation.report.status = status
        timing = self.observation.timer.server_timing().encode("ascii")
        own = [*self.client.server_state.default_headers, *self.headers, (b"server-timing", timing)]
        names = dict(own)
        for header in headers:
            if header[0] not in names:
                own.append(header)  # noqa: PERF401 - a comprehension would be a call
        names.update(headers)
        if CLOSE in own:
            self.keep_alive = False
        elif not self.keep_alive:
            own.append(CLOSE)
        if status in _NO_BODY:
            self.has_body = False
        elif ends:  # how the client finds the body's end: RFC 9112, 6.3
            own.append((b"content-length", b"%d" % len(data)))
        elif self.has_body and b"content-length" not in names:
            self.is_chunked = self.has_end = self.takes_chunks
            if self.is_chunked:
                own.append(_CHUNKED)
        lines = [STATUS_LINES[status], *map(_LINE, own)]
        head = b"\r\n".join(lines) + b"\r\n\r\n"
        if head.translate(None, _VISIBLE) != b"\r\n" * (len(lines) + 1):
            raise RuntimeError("A header of the answer has a character that no header may have")
        self.started = True
        await self.write(data, head=head, ends=ends)

    async def write(self, data: bytes, *, head: bytes = b"", ends: bool = False) -> None:
        """Sends bytes of the body, which may be the last ones."""
        if ends:
            self.ending = True
        self.size += len(data)
        self.note_sent(data)
        if self.client.write_paused:
            await self.client.drain()
        if self.disconnected or self.is_complete:
            return
        if not self.has_body:
            data = b""
        elif self.is_chunked:
            data = (CHUNK % (len(data), data) if data else b"") + (b"0\r\n\r\n" if ends else b"")
        self.is_writable = self.is_chunked and not ends
        if head:
            self.head_sent = True
            head = head[self.sent_ahead :]
            if len(data) < _JOINED:
                data = head + data
            else:
                self.client.transport.write(head)
        if data:
            self.client.transport.write(data)
        if ends:
            self.is_complete = True
            self.client.answered()

    async def fail(self, error: TurnkeeperError) -> None:
        """Sends an error: as a status, or as an event once the answer has started."""
        report = self.observation.report
        report.outcome = "superseded" if isinstance(error, Superseded) else "failed"
        report.code, self.observation.reason = error.code, error.reason
        if self.started:
            await self.write(error.event(), ends=True)
            return
        own = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in error.headers().items()]
        origin = (b"x-turnkeeper-error", error.origin.encode("ascii"))
        await self.begin(error.status, [_JSON, _NO_SNIFFING, origin, *own], error.body(), ends=True)


class EventStream(StreamingResponse):
    """Server-sent events, which no proxy buffers, for as long as the client stays.

    A HEAD request gets the head alone.
    """

    def __init__(self, events: AsyncIterable[bytes], headers: Mapping[str, str] = {}) -> None:
        headers = {"cache-control": "no-cache", **headers, "x-accel-buffering": "no"}
        super().__init__(events, 200, headers, "text/event-stream")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the response."""
        if scope["method"] != "HEAD":
            await super().__call__(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body"})


async def json_slices(content: Any) -> AsyncIterator[bytes]:
    """A value as JSON in slices of some 64 KB, each encoded in a thread."""
    pieces = _encoded_pieces(content, _LEVELS)
    while slice_ := await asyncio.to_thread(_next_slice, pieces):
        yield slice_


def _next_slice(pieces: Iterator[bytes]) -> bytes:
    slice_ = bytearray()
    for piece in pieces:
        slice_ += piece
        if len(slice_) >= _SLICE:
            break
    return bytes(slice_)


def _encoded_pieces(value: Any, levels: int) -> Iterator[bytes]:
    """A value as JSON: objects and arrays of so many ``levels`` element by element, what is below at once."""
    if levels and isinstance(value, dict | msgspec.Struct):
        fields = value if isinstance(value, dict) else _fields(value)
        for index, (name, each) in enumerate(fields.items()):
            yield (b"," if index else b"{") + msgspec.json.encode(name) + b":"
            yield from _encoded_pieces(each, levels - 1)
        yield b"}" if fields else b"{}"
    elif levels and isinstance(value, list | tuple):
        for index, each in enumerate(value):
            yield b"," if index else b"["
            yield from _encoded_pieces(each, levels - 1)
        yield b"]" if value else b"[]"
    else:
        yield msgspec.json.encode(value)


def _fields(struct: msgspec.Struct) -> Mapping[str, Any]:
    """The fields as the encoder writes them."""
    values = {field.encode_name: getattr(struct, field.name) for field in msgspec.structs.fields(struct)}
    return {name: value for name, value in values.items() if value is not msgspec.UNSET}
