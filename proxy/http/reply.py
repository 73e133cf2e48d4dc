"""What one client gets: a status once, then bytes, then the end."""

import time
from collections.abc import AsyncIterable, Callable, Mapping, MutableMapping, Sequence
from typing import Any, Final, Protocol

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from proxy.errors import Superseded, TurnkeeperError
from proxy.observe.observation import Observation

Header = tuple[bytes, bytes]
OUTLET: Final = "turnkeeper.outlet"
"""Where in a scope's extensions a server says how its client is reached at once."""
_JSON = (b"content-type", b"application/json")
_DEGRADED = "x-turnkeeper-degraded"


class Outlet(Protocol):
    """A client who can be reached at once, while he reads."""

    @property
    def is_writable(self) -> bool:
        """Whether nothing that is pushed has to wait."""
        ...

    def write(self, data: bytes) -> None:
        """Bytes of the body, on their way when this returns; only while it ``flows``."""
        ...

    def on_disconnect(self, leave: Callable[[], None]) -> Callable[[], None]:
        """Calls ``leave`` when the client leaves, once the request is there; what is returned ends that."""
        ...


class Reply:
    """An ASGI response whose headers may be added to until it starts; ``watch`` notes what becomes of it.

    ``outlet`` is a shorter way for bytes of the body, where the server has one.
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
        self._send = send
        self._headers = list(headers)
        self._tape: list[bytes] | None = None
        self.started = False
        self.ending = False

    def add_header(self, name: str, value: str) -> None:
        """A header for the answer, whichever it will be. The value is visible ASCII."""
        self._headers.append((name.encode("latin-1"), value.encode("latin-1")))

    def add_degraded(self, name: str) -> None:
        """Something was left out of the turn; the answer names it."""
        self.observation.degraded.append(name)
        self.add_header(_DEGRADED, name)

    def record(self) -> None:
        """From now on ``watch.sent`` has everything that goes to the client."""
        self._tape = self.observation.chunks = []

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """An ASGI message of an application behind us, with our headers added to its own."""
        if message["type"] == "http.response.start":
            await self.start(message["status"], list(message["headers"]))
        else:
            await self._send(message)

    async def start(self, status: int, headers: Sequence[Header]) -> None:
        """The status and the headers; nothing can be a status any more. What others say gives way to ours."""
        self.started = True
        self.observation.status = status
        self.add_header("server-timing", self.observation.timer.server_timing())
        ours = {name for name, _ in self._headers}
        theirs = [header for header in headers if header[0] not in ours]
        message = {"type": "http.response.start", "status": status, "headers": [*self._headers, *theirs]}
        await self._send(message)

    async def write(self, data: bytes) -> None:
        """Bytes of the body, on their way at once."""
        self.note_sent(data)
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    def note_sent(self, data: bytes) -> None:
        """Notes bytes that went out."""
        if self._tape is not None and data:
            self._tape.append(data)
            self.observation.chunk_times.append(time.perf_counter())

    async def end(self, data: bytes = b"") -> None:
        """The last bytes of the body."""
        self.ending = True
        self.note_sent(data)
        await self._send({"type": "http.response.body", "body": data})

    async def send_whole(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        """An answer in one piece."""
        self.ending = True
        await self.start(status, [*headers, (b"content-length", b"%d" % len(body))])
        await self.end(body)

    async def fail(self, error: TurnkeeperError) -> None:
        """The error as a status; as an event once the answer has started."""
        self.observation.outcome = "superseded" if isinstance(error, Superseded) else "failed"
        self.observation.code, self.observation.failure, self.observation.reason = (
            error.code,
            error.message,
            error.reason,
        )
        if self.started:
            await self.end(error.event())
            return
        own = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in error.headers().items()]
        await self.send_whole(error.status, [_JSON, *own], error.body())


class EventStream(StreamingResponse):
    """Server-sent events for as long as the client stays; who asks for the head alone gets no more."""

    def __init__(self, events: AsyncIterable[bytes], headers: Mapping[str, str]) -> None:
        super().__init__(events, 200, headers, "text/event-stream")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        if scope["method"] != "HEAD":
            await super().__call__(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body"})
