"""All errors, each with the status and the body of its response."""

import contextlib
import math
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final

import msgspec

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
"""Codes and types of errors that providers document."""


class TurnkeeperError(Exception):
    """An error of Turnkeeper itself; its message contains no keys and no words of a conversation."""

    status: int = 500
    type: str = "server_error"
    code: str | None = None

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or self.code
        self.retry_after = retry_after

    def drop_traceback(self) -> None:
        """Drops the traceback, whose frames keep the request and often the error itself alive."""
        self.__traceback__ = self.__context__ = self.__cause__ = None

    @property
    def reason(self) -> str:
        """The message for the log."""
        return self.message

    @property
    def origin(self) -> str:
        """The origin of the error, which is the value of ``X-Turnkeeper-Error``."""
        return "turnkeeper"

    def body(self) -> bytes:
        """The response body in OpenAI's shape, with all four keys."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})

    def event(self) -> bytes:
        """The last event of a stream; no ``[DONE]`` follows an error."""
        return b"data: " + self.body() + b"\n\n"

    def headers(self) -> Mapping[str, str]:
        """Further headers of the response, such as when to try again, in seconds."""
        return {} if self.retry_after is None else {"retry-after": str(math.ceil(self.retry_after))}


class RequestError(TurnkeeperError):
    """The request is invalid."""

    status = 400
    type = "invalid_request_error"


class Unauthorized(RequestError):
    """The API key is missing or unknown."""

    status = 401
    type = "authentication_error"
    code = "invalid_api_key"

    def headers(self) -> Mapping[str, str]:
        """How to authenticate (RFC 9110, 11.6.1)."""
        return {"www-authenticate": "Bearer"}


class Forbidden(RequestError):
    """The key, or the host name, does not permit the request."""

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
        """The allowed methods (RFC 9110, 15.5.6)."""
        return {"allow": self.allow}


class Superseded(RequestError):
    """A newer request for the same turn is answered in this one's place."""

    status = 409
    code = "superseded"

    def event(self) -> bytes:
        """The end of a complete stream, since no client waits for the answer any more."""
        return b"data: [DONE]\n\n"

    def headers(self) -> Mapping[str, str]:
        """Keeps OpenAI's clients from sending the request again, which would supersede the newer one."""
        return {"x-should-retry": "false"}


class Conflict(RequestError):
    """The request conflicts with the present state."""

    status = 409
    code = "conflict"


class SessionsUnreadable(Conflict):
    """A user was erased, except from sessions that cannot be read and may contain their words."""

    code = "sessions_unreadable"

    def __init__(self, message: str, sessions: Sequence[str]) -> None:
        super().__init__(message)
        self._sessions = sessions

    def body(self) -> bytes:
        """The error, with the ids of these sessions in ``sessions``."""
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
    """The request did not arrive in time."""

    status = 408
    code = "request_timeout"


class UnsupportedEncoding(RequestError):
    """The compression of the body is not supported."""

    status = 415


class LimitExceeded(TurnkeeperError):
    """A key asks for more than the settings allow; ``kind`` is requests, tokens or streams."""

    status = 429
    code = "rate_limit_exceeded"

    def __init__(self, message: str, *, kind: str, retry_after: float) -> None:
        super().__init__(message, retry_after=max(retry_after, 0.001))
        self.type = kind

    def headers(self) -> Mapping[str, str]:
        """When to try again, in whole seconds and, as OpenAI's clients read it, in milliseconds."""
        return {**super().headers(), "retry-after-ms": str(math.ceil((self.retry_after or 0.0) * 1000))}


class FilterFailed(TurnkeeperError):
    """A filter raised an error, its ``cause``, or returned an invalid result.

    ``detail`` is the message of the error. It may contain words of the conversation, and is only for
    ``turnkeeper test``.
    """

    code = "filter_failed"
    cause: type[Exception] | None = None
    detail: str = ""


class ShuttingDown(TurnkeeperError):
    """The server ends before the answer does."""

    status = 503
    code = "shutting_down"


class DraftStopped(TurnkeeperError):
    """A draft of a pipeline exceeded its time or its memory."""

    status = 200
    code = "draft_stopped"


class DraftsBusy(TurnkeeperError):
    """The server already runs as many drafts of pipelines as it allows."""

    status = 503
    code = "drafts_busy"


class MemoryUnavailable(TurnkeeperError):
    """The store does not answer, is full, or has unreadable data."""

    status = 503
    code = "memory_unavailable"


class ConfigError(TurnkeeperError):
    """The configuration is wrong; the message has a line for each error."""


# --- filters


def filter_name(step: object) -> str:
    """The name of a filter in configurations, which is that of its module."""
    return type(step).__module__.rpartition(".")[2]


def filter_failed(step: object, error: Exception) -> FilterFailed:
    """The error for a filter, or its stage, that raised one."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{PurePath(where.filename).name}:{where.lineno}"
    failure = FilterFailed(f"The filter '{filter_name(step)}' failed with {type(error).__name__} at {place}.")
    failure.cause = type(error)
    with contextlib.suppress(Exception):  # a user's own error may fail to say anything
        failure.detail = str(error)
    return failure


def invalid_filter_result(step: object) -> FilterFailed:
    """The error for a filter that did not return messages."""
    return FilterFailed(f"The filter '{filter_name(step)}' returned something else than a list of messages.")


# --- upstreams


CHECK_ADDRESS: Final = "; check its address"
"""How the message of an upstream ends that cannot be connected to."""
_SETTINGS: Final = {
    "400": "{0}.accepts",
    "401": "{0}.api_key",
    "403": "{0}.api_key, and what it may use",
    "404": "{0}.base_url, which mostly ends in /v1, and the name of the model",
    "422": "{0}.accepts",
    "429": "the quota of {0}.api_key; a pipeline with a second upstream falls back to that",
    "redirected": "{0}.base_url",
    "timeout": "{0}.first_token and {0}.total",
}
"""Which setting to look at, by an upstream error's outcome."""


