"""One request as it comes over HTTP."""

import asyncio

import msgspec
from starlette.types import Message, Scope

from proxy.http.reply import Client, Reply

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Request(msgspec.Struct, eq=False):
    """One request, and the ``reply`` to it. The names of ``headers`` are in lower case.

    ``body`` is what has come of the body and was not received yet, and ``is_whole`` whether that was the last
    of it. ``task`` answers the request. ``awaits_continue`` is whether the client sends the body once it is
    told to (RFC 9110, 10.1.1).
    """

    client: Client
    reply: Reply
    method: str
    path: str
    raw_path: bytes
    query_string: bytes
    headers: dict[str, str]
    http_version: str = "1.1"
    awaits_continue: bool = False
    body: bytes | bytearray = b""
    is_whole: bool = False
    has_news: bool = False
    arrival: asyncio.Event | None = None
    task: asyncio.Task[None] | None = None

    @property
    def scope(self) -> Scope:
        """The request as ASGI has it."""
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": self.http_version,
            "method": self.method,
            "scheme": "http",
            "path": self.path,
            "raw_path": self.raw_path,
            "query_string": self.query_string,
            "root_path": "",
            "headers": [
                (name.encode("latin-1"), value.encode("latin-1")) for name, value in self.headers.items()
            ],
            "client": None,
            "server": None,
        }

    async def receive(self) -> Message:
        """The next part of the body as ASGI has it, or the client's disconnect."""
        reply, client = self.reply, self.client
        if self.awaits_continue and not (reply.started or self.body or client.transport.is_closing()):
            client.transport.write(_CONTINUE)
        self.awaits_continue = False
        while not (self.has_news or reply.disconnected or reply.is_complete):
            client.resume_reading()
            self.arrival = asyncio.Event()
            await self.arrival.wait()
        if reply.disconnected or reply.is_complete:
            return {"type": "http.disconnect"}
        body, self.body, self.has_news = bytes(self.body), b"", False
        client.resume_reading()
        return {"type": "http.request", "body": body, "more_body": not self.is_whole}
