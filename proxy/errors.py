"""All that can go wrong, each with the status and the body that the client gets.

TurnkeeperError
├── RequestError                400  the request cannot be read
│   ├── Unauthorized            401  no key, or one that we do not know
│   ├── Forbidden               403  a key, or a host name, that may not do this
│   ├── NotFound                404  no such path, pipeline, model or memory
│   ├── MethodNotAllowed        405
│   ├── Conflict                409  it exists already, or others are writing it
│   │   └── SessionsUnreadable  409  who is forgotten may be in what nobody can read
│   ├── Superseded              409  a newer request asks for the same turn
│   ├── TooSlow                 408  the request does not arrive
│   ├── TooLarge                413
│   ├── HeadTooLarge            431
│   └── UnsupportedEncoding     415
├── LimitExceeded           429  more than the settings allow a key
├── FilterFailed            500  a filter, most likely one of the user's own
├── ShuttingDown                503  the server ends before the answer does
├── MemoryUnavailable           503  the store does not answer
├── UpstreamError               502  the model cannot be reached, or talks nonsense
│   ├── UpstreamUnreachable     502  no connection
│   ├── NoFilesLeft             503  no connection, and none of its doing
│   ├── UpstreamBroken          502  the answer broke off, or is no HTTP
│   ├── UpstreamRedirected      502  the model is somewhere else
│   ├── UpstreamTimeout         504  too late
│   └── UpstreamRefused         as the upstream said, with its own body
└── ConfigError                 —    the configuration is wrong; nothing is served
"""

import math
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final

import msgspec

__all__ = [
    "ConfigError",
    "Conflict",
    "FilterFailed",
    "Forbidden",
    "HeadTooLarge",
    "LimitExceeded",
    "MemoryUnavailable",
    "MethodNotAllowed",
    "NoFilesLeft",
    "NotFound",
    "RequestError",
    "SessionsUnreadable",
    "ShuttingDown",
    "Superseded",
    "TooLarge",
    "TooSlow",
    "TurnkeeperError",
    "Unauthorized",
    "UnsupportedEncoding",
    "UpstreamBroken",
    "UpstreamError",
    "UpstreamRedirected",
    "UpstreamRefused",
    "UpstreamTimeout",
    "UpstreamUnreachable",
    "openai_error",
]
_KEYS = {"message", "type", "param", "code"}
_CODES: Final = (
    "account_deactivated",
    "authentication_error",
    "billing_not_active",
    "content_filter",
    "context_length_exceeded",
    "insufficient_quota",
    "invalid_api_key",
    "invalid_request_error",
    "model_not_found",
    "not_found_error",
    "overloaded_error",
    "permission_error",
    "rate_limit_error",
    "rate_limit_exceeded",
    "unknown_url",
    "unsupported_parameter",
    "unsupported_value",
)
"""Codes and types of errors that vendors document."""


class TurnkeeperError(Exception):
    """Anything that Turnkeeper itself reports. Its message quotes no key, and nothing that anybody said."""

    status: int = 500
    type: str = "server_error"
    code: str | None = None

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or self.code

    def let_go(self) -> None:
        """Lets go of the frames that it came through, which hold the whole request, and often itself."""
        self.__traceback__ = self.__context__ = self.__cause__ = None

    @property
    def reason(self) -> str:
        """What the log says of it."""
        return self.message

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


class SessionsUnreadable(Conflict):
    """A person was forgotten but for sessions of which nobody can tell whether they hold words of theirs."""

    code = "sessions_unreadable"

    def __init__(self, message: str, sessions: Sequence[str]) -> None:
        super().__init__(message)
        self._sessions = sessions

    def body(self) -> bytes:
        """The error, and beside it the ids of all of these sessions."""
        return msgspec.json.encode({**msgspec.json.decode(super().body()), "sessions": self._sessions})


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


class UnsupportedEncoding(RequestError):
    """The body is compressed in a way that is not understood."""

    status = 415


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


class FilterFailed(TurnkeeperError):
    """A filter raised an error, or returned what is none of a filter's results."""

    code = "filter_failed"


class ShuttingDown(TurnkeeperError):
    """The server ends before the answer does."""

    status = 503
    code = "shutting_down"


class MemoryUnavailable(TurnkeeperError):
    """The store does not answer, is full, or cannot read what it holds."""

    status = 503
    code = "memory_unavailable"


class ConfigError(TurnkeeperError):
    """The configuration is wrong: all its faults, a line each."""


def openai_error(body: bytes, message: str, code: str | None) -> bytes:
    """An upstream's error body in OpenAI's shape; one that has it already stays as it is."""
    said: Any
    try:
        said = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        said = body[:2000].decode("utf-8", "replace").strip()
    whole = said
    while isinstance(said, list) and said:  # Gemini wraps its error in a list
        said = said[0]
    inner = said.get("error", said) if isinstance(said, dict) else said
    if inner is not said and isinstance(inner, dict) and inner.keys() >= _KEYS:
        return body if said is whole else msgspec.json.encode(said)
    return msgspec.json.encode({"error": _four_keys(inner, message, code)})


def _four_keys(error: Any, message: str, code: str | None) -> dict[str, Any]:
    known = error if isinstance(error, dict) else {"message": error}
    said = known.get("message") or known.get("detail") or message
    text = said if isinstance(said, str) else msgspec.json.encode(said).decode()
    return {"type": "upstream_error", "param": None, "code": code, **known, "message": text}


class UpstreamError(TurnkeeperError):
    """The model cannot be reached, or its answer cannot be used."""

    status = 502
    type = "upstream_error"


class UpstreamUnreachable(UpstreamError):
    """There is no connection to the model."""

    code = "upstream_unreachable"


class NoFilesLeft(UpstreamError):
    """There is no connection to the model for want of an open file here: nothing is known of the model."""

    status = 503
    type = "server_error"
    code = "no_files_left"


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
        # What is no error of HTTP could not be passed on.
        self.status = status if 400 <= status <= 599 else 502  # noqa: PLR2004
        self._body = body
        self._headers = headers

    def hide(self, secrets: Iterable[bytes]) -> None:
        """Takes out of what the upstream said the keys that it was asked with: some quote them."""
        for secret in secrets:
            self._body = self._body.replace(secret, b"***")

    def body(self) -> bytes:
        """What the upstream said, in OpenAI's shape."""
        return openai_error(self._body, self.message, self.code)

    @property
    def reason(self) -> str:
        """Its status, with its own code if that is a known one: whatever else it said may quote anything."""
        try:
            error = msgspec.json.decode(self.body())["error"]
        except RecursionError:
            return self.message
        named = next((each for each in (error.get("code"), error.get("type")) if each in _CODES), None)
        return f"The upstream answered {self.status}: {named}." if named else self.message

    def headers(self) -> Mapping[str, str]:
        """What a client needs to know of it, such as ``retry-after``."""
        return self._headers


def filter_name(step: object) -> str:
    """A filter's name, as configurations use it: that of its module."""
    return type(step).__module__.rpartition(".")[2]


def filter_failed(step: object, error: Exception) -> FilterFailed:
    """What is said of a filter, or of its stage, that raised an error."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{PurePath(where.filename).name}:{where.lineno}"
    return FilterFailed(f"The filter '{filter_name(step)}' failed with {type(error).__name__} at {place}.")


def filter_misled(step: object) -> FilterFailed:
    """What is said of a filter that returned no messages."""
    return FilterFailed(f"The filter '{filter_name(step)}' returned something else than a list of messages.")
