"""An upstream's response, and whether it is a stream."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from proxy.answer.sse import BOM
from proxy.errors import UpstreamBroken

Headers = Sequence[tuple[bytes, bytes]]
LARGEST_ANSWER: Final = 64_000_000
"""The largest answer, streamed or not, in bytes."""

_SSE_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")
_MOST_PEEKED = 65_536
_STREAM = (b"content-type", b"text/event-stream")


class Response(Protocol):
    """A response whose head has arrived; its body is read as it arrives.

    A class that has to see all bytes inherits `offer`, which does nothing, and `exhausted`, which is false.
    """

    status: int
    headers: Headers

    async def read(self) -> bytes:
        """Returns all decoded bytes since the last read, or waits for some; b"" at the end.

        A cancelled read loses nothing. Raises UpstreamBroken and UpstreamTimeout.
        """

    def offer(self, take: Callable[[bytes], bool]) -> None:  # noqa: ARG002
        """Passes arriving bytes to `take` first; `read` returns those for which it returns false.

        `take` is called by the event loop, at any time or never. It may raise UpstreamBroken.
        """
        return

    @property
    def exhausted(self) -> bool:
        """Whether `read` certainly returns b"" at once."""
        return False

    def due(self, at: float) -> None:
        """Sets the loop time after which `read` raises UpstreamTimeout."""

    def close(self) -> None:
        """Ends the response; the connection of an incomplete one is aborted."""


async def read_all(response: Response, most: int) -> bytes:
    """Reads a whole body; raises UpstreamBroken where it has more than ``most`` bytes."""
    parts, size = [], 0
    while data := await response.read():
        parts.append(data)
        size += len(data)
        if size > most:
            raise UpstreamBroken(f"The upstream's answer has more than {most} bytes.")
    return b"".join(parts)


def is_stream(headers: Headers) -> bool:
    """Whether the content type is that of server-sent events."""
    return b"text/event-stream" in dict(headers).get(b"content-type", b"").lower()


async def detect_stream(response: Response) -> Response:
    """Reads the beginning of a body; returns the response, with a stream's content type if it is one."""
    if is_stream(response.headers):
        return response
    start = b""
    while (streams := _begins_stream(start)) is None and len(start) < _MOST_PEEKED:
        data = await response.read()
        if not data:
            break
        start += data
    return _PeekedResponse(response, start, streams=bool(streams))


def _begins_stream(start: bytes) -> bool | None:
    """Whether these are the first bytes of server-sent events; ``None`` where more bytes must decide."""
    if BOM.startswith(start):
        return None
    line = start.removeprefix(BOM).lstrip(b"\r\n")
    if line.startswith(_SSE_FIELDS):
        return True
    return None if any(field.startswith(line) for field in _SSE_FIELDS) else False


class _PeekedResponse:
    """A response that returns its first bytes once more, which have been read already."""

    def __init__(self, response: Response, start: bytes, *, streams: bool) -> None:
        self.status: int = response.status
        self.headers: Headers = response.headers
        if streams:
            others = [(name, value) for name, value in self.headers if name != b"content-type"]
            self.headers = [*others, _STREAM]
        self._response = response
        self._start = start

    async def read(self) -> bytes:
        start, self._start = self._start, b""
        return start or await self._response.read()

    def offer(self, take: Callable[[bytes], bool]) -> None:
        self._response.offer(take)

    @property
    def exhausted(self) -> bool:
        return not self._start and self._response.exhausted

    def due(self, at: float) -> None:
        self._response.due(at)

    def close(self) -> None:
        self._start = b""
        self._response.close()
