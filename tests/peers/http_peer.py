"""A raw loopback server that does what a script says, byte for byte."""

import asyncio
import re
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import cast

_LENGTH = re.compile(rb"content-length: (\d+)")


@dataclass(frozen=True)
class Request:
    """A request as it came."""

    line: bytes
    headers: dict[bytes, bytes]
    body: bytes


class Talk(asyncio.Protocol):
    """One connection as the server sees it."""

    def __init__(self, peer: "Peer") -> None:
        self.peer = peer
        self.received = b""
        self.requests: list[Request] = []
        self.lost = asyncio.Event()
        self.pipe: Callable[[bytes], None] | None = None
        self._more = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.peer.talks.append(self)
        self._task = asyncio.get_running_loop().create_task(self._run(), name="peer")

    def data_received(self, data: bytes) -> None:
        if self.pipe is not None:
            self.pipe(data)
            return
        self.received += data
        self._more.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()
        self._task.cancel()

    async def request(self) -> Request:
        """The next whole request."""
        while (request := self._parse()) is None:
            self._more.clear()
            await self._more.wait()
        self.requests.append(request)
        return request

    def send(self, data: bytes) -> None:
        self.transport.write(data)

    async def send_slowly(self, *pieces: bytes) -> None:
        """Each piece arrives on its own."""
        for piece in pieces:
            self.send(piece)
            await asyncio.sleep(0.001)

    def close(self) -> None:
        self.transport.close()

    def abort(self) -> None:
        self.transport.abort()

    async def _run(self) -> None:
        with suppress(asyncio.CancelledError):
            await self.peer.script(self)

    def _parse(self) -> Request | None:
        head, end, rest = self.received.partition(b"\r\n\r\n")
        match = _LENGTH.search(head)
        length = int(match[1]) if match else 0
        if not end or len(rest) < length:
            return None
        self.received = rest[length:]
        line, *lines = head.split(b"\r\n")
        pairs = ((name, value) for name, _, value in (one.partition(b": ") for one in lines))
        return Request(line, dict(pairs), rest[:length])


Script = Callable[[Talk], Awaitable[None]]


class Peer:
    """The server and all that it saw."""

    def __init__(self, script: Script, scheme: str) -> None:
        self.script = script
        self.scheme = scheme
        self.talks: list[Talk] = []
        self.port = 0

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/v1"

    @property
    def open(self) -> int:
        return sum(not talk.lost.is_set() for talk in self.talks)

    async def all_closed(self, within: float = 5.0) -> None:
        async with asyncio.timeout(within):
            for talk in self.talks:
                await talk.lost.wait()


@asynccontextmanager
async def serve(
    script: Script, *, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[Peer]:
    """A peer that runs `script` on each connection."""
    peer = Peer(script, "https" if tls else "http")
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Talk(peer), host, 0, ssl=tls, backlog=2048)
    peer.port = server.sockets[0].getsockname()[1]
    try:
        yield peer
    finally:
        server.close()
        for talk in peer.talks:
            if not talk.lost.is_set():  # asyncio's transports fail when aborted after their end
                talk.abort()
        await asyncio.sleep(0.01)


def answering(*pieces: bytes, then: str = "wait") -> Script:
    """Every request gets these bytes; then the connection is kept, closed or aborted."""

    async def script(talk: Talk) -> None:
        while True:
            await talk.request()
            await talk.send_slowly(*pieces)
            if then != "wait":
                getattr(talk, then)()

    return script


def sized(body: bytes, *lines: bytes) -> bytes:
    """A 200 with a content-length."""
    more = b"".join(line + b"\r\n" for line in lines)
    return b"HTTP/1.1 200 OK\r\n%bcontent-length: %d\r\n\r\n%b" % (more, len(body), body)


def chunk(body: bytes) -> bytes:
    """One chunk."""
    return b"%x\r\n%b\r\n" % (len(body), body)


CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"


@asynccontextmanager
async def forwarding_proxy() -> AsyncIterator[Peer]:
    """A proxy that tunnels CONNECT to loopback, and answers for anybody else itself."""

    async def script(talk: Talk) -> None:
        request = await talk.request()
        if not request.line.startswith(b"CONNECT"):
            talk.send(sized(b"forwarded"))
            return
        port = int(request.line.split()[1].rpartition(b":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        talk.send(b"HTTP/1.1 200 Connection established\r\nx: y\r\n\r\n")
        talk.pipe = writer.write
        try:
            while data := await reader.read(65536):
                talk.send(data)
        finally:
            writer.transport.abort()

    async with serve(script) as peer:
        yield peer


def black_hole() -> socket.socket:
    """A listening socket whose backlog is full: connecting to it hangs."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    return listener
