"""What is wrong with a request."""

from collections.abc import Mapping, Sequence

import msgspec

from proxy.errors.error import TurnkeeperError


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


class UnsupportedMediaType(RequestError):
    """The body is not said to be JSON."""

    status = 415
    code = "unsupported_media_type"
