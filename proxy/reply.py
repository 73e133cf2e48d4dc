"""What one client gets: a status once, then bytes, then the end."""

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from proxy.clock import Clock
from proxy.errors import TurnkeeperError

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Header = tuple[bytes, bytes]

_JSON = (b"content-type", b"application/json")


class Reply:
    """An ASGI response whose headers may be added to until it starts."""

    def __init__(self, send: Send, headers: Sequence[Header] = ()) -> None:
        self._send = send
        self._headers = list(headers)
        self._clock: Clock | None = None
        self._tape: list[bytes] | None = None
        self.started = False
        self.ending = False

    def add(self, name: str, value: str) -> None:
        """A header for the answer, whichever it will be. The value is visible ASCII."""
        self._headers.append((name.encode("latin-1"), value.encode("latin-1")))

    def timed_by(self, clock: Clock) -> None:
        """The answer will say how long it took to begin."""
        self._clock = clock

    def taped(self) -> list[bytes]:
        """A list to which everything is appended that goes to the client from now on."""
        self._tape = []
        return self._tape

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """An ASGI message of an application behind us, with our headers added to its own."""
        if message["type"] == "http.response.start":
            await self.start(message["status"], list(message["headers"]))
        else:
            await self._send(message)

    async def start(self, status: int, headers: Sequence[Header]) -> None:
        """The status and the headers; nothing can be a status any more."""
        self.started = True
        if self._clock:
            self.add("server-timing", self._clock.report())
        message = {"type": "http.response.start", "status": status, "headers": [*self._headers, *headers]}
        await self._send(message)

    async def write(self, data: bytes) -> None:
        """Bytes of the body, on their way at once."""
        if self._tape is not None:
            self._tape.append(data)
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        """The last bytes of the body."""
        self.ending = True
        if self._tape is not None:
            self._tape.append(data)
        await self._send({"type": "http.response.body", "body": data})

    async def whole(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        """An answer in one piece."""
        self.ending = True
        await self.start(status, [*headers, (b"content-length", b"%d" % len(body))])
        await self.end(body)

    async def fail(self, error: TurnkeeperError) -> None:
        """The error as a status; as an event once the answer has started."""
        if self.started:
            await self.end(error.event())
            return
        own = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in error.headers().items()]
        await self.whole(error.status, [_JSON, *own], error.body())
