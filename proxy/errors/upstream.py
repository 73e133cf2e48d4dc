"""What is wrong with an upstream."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from proxy.errors.error import TurnkeeperError
from proxy.errors.openai_error import openai_error

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
