"""One attempt at one upstream, and which errors are retried."""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Final, NoReturn

import msgspec

from proxy.answer.response import Headers, Response, detect_stream, is_stream, read_all
from proxy.answer.sse import Framing
from proxy.circuit import CircuitBreaker, retry_after
from proxy.errors import TooManyOpenFiles, UpstreamError, UpstreamRedirected, UpstreamRefused, UpstreamTimeout
from proxy.upstream.body import UpstreamRequest
from proxy.upstream.opening import HoldBack, completion_error
from proxy.upstream.target import Target

_PATH: Final = "/chat/completions"
_REDIRECTION, _ERROR, _SERVER_ERROR = 300, 400, 500
_LARGEST_ANSWER = 64_000_000
_THREAD_SIZE = 250_000
_LARGEST_ERROR = 1_000_000
_CLIENT_HEADERS = frozenset((b"content-type", b"retry-after", b"retry-after-ms", b"x-should-retry"))
_CLIENT_PREFIXES = (b"x-ratelimit-", b"openai-")
_TRANSIENT = frozenset({408, 409, 425, 429})
# About this upstream's keys, quota and models; another one may take the request.
_LOCAL = frozenset({401, 402, 403, 404, 405, 410})

WrapResponse = Callable[[Response, float], Response]
"""Puts another response in the place of one; the time is when it must have begun to answer."""


class Deadlines(msgspec.Struct, frozen=True):
    """When an answer's first delta, its first content and its end must be there, in loop time."""

    first: float
    content: float | None
    total: float


class UpstreamAnswer(msgspec.Struct, eq=False):
    """An answer that has begun: ``data`` is all of it so far, whole events where it is a stream."""

    upstream: str
    model: str
    breaker: CircuitBreaker
    response: Response
    data: bytes
    framing: Framing | None


async def attempt(
    target: Target,
    request: UpstreamRequest,
    breaker: CircuitBreaker,
    deadlines: Deadlines,
    wrap: WrapResponse | None = None,
) -> UpstreamAnswer:
    """Return the answer once it has begun; one that is no stream, once it is whole.

    Raises UpstreamError where there is none; an error or a login page under the status 200 is none.
    """
    response = await target.upstream.open("POST", _PATH, request.headers, request.body, due=deadlines.first)
    framing = None
    try:
        streams = response.status < _REDIRECTION and is_stream(response.headers)
        if not streams:
            response = await _examine(response)
            streams = is_stream(response.headers)
        if wrap is not None:
            response = wrap(response, deadlines.first)
        if streams:
            framing = Framing()
            data = await _hold_back(response, framing, deadlines)
        else:
            data = await _read_completion(response)
    except BaseException:
        response.close()
        raise
    response.due(deadlines.total)
    if not breaker.is_healthy:
        breaker.record_answer()
    return UpstreamAnswer(target.name, request.model, breaker, response, data, framing)


async def open_response(target: Target, request: UpstreamRequest, due: float) -> Response:
    """The response whose head is there by ``due``; raises UpstreamError where its status is an error.

    A stream has the type of one, whatever its upstream calls it.
    """
    response = await target.upstream.open("POST", _PATH, request.headers, request.body, due=due)
    try:
        return await _examine(response)
    except BaseException:
        response.close()
        raise


async def _examine(response: Response) -> Response:
    if response.status >= _REDIRECTION:
        await _refuse(response)
    return await detect_stream(response)


async def _refuse(response: Response) -> NoReturn:
    if response.status < _ERROR:
        raise UpstreamRedirected(
            f"The upstream answered {response.status}, a redirection; correct its base_url."
        )
    headers = client_headers(response.headers)
    shown = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
    shown.pop("content-type", None)
    raise UpstreamRefused(response.status, await read_all(response, _LARGEST_ERROR), shown)


async def _hold_back(response: Response, framing: Framing, deadlines: Deadlines) -> bytes:
    hold_back, size = HoldBack(framing, deadlines.content is not None), 0
    while data := await response.read():
        size += len(data)
        large = size > _THREAD_SIZE
        opening = await asyncio.to_thread(hold_back.feed, data) if large else hold_back.feed(data)
        if opening is not None:
            return opening
        if hold_back.thinking and deadlines.content is not None:
            response.due(deadlines.content)
    return hold_back.close()


async def _read_completion(response: Response) -> bytes:
    body = await read_all(response, _LARGEST_ANSWER)
    large = len(body) > _THREAD_SIZE
    check = partial(completion_error, response.status, response.headers, body)
    if error := await asyncio.to_thread(check) if large else check():
        raise error
    return body


def client_headers(headers: Headers) -> list[tuple[bytes, bytes]]:
    """The upstream's headers that are passed on to the client."""
    passed = []
    for header in headers:
        if header[0] in _CLIENT_HEADERS or header[0].startswith(_CLIENT_PREFIXES):
            passed.append(header)  # noqa: PERF401 - each turn: a comprehension is one more frame
    return passed


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What follows from a failure: ``retry`` the same upstream, or ``fall_back`` to another one.

    ``delay`` is how many seconds the same upstream asks to be left alone; ``last``: it is retried behind all
    others. ``unhealthy``: the failure counts against the upstream's health.
    """

    retry: bool = False
    fall_back: bool = True
    delay: float = 0.0
    last: bool = False
    unhealthy: bool = False


def retry_policy(error: UpstreamError) -> RetryPolicy:
    """What follows from a failure before the first delta."""
    if isinstance(error, UpstreamRefused):
        if error.status in _LOCAL:
            return RetryPolicy()
        broken = error.status >= _SERVER_ERROR
        if not (broken or error.status in _TRANSIENT):
            return RetryPolicy(fall_back=False)
        headers = error.headers()
        again = headers.get("x-should-retry") != "false"
        return RetryPolicy(retry=again, delay=retry_after(headers, time.time()), unhealthy=broken)
    if isinstance(error, UpstreamRedirected):
        return RetryPolicy()
    if isinstance(error, TooManyOpenFiles):
        return RetryPolicy(retry=True)
    return RetryPolicy(retry=True, last=isinstance(error, UpstreamTimeout), unhealthy=True)
