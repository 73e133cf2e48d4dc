"""The answer to one request: a status, then bytes of the body, then the end.

A long value is sent as slices of JSON, since encoding all at once would block the event loop.
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
"""The format of a chunk of a body, from its length and its bytes (RFC 9112, 7.1)."""
CLOSE: Final = (b"connection", b"close")
"""The header of an answer after which the connection is closed."""
_JSON: Final = (b"content-type", b"application/json")
_NO_SNIFFING: Final = (b"x-content-type-options", b"nosniff")
# The bytes that a header may contain (RFC 9110, 5.5).
_VISIBLE: Final = bytes([9, *range(32, 127), *range(128, 256)])
_LINE: Final = b"%b: %b".__mod__
_NO_BODY: Final = frozenset({204, 304})
_CHUNKED: Final = (b"transfer-encoding", b"chunked")
# In bytes: copying more than this costs as much as a second write.
_JOINED: Final = 64 << 10

_SLICE: Final = 64_000
# A user's export is an object of arrays of sessions, each an object of arrays of messages. An explanation has
# the same depth.
_LEVELS: Final = 4


class _Nowhere(asyncio.Transport):
    """A transport that drops all bytes."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Drops the bytes."""


class Client:
    """The connection to a client, as a reply uses it; this one drops all bytes.

    ``write_paused`` is whether the client has stopped reading. ``server_state`` has the headers of all
    answers.
    """

    def __init__(self) -> None:
        self.transport: asyncio.Transport = _Nowhere()
        self.write_paused = False
        self.server_state: ServerState = SimpleNamespace(default_headers=())  # type: ignore[assignment]

    async def drain(self) -> None:
        """Returns once the client reads, or has disconnected."""

    def resume_reading(self) -> None:
        """Resumes reading from the client, if it was paused; a paused connection notices no disconnect."""

    def answered(self) -> None:
        """Continues after an answer that is complete."""


def _ignore(data: bytes) -> None:
    """Records nothing, for replies that are no answers of a model."""


class Reply(msgspec.Struct, eq=False):
    """An answer, which takes headers until it starts; ``observation`` is set before that.

    While it ``is_writable``, the client reads, and a CHUNK may be written to its transport directly. ``size``
    counts the other bytes of the body, and ``note_sent`` records them. ``watcher`` is the task of a request
    that has arrived whole, and is cancelled when the client disconnects. ``may_have_left`` is whether the
    client has ended its side of the connection. ``keep_alive`` is whether the connection stays open after the
    answer, ``takes_chunks`` whether the client speaks HTTP/1.1, ``has_body`` whether the answer has a body,
    and ``has_end`` whether the end of the body is marked. ``sent_ahead`` bytes of the status line were sent
    before the rest, as probes.
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
        """Adds a header to the answer, be it a success or an error; ``name`` is in lower case."""
        self.headers.append((name.encode("latin-1"), value.encode("latin-1")))

    def add_degraded(self, name: str) -> None:
        """Reports a part of the turn that was left out, also in a header of the answer."""
        self.observation.report.degraded.append(name)
        self.add_header("x-turnkeeper-degraded", name)

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Sends an ASGI message of another application; this reply's headers are added."""
        if message["type"] == "http.response.start":
            await self.begin(message["status"], [(name.lower(), value) for name, value in message["headers"]])
        else:
            await self.write(message.get("body", b""), ends=not message.get("more_body", False))

    async def begin(
        self, status: int, headers: Sequence[Header], data: bytes = b"", *, ends: bool = False
    ) -> None:
        """Sends status, headers and the first bytes of the body in one write; ``ends`` if these are all.

        Headers that were added before replace ``headers`` of the same name. Raises RuntimeError for a header
        with a character that HTTP forbids.
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
        """Sends bytes of the body, once the client reads; ``ends`` if they are the last."""
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
        """Ends the answer with an error: as a status, or as an event once the answer has started."""
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
    """A response of server-sent events, with headers that keep proxies from buffering it.

    It lasts until the client hangs up. A HEAD request gets the head alone.
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
    """Yields a value as JSON in slices of some 64 KB, each encoded in a thread."""
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
    """Yields a value as JSON: ``levels`` of objects and arrays element by element, deeper ones whole."""
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
    """The fields of a struct that the encoder writes, by their encoded names."""
    values = {field.encode_name: getattr(struct, field.name) for field in msgspec.structs.fields(struct)}
    return {name: value for name, value in values.items() if value is not msgspec.UNSET}
