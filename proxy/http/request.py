"""One request as it comes over HTTP, with its body and query, read within their limits."""

import asyncio
import contextlib
import re
import zlib
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import parse_qsl

import msgspec
from starlette.types import Message, Receive, Scope

from proxy.errors import RequestError, TooLarge, UnsupportedEncoding
from proxy.http.reply import Client, Reply

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
# zlib's own names for "gzip" and "zlib or gzip, as the header says" (RFC 9110 calls zlib's format deflate).
_WINDOWS = {"gzip": 31, "x-gzip": 31, "deflate": 47}
_LINGER = 2.0
_MOST_PARAMETERS = 100
# In bytes outside of strings. A parser takes tens of milliseconds for them, and blocks the event loop.
_MAX_STRUCTURE: Final = 500_000
SMALL_BODY: Final = 65_536
"""A body of at most this size, in bytes, is not measured."""
_SLICE: Final = 65_536
# From this size on, in bytes, pieces are joined in a thread: the interpreter releases its lock meanwhile.
_LARGE: Final = 1_048_576
_ESCAPE: Final = re.compile(rb"\\.", re.DOTALL)


class Request(msgspec.Struct, eq=False):
    """One request, and the ``reply`` to it. The names of ``headers`` are in lower case.

    ``body`` are the bytes of the body that have arrived and were not received yet; ``is_whole`` is whether
    the body ends with them. ``task`` answers the request. ``awaits_continue`` is whether the client waits for
    ``100 Continue`` before it sends the body (RFC 9110, 10.1.1).
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
        """The request as an ASGI scope."""
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
        """Waits for the next part of the body, or the disconnect; returns it as an ASGI message."""
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


class ClientDisconnected(Exception):
    """Raised where the client has closed its connection, and can no longer be answered."""


class BodyLimit(NamedTuple):
    """Limits of a JSON body in bytes: ``size``, as ``setting`` says, and ``structure`` outside of strings."""

    size: int
    structure: int = _MAX_STRUCTURE
    setting: str | None = "listen.max_body"

    def error(self) -> TooLarge:
        """The error for a larger body."""
        source = f"; '{self.setting}' sets the limit." if self.setting else ", which is the limit here."
        return TooLarge(f"The body has more than {self.size} bytes{source}")

    def structure_error(self) -> TooLarge:
        """The error for a body with more outside of its texts."""
        return TooLarge(
            f"The body has more than {self.structure} bytes outside of its texts: brackets, commas, quotation"
            " marks, numbers, escapes. Send fewer messages, parts or fields."
        )


def structure_size(data: bytes) -> int:
    """The number of bytes of JSON outside of its strings, plus one for each escape within them."""
    structure = _Structure()
    structure.feed(data)
    return structure.size


async def read_body(receive: Receive, headers: Mapping[str, str], limit: BodyLimit) -> bytes:
    """Reads the body, and decompresses it.

    Raises TooLarge beyond the limit, compressed or not, UnsupportedEncoding for a compression other than gzip
    and deflate, RequestError for damaged data, and ClientDisconnected where the client hangs up before the
    body's end.
    """
    if int(headers.get("content-length", "0")) > limit.size:
        if "expect" not in headers:
            await _discard(receive)
        raise limit.error()
    message = await receive()
    body: bytes = message.get("body", b"")
    encoding = headers.get("content-encoding")
    if message.get("more_body") or len(body) > SMALL_BODY:
        body = await _read_large(receive, message, limit, is_json=encoding is None)
    elif message["type"] != "http.request":
        raise ClientDisconnected
    if len(body) > limit.size:
        raise limit.error()
    if encoding is None:
        return body
    # In a thread, since zlib would block the event loop.
    return await asyncio.to_thread(_decompress, body, encoding, limit)


def parse_query(raw: bytes) -> dict[str, str]:
    """Parses a query string; a name's first value counts. Raises RequestError for too many parameters."""
    try:
        text = raw.decode("utf-8", "surrogatepass")  # an id with half a character is refused later
    except UnicodeDecodeError:
        text = raw.decode("latin-1")
    try:
        pairs = parse_qsl(text, max_num_fields=_MOST_PARAMETERS)
    except ValueError:
        raise RequestError(f"The query has more than {_MOST_PARAMETERS} parameters.") from None
    return dict(reversed(pairs))


async def _read_large(receive: Receive, message: Message, limit: BodyLimit, *, is_json: bool) -> bytes:
    """Reads the body that begins with ``message``, and measures it meanwhile; raises as ``read_body``."""
    pieces, buffer, size, structure = list[bytes](), bytearray(), 0, _Structure()
    while message["type"] == "http.request":
        piece = message.get("body", b"")
        size += len(piece)
        buffer += piece
        if len(buffer) >= _SLICE or not message.get("more_body"):
            pieces.append(bytes(buffer))
            buffer.clear()
        if is_json:
            structure.feed(piece)
        exceeded = size > limit.size or structure.size > limit.structure
        if exceeded and message.get("more_body"):
            await _discard(receive)
        if structure.size > limit.structure:
            raise limit.structure_error()
        if size > limit.size:
            raise limit.error()
        if not message.get("more_body"):
            return b"".join(pieces) if size < _LARGE else await asyncio.to_thread(b"".join, pieces)
        message = await receive()
    raise ClientDisconnected


async def _discard(receive: Receive) -> None:
    # Many clients read the answer only when they have sent all, and lose it if the connection closes before.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LINGER):
            while (await receive()).get("more_body"):
                pass


class _Structure:
    """Measures JSON as it arrives: ``size`` counts the bytes outside of strings, and the escapes in them."""

    def __init__(self) -> None:
        self.size = 0
        self._in_string = 0
        self._escape = b""

    def feed(self, data: bytes) -> None:
        """Measures the next bytes."""
        for start in range(0, len(data), _SLICE):
            piece = self._escape + data[start : start + _SLICE]
            if b"\\" in piece:
                piece, escapes = _ESCAPE.subn(b"", piece)
                self.size += escapes
                self._escape = b"\\" if piece.endswith(b"\\") else b""
                piece = piece.removesuffix(b"\\")
            parts = piece.split(b'"')
            quotes = len(parts) - 1
            self.size += quotes + sum(map(len, parts[self._in_string :: 2]))
            self._in_string = (self._in_string + quotes) % 2


def _decompress(body: bytes, encoding: str, limit: BodyLimit) -> bytes:
    encoding = encoding.strip().lower()
    if encoding == "identity":
        data = body
    elif encoding not in _WINDOWS:
        raise UnsupportedEncoding(f"'{encoding[:40]}' is not understood; send gzip, deflate or identity.")
    else:
        decompressor = zlib.decompressobj(_WINDOWS[encoding])
        try:
            data = decompressor.decompress(body, limit.size + 1)
        except zlib.error as error:
            raise RequestError(f"The body does not match its Content-Encoding: {error}.") from None
        if len(data) > limit.size:
            raise limit.error()
        if not decompressor.eof:
            raise RequestError("The compressed body ends too early.")
    if structure_size(data) > limit.structure:
        raise limit.structure_error()
    return data
