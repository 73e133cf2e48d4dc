"""One attempt at one upstream, and what follows from its errors.

A stream is held back until its first delta, so that an early failure can fall back.
"""

import asyncio
import re
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from proxy.answer.response import LARGEST_ANSWER, Headers, Response, detect_stream, is_stream, read_all
from proxy.answer.sse import DONE, Framing, data_of, decode_json, events
from proxy.answer.transcript import choices_in, decode_object
from proxy.circuit import CircuitBreaker, retry_after
from proxy.errors import (
    TooManyOpenFiles,
    UpstreamBroken,
    UpstreamError,
    UpstreamRedirected,
    UpstreamRefused,
    UpstreamTimeout,
)
from proxy.upstream.body import UpstreamRequest
from proxy.upstream.target import Target

WrapResponse = Callable[[Response, float], Response]
"""Replaces a response by another one; the float is the loop time by which it must have begun to answer."""

_PATH: Final = "/chat/completions"
_REDIRECTION, _ERROR, _SERVER_ERROR = 300, 400, 500
_THREAD_SIZE = 250_000
_LARGEST_ERROR = 1_000_000
_CLIENT_HEADERS = frozenset((b"content-type", b"retry-after", b"retry-after-ms", b"x-should-retry"))
_CLIENT_PREFIXES = (b"x-ratelimit-", b"openai-")
_TRANSIENT = frozenset({408, 409, 425, 429})
# Errors about this upstream's keys, quota and models: another upstream may accept the request.
_LOCAL = frozenset({401, 402, 403, 404, 405, 410})
_LONGEST_OPENING = 16_000_000
ERROR_KEY = b'"error"'
"""The key of an error event. It never occurs within a model's text, where quotes are escaped."""
# Vendors' names begin with these: reasoning_content, reasoning_details, thinking_blocks …
_REASONING = ("reasoning", "thinking")
_OK = 200
_TYPE = re.compile(rb"\s*([a-z0-9][a-z0-9.+-]{0,40}/[a-z0-9][a-z0-9.+-]{0,60})\s*(;|\Z)", re.IGNORECASE)


class _Choice(msgspec.Struct):
    delta: dict[str, Any] | None = None
    finish_reason: Any = None
    text: Any = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


class HoldBack(msgspec.Struct, eq=False):
    """Holds a stream back until its first delta with any content.

    A role alone, metadata, usage, comments and what cannot be decoded do not count. An error event, or an end
    without content, means that the upstream has not answered, whatever its status was. If ``content`` is set,
    reasoning does not begin the answer either; it sets ``thinking``. ``size`` is how many bytes came so far.
    """

    framing: Framing
    content: bool = False
    thinking: bool = False
    size: int = 0
    _pieces: list[bytes] = []

    def feed(self, data: bytes) -> bytes | None:
        """Returns all bytes so far once the answer has begun, ``None`` until then.

        Raises UpstreamRefused for an error event, and UpstreamBroken where the stream ends before the answer
        begins, or exceeds 16 MB.
        """
        self.size += len(data)
        whole = data if data.endswith(b"\n\n") and not self.framing.rest else self.framing.feed(data)
        self._pieces.append(whole)
        # Of several events without an error the newest is read first: the first one often has a role alone.
        blank = whole.rfind(b"\n\n", 0, -2)
        several = blank >= 0 and whole.rfind(ERROR_KEY) < 0 and whole.rfind(DONE) < 0
        if several and self._begins(whole[blank + 2 :]):
            return b"".join(self._pieces)
        for event in events(whole) if b"data" in whole else ():
            if self._begins(event):
                return b"".join(self._pieces)
        if self.size > _LONGEST_OPENING:
            raise UpstreamBroken("The upstream sent more than 16 MB before it began to answer.")
        return None

    def close(self) -> bytes:
        """Returns all bytes of a stream that has ended, if its last event begins an answer.

        Raises UpstreamBroken otherwise, and UpstreamRefused for an error event.
        """
        rest = self.framing.close()
        if rest and self._begins(rest):
            return b"".join([*self._pieces, rest])
        raise _no_answer()

    def _begins(self, event: bytes) -> bool:
        data = data_of(event)
        if data == DONE:
            raise _no_answer()
        begins = False
        try:
            chunks = [_decode(data)]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            chunks = _lenient_chunks(data)
        for chunk in chunks:
            if chunk.error:
                raise refusal(data, chunk.error)
            for choice in chunk.choices or ():
                if choice.finish_reason or choice.text:
                    self.thinking = begins = True
                for name, value in (choice.delta or {}).items():
                    if value and name != "role":
                        self.thinking = True
                        if not (self.content and (name.startswith(_REASONING) or _is_reasoning(value))):
                            begins = True
        return begins


def split_at_error(whole: bytes) -> tuple[bytes, UpstreamRefused | None]:
    """Splits whole events at the first error event; returns those before it, and the error or ``None``."""
    if whole.rfind(ERROR_KEY) < 0:
        return whole, None
    passed: list[bytes] = []
    for event in events(whole):
        data = data_of(event)
        try:
            error = _decode(data).error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            error = None
        if error:
            return b"".join(passed), refusal(data, error)
        passed.append(event)
    return whole, None


