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
from typing import Any, Final, Protocol

import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from proxy.errors import Superseded, TurnkeeperError
from proxy.observe.observation import Observation

Header = tuple[bytes, bytes]
OUTLET: Final = "turnkeeper.outlet"
"""The key of a scope's extensions under which the server hands over its Outlet."""
_JSON: Final = (b"content-type", b"application/json")
# To copy more costs as much as a second write.
_JOINED: Final = 64 << 10
_NO_SNIFFING: Final = (b"x-content-type-options", b"nosniff")

_SLICE: Final = 64_000
# A user's export is an object of arrays of sessions, which are objects of arrays of messages. So is an
# explanation, with steps in the place of sessions.
_LEVELS: Final = 4


class Outlet(Protocol):
    """A short way to the client's socket, beside ASGI."""

    @property
    def is_writable(self) -> bool:
        """Whether bytes can be written at once."""
        ...

    @property
    def may_have_left(self) -> bool:
        """Whether the client has ended its side of the connection, as one does that leaves."""
        ...

    def write(self, data: bytes) -> None:
        """Writes bytes of the body to the socket; only while ``is_writable``."""
        ...

    def cork(self) -> None:
        """Has the head that is sent next wait for its body; nothing else may run meanwhile."""
        ...

    def uncork(self) -> None:
        """Ends that, and writes a head that still waits."""
        ...

    def on_disconnect(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls ``callback`` when the client disconnects; the function that is returned ends that.

        The request must have been received.
        """
        ...


class Reply:
    """An ASGI response that takes headers until it starts; ``observation`` notes its course.

    ``size`` is how many bytes of a body were sent, but for those by the outlet.
    """

    def __init__(
        self,
        send: Send,
        headers: Sequence[Header] = (),
        observation: Observation | None = None,
        outlet: Outlet | None = None,
    ) -> None:
        self.observation = observation or Observation("")
        self.outlet = outlet
        self.started = False
        self.ending = False
        self.size = 0
        self._send = send
        self._headers = list(headers)
        self.note_sent: Callable[[bytes], None] = _ignore
        """Records bytes of an answer that went out, by whichever way."""

    def add_header(self, name: str, value: str) -> None:
        """Adds a header to the answer, whichever it will be; ``value`` is visible ASCII."""
        self._headers.append((name.encode("latin-1"), value.encode("latin-1")))

    def add_degraded(self, name: str) -> None:
        """Names something that was left out of the turn, in the answer's header too."""
        self.observation.degraded.append(name)
        self.add_header("x-turnkeeper-degraded", name)

    def copy_answer(self) -> None:
        """Copies what goes to the client from now on to ``observation.answer``."""
        self.note_sent = self.observation.answer.add

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Sends an ASGI message of another application, with this reply's headers added to its own."""
        if message["type"] == "http.response.start":
            await self.start(message["status"], list(message["headers"]))
        else:
            self.size += len(message.get("body", b""))
            await self._send(message)

    async def start(self, status: int, headers: Sequence[Header]) -> None:
        """Sends the status and the headers; those added before win over ``headers`` of the same name."""
        self.started = True
        self.observation.status = status
        self.add_header("server-timing", self.observation.timer.server_timing())
        added = dict(self._headers)
        for header in headers:
            if header[0] not in added:
                self._headers.append(header)
        await self._send({"type": "http.response.start", "status": status, "headers": self._headers})

    async def begin(self, status: int, headers: Sequence[Header], data: bytes, *, ends: bool = False) -> None:
        """Sends the status, the headers and the first bytes of the body, or all of it, in one piece."""
        outlet = self.outlet if len(data) < _JOINED else None
        if outlet:
            outlet.cork()
        try:
            await self.start(status, headers)
            await (self.end(data) if ends else self.write(data))
        finally:
            if outlet:
                outlet.uncork()

    async def write(self, data: bytes) -> None:
        """Sends bytes of the body."""
        self.size += len(data)
        self.note_sent(data)
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        """Sends the last bytes of the body."""
        self.ending = True
        self.size += len(data)
        self.note_sent(data)
        await self._send({"type": "http.response.body", "body": data})

    async def send_whole(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        """Sends an answer in one piece."""
        self.ending = True
        await self.begin(status, [*headers, (b"content-length", b"%d" % len(body))], body, ends=True)

    async def fail(self, error: TurnkeeperError) -> None:
        """Sends an error: as a status, or as an event once the answer has started."""
        observation = self.observation
        observation.outcome = "superseded" if isinstance(error, Superseded) else "failed"
        observation.code, observation.reason = error.code, error.reason
        if self.started:
            await self.end(error.event())
            return
        own = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in error.headers().items()]
        origin = (b"x-turnkeeper-error", error.origin.encode("ascii"))
        await self.send_whole(error.status, [_JSON, _NO_SNIFFING, origin, *own], error.body())


def _ignore(data: bytes) -> None:
    """What is no answer of a model is not copied."""


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
