"""The answer's way back: held until it has begun, then passed on as it comes."""

import re
from typing import Any

import msgspec

from proxy.errors import UpstreamBroken, UpstreamError, UpstreamRefused
from proxy.framing import Framing
from proxy.opening import Opening, refusal
from proxy.reply import Header, Reply
from proxy.rewriting import Rewriting
from proxy.upstream import Headers, Response

_LARGEST_ANSWER = 64_000_000
_LARGEST_ERROR = 1_000_000
_PASSED_ON = re.compile(rb"content-type|retry-after(-ms)?|x-should-retry|x-ratelimit-.*|openai-.*")
# Proxies in front of us must not collect a stream, nor keep a copy of it.
UNBUFFERED: list[Header] = [(b"x-accel-buffering", b"no"), (b"cache-control", b"no-cache")]


async def stream(response: Response, reply: Reply, answer: Rewriting, *, total: float) -> None:
    """Passes a stream on, held back until the first delta that carries anything.

    ``total`` is when it must have ended, in the loop's time. Raises UpstreamError where the stream fails
    before it has begun; later failures end it with an error event.
    """
    framing = Framing()
    first = await _opening(response, Opening(framing))
    response.due(total)
    if not reply.started:
        await reply.start(response.status, [*passed_on(response.headers), *UNBUFFERED])
        await reply.write(answer.first() + answer.feed(first))
    else:
        await reply.write(answer.feed(first))
    reply.watch.answered()
    try:
        while data := await response.read():
            if whole := framing.feed(data):
                await reply.write(answer.feed(whole))
    except UpstreamError as error:
        await reply.write(answer.close())
        await reply.fail(error)
    else:
        await reply.end(answer.end(framing.close()))


async def whole(response: Response, reply: Reply, answer: Rewriting) -> None:
    """Passes a whole answer on once all of it is there.

    Raises UpstreamError where it breaks off, or is an error under the status 200.
    """
    body = await read_all(response, _LARGEST_ANSWER)
    _refuse_errors(body)
    await reply.whole(response.status, passed_on(response.headers), answer.whole(body))


async def refused(response: Response) -> UpstreamRefused:
    """The upstream's own error, to be passed on under its status."""
    body = await read_all(response, _LARGEST_ERROR)
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in passed_on(response.headers)}
    headers.pop("content-type", None)
    return UpstreamRefused(response.status, body, headers)


def passed_on(headers: Headers) -> list[Header]:
    """The upstream's headers that concern the client."""
    return [(name, value) for name, value in headers if _PASSED_ON.fullmatch(name)]


def is_stream(headers: Headers) -> bool:
    """Whether an answer is made of server-sent events."""
    return any(name == b"content-type" and b"text/event-stream" in value.lower() for name, value in headers)


async def read_all(response: Response, most: int) -> bytes:
    """A whole body; raises UpstreamBroken where it has more than ``most`` bytes."""
    parts, size = [], 0
    while data := await response.read():
        parts.append(data)
        size += len(data)
        if size > most:
            raise UpstreamBroken(f"The upstream's answer has more than {most} bytes.")
    return b"".join(parts)


async def _opening(response: Response, opening: Opening) -> bytes:
    while data := await response.read():
        first = opening.feed(data)
        if first is not None:
            return first
    return opening.close()


class _Whole(msgspec.Struct):
    error: Any = None
    choices: Any = None


def _refuse_errors(body: bytes) -> None:
    try:
        answer = msgspec.json.decode(body, type=_Whole)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return  # nothing that we could judge: it is the client's
    if answer.error and not answer.choices:
        raise refusal(body, answer.error)
