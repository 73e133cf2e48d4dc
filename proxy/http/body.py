"""A request's body and query, read within their limits."""

import asyncio
import contextlib
import zlib
from collections.abc import Mapping
from urllib.parse import parse_qsl

from starlette.types import Receive

from proxy.errors import RequestError, TooLarge, UnsupportedEncoding
from proxy.http.disconnect import ClientDisconnected

# zlib's own names for "gzip" and "zlib or gzip, as the header says" (RFC 9110 calls zlib's format deflate).
_WINDOWS = {"gzip": 31, "x-gzip": 31, "deflate": 47}
_LINGER = 2.0
_MOST_PARAMETERS = 100


async def read_body(receive: Receive, headers: Mapping[str, str], limit: int) -> bytes:
    """Reads the body, and decompresses it.

    Raises TooLarge for more than ``limit`` bytes, compressed or not, UnsupportedEncoding for a compression
    that is not gzip or deflate, and ClientDisconnected where the client leaves before the body's end.
    """
    if int(headers.get("content-length", "0")) > limit:
        if "expect" not in headers:
            await _discard(receive)
        raise _too_large(limit)
    message = await receive()
    body: bytes = message.get("body", b"")
    if message.get("more_body"):
        buffer = bytearray(body)
        while message.get("more_body"):
            if len(buffer) > limit:
                await _discard(receive)
                raise _too_large(limit)
            message = await receive()
            buffer += message.get("body", b"")
        body = bytes(buffer)
    if message["type"] != "http.request":
        raise ClientDisconnected
    if len(body) > limit:
        raise _too_large(limit)
    encoding = headers.get("content-encoding")
    return body if encoding is None else _decompress(body, encoding, limit)


def parse_query(raw: bytes) -> dict[str, str]:
    """Parses a query string; a name's first value counts. Raises RequestError for too many parameters."""
    if not raw:
        return {}
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = raw.decode("latin-1")
    try:
        pairs = parse_qsl(text, max_num_fields=_MOST_PARAMETERS)
    except ValueError:
        raise RequestError(f"The query has more than {_MOST_PARAMETERS} parameters.") from None
    return dict(reversed(pairs))


async def _discard(receive: Receive) -> None:
    # Many clients read no answer before they have sent everything, and lose it when the connection closes.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LINGER):
            while (await receive()).get("more_body"):
                pass


def _decompress(body: bytes, encoding: str, limit: int) -> bytes:
    encoding = encoding.strip().lower()
    if encoding == "identity":
        return body
    if encoding not in _WINDOWS:
        raise UnsupportedEncoding(f"'{encoding[:40]}' is not understood; send gzip, deflate or identity.")
    decompressor = zlib.decompressobj(_WINDOWS[encoding])
    try:
        data = decompressor.decompress(body, limit + 1)
    except zlib.error as error:
        raise RequestError(f"The body is not what its Content-Encoding says: {error}.") from None
    if len(data) > limit:
        raise _too_large(limit)
    if not decompressor.eof:
        raise RequestError("The compressed body ends too early.")
    return data


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"The body has more than {limit} bytes; 'listen.max_body' sets the limit.")
