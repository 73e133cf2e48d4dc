"""One upstream is asked once."""

import re
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final, NoReturn, Self

import msgspec

from proxy.answer.response import Headers, Response, detect_stream, is_stream, read_all
from proxy.answer.sse import Framing
from proxy.circuit import CircuitBreaker, retry_after
from proxy.errors import NoFilesLeft, UpstreamError, UpstreamRedirected, UpstreamRefused, UpstreamTimeout
from proxy.upstream.opening import HoldBack, completion_error
from proxy.upstream.request import UpstreamRequest
from proxy.upstream.target import Target

_PATH: Final = "/chat/completions"
_REDIRECTION, _ERROR = 300, 400
_LARGEST_ANSWER = 64_000_000
_LARGEST_ERROR = 1_000_000
_PASSED_ON = re.compile(rb"content-type|retry-after(-ms)?|x-should-retry|x-ratelimit-.*|openai-.*")
WrapResponse = Callable[[Response, float], Response]
"""Puts something in the place of a response; the time is when it must have begun to answer."""
_PASSING = frozenset({408, 409, 425, 429})
# Of this upstream's keys, quota and models; another one may see it otherwise.
_ITS_OWN = frozenset({401, 402, 403, 404, 405, 410})
_SERVER_ERRORS = 500


class Deadlines(msgspec.Struct, frozen=True):
    """When an answer's first delta, its first content and its end must be there, in the loop's time."""

    first: float
    content: float | None
    total: float


class UpstreamAnswer(msgspec.Struct, eq=False):
    """An answer that has begun: ``data`` is all of it so far, whole events where it is a stream.

    Leaving it ends it: the upstream's connection is closed if anything is left, and how it went is noted.
    """

    upstream: str
    model: str
    breaker: CircuitBreaker
    response: Response
    data: bytes
    framing: Framing | None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.response.close()
        if kind is None:
            self.breaker.succeeded()
        elif isinstance(error, UpstreamError) and _is_ailing(error):
            self.breaker.failed()


async def attempt(
    target: Target,
    request: UpstreamRequest,
    breaker: CircuitBreaker,
    due: Deadlines,
    wrap: WrapResponse | None = None,
) -> UpstreamAnswer:
    """The answer once it has begun; where no stream is wanted, once it is whole.

    Raises UpstreamError where there is none: for an error under the status 200, too, or a page to log in at.
    """
    response = await open_response(target, request, due.first)
    try:
        if wrap is not None:
            response = wrap(response, due.first)
        framing = Framing() if is_stream(response.headers) else None
        data = await (_whole(response) if framing is None else _opening(response, framing, due))
    except BaseException:
        response.close()
        raise
    response.due(due.total)
    breaker.answered()
    return UpstreamAnswer(target.name, request.model, breaker, response, data, framing)


async def open_response(target: Target, request: UpstreamRequest, due: float) -> Response:
    """The response whose head is there by ``due``; raises UpstreamError where it is no answer.

    A stream is called one, whatever its upstream calls it.
    """
    response = await target.upstream.open("POST", _PATH, request.headers, request.body, due=due)
    try:
        if response.status >= _REDIRECTION:
            await _refuse(response)
        return await detect_stream(response)
    except BaseException:
        response.close()
        raise


async def _refuse(response: Response) -> NoReturn:
    if response.status < _ERROR:
        raise UpstreamRedirected(
            f"The upstream answered {response.status}, a redirection; correct its base_url."
        )
    told = {
        name.decode("latin-1"): value.decode("latin-1") for name, value in client_headers(response.headers)
    }
    told.pop("content-type", None)
    raise UpstreamRefused(response.status, await read_all(response, _LARGEST_ERROR), told)


async def _opening(response: Response, framing: Framing, due: Deadlines) -> bytes:
    opening = HoldBack(framing, content=due.content is not None)
    while data := await response.read():
        first = opening.feed(data)
        if first is not None:
            return first
        if opening.thinking and due.content is not None:
            response.due(due.content)
    return opening.close()


async def _whole(response: Response) -> bytes:
    body = await read_all(response, _LARGEST_ANSWER)
    if fault := completion_error(response.status, response.headers, body):
        raise fault
    return body


def client_headers(headers: Headers) -> list[tuple[bytes, bytes]]:
    """The upstream's headers that concern the client."""
    return [(name, value) for name, value in headers if _PASSED_ON.fullmatch(name)]


def _is_ailing(error: UpstreamError) -> bool:
    # What takes too long in the middle may have been held up by a client that reads slowly.
    return not isinstance(error, UpstreamTimeout) and retry_policy(error).unhealthy


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Whom to ask next: the same upstream ``again``, or another one ``elsewhere``; neither: tell the client.

    ``after`` is how long the same upstream wants to be left alone, in seconds. With ``later``, others go
    before it. ``ailing``: the failure says that the upstream is not well.
    """

    retry: bool = False
    fall_back: bool = True
    delay: float = 0.0
    last: bool = False
    unhealthy: bool = False


def retry_policy(error: UpstreamError) -> RetryPolicy:
    """What follows from one failure before the first delta."""
    if isinstance(error, UpstreamRefused):
        return _of_refusal(error.status, error.headers())
    if isinstance(error, UpstreamRedirected):
        return RetryPolicy()
    if isinstance(error, NoFilesLeft):
        return RetryPolicy(retry=True)
    return RetryPolicy(retry=True, last=isinstance(error, UpstreamTimeout), unhealthy=True)


def _of_refusal(status: int, headers: Mapping[str, str]) -> RetryPolicy:
    if status in _ITS_OWN:
        return RetryPolicy()
    broken = status >= _SERVER_ERRORS
    if not (broken or status in _PASSING):
        return RetryPolicy(fall_back=False)
    again = headers.get("x-should-retry") != "false"
    return RetryPolicy(retry=again, delay=retry_after(headers, time.time()), unhealthy=broken)
