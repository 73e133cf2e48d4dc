"""A request's body, read whole and no further than the limit."""

import asyncio
import contextlib
import zlib
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import parse_qsl

from proxy.errors import RequestError, TooLarge, UnsupportedEncoding
from proxy.http.disconnect import ClientDisconnected

# zlib's own names for "gzip" and "zlib or gzip, as the header says" (RFC 9110 calls zlib's format deflate).
_WINDOWS = {"gzip": 31, "x-gzip": 31, "deflate": 47}
_LINGER = 2.0
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_MOST_PARAMETERS = 100


async def read_body(receive: Receive, headers: Mapping[str, str], limit: int) -> bytes:
    """The body, unpacked where it is compressed.

    Raises TooLarge for more than ``most`` bytes, packed or unpacked, UnsupportedEncoding for a compression
    that is not gzip or deflate, and ClientGone where the client leaves before it has said everything.
    """
    if int(headers.get("content-length", "0")) > limit:
        if "expect" not in headers:
            await _let_go(receive)
        raise _too_large(limit)
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body"):
        return _unpacked(message.get("body", b""), headers, limit)
    return _unpacked(await _collect(message, receive, limit), headers, limit)


async def _collect(message: MutableMapping[str, Any], receive: Receive, most: int) -> bytes:
    body = bytearray()
    while message["type"] == "http.request":
        body += message.get("body", b"")
        if len(body) > most:
            if message.get("more_body"):
                await _let_go(receive)
            raise _too_large(most)
        if not message.get("more_body"):
            return bytes(body)
        message = await receive()
    raise ClientDisconnected


async def _let_go(receive: Receive) -> None:
    """Reads on for a while, keeping nothing."""
    # Many clients read no answer before they have said everything, and lose it when we close on them first.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LINGER):
            while (await receive()).get("more_body"):
                pass


def _unpacked(body: bytes, headers: Mapping[str, str], most: int) -> bytes:
    if len(body) > most:
        raise _too_large(most)
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding == "identity":
        return body
    if encoding not in _WINDOWS:
        raise UnsupportedEncoding(f"'{encoding[:40]}' is not understood; send gzip, deflate or identity.")
    return _inflated(body, _WINDOWS[encoding], most)


def _inflated(body: bytes, window: int, most: int) -> bytes:
    unpacker = zlib.decompressobj(window)
    try:
        unpacked = unpacker.decompress(body, most + 1)
    except zlib.error as error:
        raise RequestError(f"The body is not what its Content-Encoding says: {error}.") from None
    if len(unpacked) > most:
        raise _too_large(most)
    if not unpacker.eof:
        raise RequestError("The compressed body ends too early.")
    return unpacked


def _too_large(most: int) -> TooLarge:
    return TooLarge(f"The body has more than {most} bytes; 'listen.max_body' sets the limit.")


def parse_query(raw: bytes) -> dict[str, str]:
    """The parameters, the first of each name. Raises RequestError where there are more than 100."""
    if not raw:
        return {}
    try:
        pairs = parse_qsl(_query_text(raw), max_num_fields=_MOST_PARAMETERS)
    except ValueError:
        raise RequestError(f"The query has more than {_MOST_PARAMETERS} parameters.") from None
    return dict(reversed(pairs))


def _query_text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")
