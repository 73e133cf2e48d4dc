"""An answer that does not say of itself that it is a stream is told for one by how it begins."""

from collections.abc import Callable, Sequence
from typing import Protocol

from proxy.errors import UpstreamBroken

Headers = Sequence[tuple[bytes, bytes]]
_BOM = b"\xef\xbb\xbf"
_SSE_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")
_MOST_PEEKED = 65_536
_STREAM = (b"content-type", b"text/event-stream")


class Response(Protocol):
    """An answer whose head is there."""

    status: int
    headers: Headers

    async def read(self) -> bytes:
        """All that has arrived since the last read, decoded, b"" at the end; waits when there is nothing.

        A read that is cancelled loses nothing. Raises UpstreamBroken and UpstreamTimeout.
        """

    def offer(self, take: Callable[[bytes], bool]) -> None:
        """From now on `take` may be asked first whether it takes what arrives; read() has what it does not.

        It may be asked at any time but while its owner runs, and may raise UpstreamBroken.
        """

    def due(self, at: float) -> None:
        """From now on read() raises UpstreamTimeout once loop.time() passes `at`."""

    def close(self) -> None:
        """Nothing more is wanted: an unfinished answer's connection is aborted at once."""


async def read_all(response: Response, most: int) -> bytes:
    """A whole body; raises UpstreamBroken where it has more than ``most`` bytes."""
    parts, size = [], 0
    while data := await response.read():
        parts.append(data)
        size += len(data)
        if size > most:
            raise UpstreamBroken(f"The upstream's answer has more than {most} bytes.")
    return b"".join(parts)


def is_stream(headers: Headers) -> bool:
    """Whether an answer is made of server-sent events."""
    return any(name == b"content-type" and b"text/event-stream" in value.lower() for name, value in headers)


async def detect_stream(response: Response) -> Response:
    """The response, under the type of a stream if it begins as only a stream does."""
    if is_stream(response.headers):
        return response
    begun = b""
    while (streams := begins_stream(begun)) is None and len(begun) < _MOST_PEEKED:
        data = await response.read()
        if not data:
            break
        begun += data
    return _PeekedResponse(response, begun, streams=bool(streams))


def begins_stream(begun: bytes) -> bool | None:
    """Whether these are the first bytes of server-sent events; ``None`` while they might yet be."""
    if _BOM.startswith(begun):
        return None
    line = begun.removeprefix(_BOM).lstrip(b"\r\n")
    if line.startswith(_SSE_FIELDS):
        return True
    return None if any(field.startswith(line) for field in _SSE_FIELDS) else False


class _PeekedResponse:
    """A response of which the first bytes have been looked at."""

    def __init__(self, response: Response, begun: bytes, *, streams: bool) -> None:
        self.status: int = response.status
        self.headers: Headers = _as_stream(response.headers) if streams else response.headers
        self._response = response
        self._begun = begun

    async def read(self) -> bytes:
        """As a response's; what was looked at comes first."""
        begun, self._begun = self._begun, b""
        return begun or await self._response.read()

    def offer(self, take: Callable[[bytes], bool]) -> None:
        """As a response's, once its first bytes have been read."""
        self._response.offer(take)

    def due(self, at: float) -> None:
        """As a response's."""
        self._response.due(at)

    def close(self) -> None:
        """As a response's."""
        self._begun = b""
        self._response.close()


def _as_stream(headers: Headers) -> Headers:
    return [*((name, value) for name, value in headers if name != b"content-type"), _STREAM]
