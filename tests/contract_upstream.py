"""The words of the contract suite: what every test towards the model says."""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

import trustme

from proxy.answer.response import Response
from proxy.upstream.client import HttpUpstream, Upstream
from tests.peers.http_peer import CHUNKED, LAST, Talk, chunk, sized

Make = Callable[..., Any]
DRIVERS = (HttpUpstream,)
BODY = b'{"model":"m"}'
JSON = [(b"content-type", b"application/json"), (b"authorization", b"Bearer s3cret")]


def now() -> float:
    return asyncio.get_running_loop().time()


async def ask(
    upstream: Upstream, path: str = "/chat/completions", *, body: bytes = BODY, within: float = 5
) -> Response:
    return await upstream.open("POST", path, JSON, body, due=now() + within)


async def rest(response: Response) -> bytes:
    pieces = []
    while data := await response.read():
        pieces.append(data)
    response.close()
    return b"".join(pieces)


async def whole(upstream: Upstream, path: str = "/chat/completions", within: float = 5) -> bytes:
    return await rest(await ask(upstream, path, within=within))


async def path_says(talk: Talk) -> None:
    while True:
        path = (await talk.request()).line.split()[1]
        if path.endswith(b"/body"):
            talk.send(CHUNKED + chunk(b"hi"))
        elif path.endswith(b"/whole"):
            talk.send(sized(b"hi"))
        elif path.endswith(b"/slow"):
            await talk.send_slowly(CHUNKED, *[chunk(b"x")] * 5, LAST)


def server_context(authority: trustme.CA, *names: str, **options: Any) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["h2", "http/1.1"])
    authority.issue_cert(*names, **options).configure_cert(context)
    return context


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context
