"""One upstream is asked once."""

import re
from collections.abc import Callable
from types import TracebackType
from typing import Final, NoReturn, Self

import msgspec

from proxy.answer.sse import Framing
from proxy.breaker import Breaker
from proxy.errors import UpstreamError, UpstreamRedirected, UpstreamRefused, UpstreamTimeout
from proxy.question import Request
from proxy.routing.opening import Opening
from proxy.routing.remedy import remedy
from proxy.routing.unlabelled import labelled
from proxy.routing.whole import fault_of
from proxy.target import Target
from proxy.upstream import Headers, Response, is_stream, read_all

_PATH: Final = "/chat/completions"
_REDIRECTION, _ERROR = 300, 400
_LARGEST_ANSWER = 64_000_000
_LARGEST_ERROR = 1_000_000
_PASSED_ON = re.compile(rb"content-type|retry-after(-ms)?|x-should-retry|x-ratelimit-.*|openai-.*")


class Due(msgspec.Struct, frozen=True):
    """When an answer's first delta, its first content and its end must be there, in the loop's time."""

    first: float
    content: float | None
    total: float


class Begun(msgspec.Struct, eq=False):
    """An answer that has begun: ``data`` is all of it so far, whole events where it is a stream.

    Leaving it ends it: the upstream's connection is closed if anything is left, and how it went is noted.
    """

    upstream: str
    model: str
    breaker: Breaker
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


Stitching = Callable[[Response, float], Response]
"""Puts something in the place of a response; the time is when it must have begun to answer."""


async def attempt(
    target: Target, request: Request, breaker: Breaker, due: Due, stitched: Stitching | None = None
) -> Begun:
    """The answer once it has begun; where no stream is wanted, once it is whole.

    Raises UpstreamError where there is none: for an error under the status 200, too, or a page to log in at.
    """
    response = await opened(target, request, due.first)
    try:
        if stitched is not None:
            response = stitched(response, due.first)
        framing = Framing() if is_stream(response.headers) else None
        data = await (_whole(response) if framing is None else _opening(response, framing, due))
    except BaseException:
        response.close()
        raise
    response.due(due.total)
    breaker.begun()
    return Begun(target.name, request.model, breaker, response, data, framing)


async def opened(target: Target, request: Request, due: float) -> Response:
    """The response whose head is there by ``due``; raises UpstreamError where it is no answer.

    A stream is called one, whatever its upstream calls it.
    """
    response = await target.upstream.open("POST", _PATH, request.headers, request.body, due=due)
    try:
        if response.status >= _REDIRECTION:
            await _refuse(response)
        return await labelled(response)
    except BaseException:
        response.close()
        raise


async def _refuse(response: Response) -> NoReturn:
    if response.status < _ERROR:
        raise UpstreamRedirected(
            f"The upstream answered {response.status}, a redirection; correct its base_url."
        )
    told = {name.decode("latin-1"): value.decode("latin-1") for name, value in passed_on(response.headers)}
    told.pop("content-type", None)
    raise UpstreamRefused(response.status, await read_all(response, _LARGEST_ERROR), told)


async def _opening(response: Response, framing: Framing, due: Due) -> bytes:
    opening = Opening(framing, content=due.content is not None)
    while data := await response.read():
        first = opening.feed(data)
        if first is not None:
            return first
        if opening.thinking and due.content is not None:
            response.due(due.content)
    return opening.close()


async def _whole(response: Response) -> bytes:
    body = await read_all(response, _LARGEST_ANSWER)
    if fault := fault_of(response.status, response.headers, body):
        raise fault
    return body


def passed_on(headers: Headers) -> list[tuple[bytes, bytes]]:
    """The upstream's headers that concern the client."""
    return [(name, value) for name, value in headers if _PASSED_ON.fullmatch(name)]


def _is_ailing(error: UpstreamError) -> bool:
    # What takes too long in the middle may have been held up by a client that reads slowly.
    return not isinstance(error, UpstreamTimeout) and remedy(error).ailing