class UpstreamError(TurnkeeperError):
    """The model cannot be reached, or its answer cannot be used.

    ``upstream`` is the name of the upstream that was asked, and ``outcome`` the result in one word.
    """

    status = 502
    type = "upstream_error"
    upstream: str = ""
    outcome: str = "failed"

    @property
    def origin(self) -> str:
        """The upstream's name, and its status or what came in the place of one; neither without a name."""
        return f"upstream {self.upstream} {self.outcome}" if self.upstream else "upstream"

    @property
    def reason(self) -> str:
        """The message for the log, with the setting to look at."""
        return self._with_setting(self.message)

    def _with_setting(self, message: str) -> str:
        """The message with the setting to look at, where one could be wrong."""
        if self.upstream and message.endswith(CHECK_ADDRESS):
            return f"{message.removesuffix(CHECK_ADDRESS)}; check upstreams.{self.upstream}.base_url"
        setting = _SETTINGS.get(self.outcome)
        if not (setting and self.upstream):
            return message
        return f"{message.rstrip('.')}; check {setting.format(f'upstreams.{self.upstream}')}"


class UpstreamUnreachable(UpstreamError):
    """There is no connection to the model."""

    code = "upstream_unreachable"
    outcome = "unreachable"


class UpstreamUnavailable(UpstreamError):
    """The upstream keeps failing, and no other answers."""

    status = 503
    code = "upstream_unavailable"
    outcome = "unavailable"

    def __init__(self, name: str, *, retry_after: float) -> None:
        message = f"The upstream '{name}' keeps failing, and is asked once a second; try again."
        super().__init__(message, retry_after=retry_after)
        self.upstream = name


class TooManyOpenFiles(UpstreamError):
    """A connection could not be opened because no file is left; the model is not the cause."""

    status = 503
    type = "server_error"
    code = "no_files_left"

    @property
    def origin(self) -> str:
        """Turnkeeper itself: its limit of open files was reached."""
        return "turnkeeper"


class UpstreamBroken(UpstreamError):
    """The answer broke off, or is not valid."""

    code = "upstream_broken"
    outcome = "broken"


class UpstreamRedirected(UpstreamError):
    """The upstream answered with a redirect, which is not followed."""

    code = "upstream_redirected"
    outcome = "redirected"


class UpstreamTimeout(UpstreamError):
    """The model did not answer in time."""

    status = 504
    code = "upstream_timeout"
    outcome = "timeout"


class UpstreamRefused(UpstreamError):
    """The upstream answered with an error, which is passed on."""

    def __init__(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        super().__init__(f"The upstream answered {status}.", code="upstream_refused")
        self.outcome = str(status)
        # Any other status would not be an error to the client.
        self.status = status if 400 <= status <= 599 else 502  # noqa: PLR2004
        self._body = body
        self._headers = headers

    def redact(self, secrets: Iterable[bytes]) -> None:
        """Remove the keys of the request, which some upstreams quote, from the body."""
        for secret in secrets:
            self._body = self._body.replace(secret, b"***")

    def body(self) -> bytes:
        """The upstream's body in OpenAI's shape."""
        return openai_error(self._body, self.message, self.code)

    @property
    def reason(self) -> str:
        """The status, with the code if it is a documented one: anything else may quote the conversation."""
        try:
            error = msgspec.json.decode(self.body())["error"]
        except RecursionError:
            return super().reason
        code = next((each for each in (error.get("code"), error.get("type")) if each in _CODES), None)
        return self._with_setting(f"{self.message.rstrip('.')}: {code}" if code else self.message)

    def headers(self) -> Mapping[str, str]:
        """The headers that a client needs, such as ``retry-after``."""
        return self._headers


def openai_error(body: bytes, message: str, code: str | None) -> bytes:
    """An upstream's error body in OpenAI's shape; one that has it already is unchanged."""
    decoded: Any
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        decoded = body[:2000].decode("utf-8", "replace").strip()
    error = decoded
    while isinstance(error, list) and error:  # Gemini wraps its error in a list
        error = error[0]
    inner = error.get("error", error) if isinstance(error, dict) else error
    if inner is not error and isinstance(inner, dict) and inner.keys() >= _KEYS:
        return body if error is decoded else msgspec.json.encode(error)
    fields = inner if isinstance(inner, dict) else {"message": inner}
    text = fields.get("message") or fields.get("detail") or message
    if not isinstance(text, str):
        text = msgspec.json.encode(text).decode()
    error = {"type": "upstream_error", "param": None, "code": code, **fields, "message": text}
    return msgspec.json.encode({"error": error})


_EXPECTED: Final = {
    "string_type": "expected a string",
    "int": "expected an integer",
    "integer": "expected an integer",
    "float": "expected a number",
    "finite": "expected a number",
    "number": "expected a number",
    "bool": "expected true or false",
    "boolean": "expected true or false",
}


def expected_type(kind: str) -> str | None:
    """Returns the expected type of a pydantic error, such as ``int_parsing``; ``None`` for others."""
    return _EXPECTED.get(kind) or _EXPECTED.get(kind.partition("_")[0])
