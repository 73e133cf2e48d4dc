"""All that can go wrong, each with the status and the body that the client gets.

TurnkeeperError
├── RequestError                400  the request cannot be read
│   ├── Unauthorized            401  no key, or one that we do not know
│   ├── Forbidden               403  a key, or a host name, that may not do this
│   ├── NotFound                404  no such path, pipeline, model or memory
│   ├── MethodNotAllowed        405
│   ├── Conflict                409  it exists already, or others are writing it
│   ├── Superseded              409  a newer request asks for the same turn
│   ├── TooSlow                 408  the request does not arrive
│   ├── TooLarge                413
│   ├── HeadTooLarge            431
│   ├── LimitExceeded           429  more than the settings allow a key
│   ├── UnsupportedEncoding     415
│   └── UnsupportedMediaType    415
├── FilterFailed            500  a filter, most likely one of the user's own
├── ShuttingDown                503  the server ends before the answer does
├── MemoryUnavailable           503  the store does not answer
├── UpstreamError               502  the model cannot be reached, or talks nonsense
│   ├── UpstreamUnreachable     502  no connection
│   ├── UpstreamBroken          502  the answer broke off, or is no HTTP
│   ├── UpstreamRedirected      502  the model is somewhere else
│   ├── UpstreamTimeout         504  too late
│   └── UpstreamRefused         as the upstream said, with its own body
└── ConfigError                 —    the configuration is wrong; nothing is served
"""

import math
from collections.abc import Mapping
from typing import Any

import msgspec


class TurnkeeperError(Exception):
    """Anything that Turnkeeper itself reports."""

    status: int = 500
    type: str = "server_error"
    code: str | None = None

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or self.code

    def body(self) -> bytes:
        """The error as OpenAI words it; all four keys are always there."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})

    def event(self) -> bytes:
        """What a stream that has begun ends with; there is no ``[DONE]`` after an error."""
        return b"data: " + self.body() + b"\n\n"

    def headers(self) -> Mapping[str, str]:
        """Headers that belong to this answer."""
        return {}


class RequestError(TurnkeeperError):
    """The request cannot be carried out as it was written."""

    status = 400
    type = "invalid_request_error"


class Unauthorized(RequestError):
    """No key was given, or one that is not known."""

    status = 401
    type = "authentication_error"
    code = "invalid_api_key"

    def headers(self) -> Mapping[str, str]:
        """How to authenticate (RFC 9110, 11.6.1)."""
        return {"www-authenticate": "Bearer"}


class Forbidden(RequestError):
    """The key, or the host name, may not do this."""

    status = 403
    type = "permission_error"


class NotFound(RequestError):
    """There is no such path, pipeline, model or memory."""

    status = 404
    code = "not_found"


class MethodNotAllowed(RequestError):
    """The path exists, the method does not."""

    status = 405

    def __init__(self, message: str, *, allow: str) -> None:
        super().__init__(message)
        self.allow = allow

    def headers(self) -> Mapping[str, str]:
        """Which methods there are (RFC 9110, 15.5.6)."""
        return {"allow": self.allow}


class Superseded(RequestError):
    """A newer request for the same turn is answered in this one's place."""

    status = 409
    code = "superseded"

    def event(self) -> bytes:
        """A stream that nobody waits for any more ends as if it were whole."""
        return b"data: [DONE]\n\n"

    def headers(self) -> Mapping[str, str]:
        """OpenAI's clients send again after a 409, which would take the place back."""
        return {"x-should-retry": "false"}


class Conflict(RequestError):
    """What is asked for is at odds with what is there."""

    status = 409
    code = "conflict"


class TooLarge(RequestError):
    """The body is larger than the configuration allows."""

    status = 413
    code = "request_too_large"


class HeadTooLarge(RequestError):
    """The request line and the headers are larger than a server should read."""

    status = 431
    code = "headers_too_large"


class TooSlow(RequestError):
    """The request does not arrive."""

    status = 408
    code = "request_timeout"


class LimitExceeded(TurnkeeperError):
    """A key asks for more than the settings allow; ``kind`` is requests, tokens or streams."""

    status = 429
    code = "rate_limit_exceeded"

    def __init__(self, message: str, *, kind: str, retry_after: float) -> None:
        super().__init__(message)
        self.type = kind
        self._after = retry_after

    def headers(self) -> Mapping[str, str]:
        """When to try again, in whole seconds and, as OpenAI's clients read it, in milliseconds."""
        after = max(self._after, 0.001)
        return {"retry-after": str(math.ceil(after)), "retry-after-ms": str(math.ceil(after * 1000))}


class UnsupportedEncoding(RequestError):
    """The body is compressed in a way that is not understood."""

    status = 415


class FilterFailed(TurnkeeperError):
    """A filter raised an error, or returned what is none of a filter's results."""

    code = "filter_failed"


class ShuttingDown(TurnkeeperError):
    """The server ends before the answer does."""

    status = 503
    code = "shutting_down"


class UnsupportedMediaType(RequestError):
    """The body is not said to be JSON."""

    status = 415
    code = "unsupported_media_type"


class MemoryUnavailable(TurnkeeperError):
    """The store does not answer, is full, or cannot read what it holds."""

    status = 503
    code = "memory_unavailable"


class UpstreamError(TurnkeeperError):
    """The model cannot be reached, or its answer cannot be used."""

    status = 502
    type = "upstream_error"


class UpstreamUnreachable(UpstreamError):
    """There is no connection to the model."""

    code = "upstream_unreachable"


class UpstreamBroken(UpstreamError):
    """The answer broke off, or is not what it says it is."""

    code = "upstream_broken"


class UpstreamRedirected(UpstreamError):
    """The upstream sends us somewhere else, and is not followed."""

    code = "upstream_redirected"


class UpstreamTimeout(UpstreamError):
    """The model was too late."""

    status = 504
    code = "upstream_timeout"


class UpstreamRefused(UpstreamError):
    """The upstream answered with an error; its status and its body pass on."""

    def __init__(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        super().__init__(f"The upstream answered {status}.", code="upstream_refused")
        self.status = status
        self._body = body
        self._headers = headers

    def body(self) -> bytes:
        """What the upstream said, in OpenAI's shape."""
        return openai_error(self._body, self.message, self.code)

    def headers(self) -> Mapping[str, str]:
        """What a client needs to know of it, such as ``retry-after``."""
        return self._headers


class ConfigError(TurnkeeperError):
    """The configuration is wrong: all its faults, a line each."""


_KEYS = {"message", "type", "param", "code"}


def openai_error(body: bytes, message: str, code: str | None) -> bytes:
    """An upstream's error body in OpenAI's shape; one that has it already stays as it is."""
    said: Any
    try:
        said = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        said = body[:2000].decode("utf-8", "replace").strip()
    while isinstance(said, list) and said:  # Gemini wraps its error in a list
        said = said[0]
    inner = said.get("error", said) if isinstance(said, dict) else said
    if inner is not said and isinstance(inner, dict) and inner.keys() >= _KEYS:
        return body
    return msgspec.json.encode({"error": _four_keys(inner, message, code)})


def _four_keys(error: Any, message: str, code: str | None) -> dict[str, Any]:
    known = error if isinstance(error, dict) else {"message": error}
    said = known.get("message") or known.get("detail") or message
    text = said if isinstance(said, str) else msgspec.json.encode(said).decode()
    return {"type": "upstream_error", "param": None, "code": code, **known, "message": text}
