"""An answer that does not say of itself that it is a stream is told for one by how it begins."""

from collections.abc import Callable

from proxy.upstream import Headers, Response, is_stream

_MARK = b"\xef\xbb\xbf"
_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")
_MOST = 65_536
_STREAM = (b"content-type", b"text/event-stream")


async def labelled(response: Response) -> Response:
    """The response, under the type of a stream if it begins as only a stream does."""
    if is_stream(response.headers):
        return response
    begun = b""
    while (streams := begins_stream(begun)) is None and len(begun) < _MOST:
        data = await response.read()
        if not data:
            break
        begun += data
    return _Begun(response, begun, streams=bool(streams))


def begins_stream(begun: bytes) -> bool | None:
    """Whether these are the first bytes of server-sent events; ``None`` while they might yet be."""
    if _MARK.startswith(begun):
        return None
    line = begun.removeprefix(_MARK).lstrip(b"\r\n")
    if line.startswith(_FIELDS):
        return True
    return None if any(field.startswith(line) for field in _FIELDS) else False


class _Begun:
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
