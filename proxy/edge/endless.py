"""An answer that does not end by itself."""

from collections.abc import AsyncIterable, Mapping

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send


class Endless(StreamingResponse):
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