def completion_error(status: int, headers: Headers, body: bytes) -> UpstreamError | None:
    """The error for a body with a successful status that is no completion; ``None`` for a completion.

    Its message quotes the content type alone: a login page may contain what is not meant for the client.
    """
    answer = decode_object(body)
    if answer is not None:
        if any(choices_in(answer)):
            return None
        if error := answer.get("error"):
            return refusal(body, error)
        content = "JSON without choices"
    elif body.strip():
        types = (_TYPE.match(value) for name, value in headers if name == b"content-type")
        name = next((match[1].decode().lower() for match in types if match), "no known type")
        content = f"{len(body)} bytes of {name}"
    else:
        content = "an empty body"
    under = "" if status == _OK else f" under the status {status}"
    return UpstreamBroken(f"The upstream sent {content}{under}, which is no completion; check its base_url.")


def refusal(body: bytes, error: Any) -> UpstreamRefused:
    """The error of a body with status 200: under the status that the body names, or 502."""
    code = error.get("status", error.get("code")) if isinstance(error, dict) else None
    if isinstance(code, int) and 400 <= code <= 599:  # noqa: PLR2004
        return UpstreamRefused(code, body, {})
    refused = UpstreamRefused(502, body, {})
    refused.outcome = "refused"
    return refused


def _lenient_chunks(data: bytes) -> list[_Chunk]:
    """The chunks of an event, also those separated by single line breaks; invalid ones are left out."""
    chunks = []
    for part in (data, *data.splitlines()):
        try:
            chunks.append(msgspec.convert(decode_json(part), _Chunk))
        except ValueError:  # msgspec's errors, and the one for a field name with half a character
            continue
    return chunks


def _is_reasoning(value: Any) -> bool:
    """Whether content in parts consists of reasoning alone."""
    if not isinstance(value, list) or not value:
        return False
    kinds = [part.get("type") if isinstance(part, dict) else None for part in value]
    return all(isinstance(kind, str) and kind.startswith(_REASONING) for kind in kinds)


def _no_answer() -> UpstreamBroken:
    return UpstreamBroken("The upstream's stream ended before it began to answer.")


class Deadlines(msgspec.Struct, frozen=True):
    """By when an answer's first delta, its first content and its end must arrive, in loop time."""

    first: float
    content: float | None
    total: float


class UpstreamAnswer(msgspec.Struct, eq=False):
    """An answer that has begun. ``data`` is all of it so far: complete events, if it is a stream."""

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
    """Asks one upstream; returns a stream once it has begun, and any other answer once it is complete.

    Raises UpstreamError where there is no answer. An error or a login page with status 200 is none.
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
            hold_back = HoldBack(framing, deadlines.content is not None)
            while piece := await response.read():
                large = hold_back.size + len(piece) > _THREAD_SIZE
                data = await asyncio.to_thread(hold_back.feed, piece) if large else hold_back.feed(piece)
                if data is not None:
                    break
                if hold_back.thinking and deadlines.content is not None:
                    response.due(deadlines.content)
            else:
                data = hold_back.close()
        else:
            data = await read_all(response, LARGEST_ANSWER)
            check = partial(completion_error, response.status, response.headers, data)
            if error := await asyncio.to_thread(check) if len(data) > _THREAD_SIZE else check():
                raise error
    except BaseException:
        response.close()
        raise
    response.due(deadlines.total)
    if not breaker.is_healthy:
        breaker.record_answer()
    return UpstreamAnswer(target.name, request.model, breaker, response, data, framing)


async def open_response(target: Target, request: UpstreamRequest, due: float) -> Response:
    """The response, once its head has arrived, by ``due``; raises UpstreamError for an error status.

    A stream gets the content type of one, whatever the upstream sent.
    """
    response = await target.upstream.open("POST", _PATH, request.headers, request.body, due=due)
    try:
        return await _examine(response)
    except BaseException:
        response.close()
        raise


async def _examine(response: Response) -> Response:
    if response.status >= _ERROR:
        headers = client_headers(response.headers)
        passed = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
        passed.pop("content-type", None)
        raise UpstreamRefused(response.status, await read_all(response, _LARGEST_ERROR), passed)
    if response.status >= _REDIRECTION:
        raise UpstreamRedirected(
            f"The upstream answered {response.status}, a redirection; correct its base_url."
        )
    return await detect_stream(response)


def client_headers(headers: Headers) -> list[tuple[bytes, bytes]]:
    """The upstream's headers that are relayed to the client."""
    passed = []
    for header in headers:
        if header[0] in _CLIENT_HEADERS or header[0].startswith(_CLIENT_PREFIXES):
            passed.append(header)  # noqa: PERF401 - each turn: a comprehension is one more frame
    return passed


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What follows from an error: ``retry`` the same upstream, or ``fall_back`` to another one.

    ``delay`` is how many seconds the upstream asks to wait. With ``last``, it is retried after all others.
    ``unhealthy`` is whether the error counts with the circuit breaker.
    """

    retry: bool = False
    fall_back: bool = True
    delay: float = 0.0
    last: bool = False
    unhealthy: bool = False


def retry_policy(error: UpstreamError) -> RetryPolicy:
    """The policy for an error before the first delta."""
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
