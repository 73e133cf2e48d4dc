"""Answers for HTTP/1.0, which knows no chunks: they end with the connection (RFC 9112, 6.3)."""

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class Unframed:
    """A cycle's ``send``, told before each message how long the body is that it shall expect."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._send = cycle.send
        self._measured = False

    async def __call__(self, message: ASGISendEvent) -> None:
        """One message of the answer, its body as it is."""
        if message["type"] == "http.response.start":
            self._measured = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
            self._cycle.chunked_encoding = None if self._measured else False
        elif message["type"] == "http.response.body" and not self._measured:
            self._cycle.expected_content_length = len(message.get("body", b""))
        await self._send(message)


def unframe(cycle: RequestResponseCycle) -> None:
    """From now on the cycle sends no chunks."""
    cycle.send = Unframed(cycle)  # type: ignore[method-assign]
