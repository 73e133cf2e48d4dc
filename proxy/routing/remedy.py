"""What can be done about an upstream that has not answered."""

import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from math import isfinite

import msgspec

from proxy.errors import NoFilesLeft, UpstreamError, UpstreamRedirected, UpstreamRefused, UpstreamTimeout

_PASSING = frozenset({408, 409, 425, 429})
# Of this upstream's keys, quota and models; another one may see it otherwise.
_ITS_OWN = frozenset({401, 402, 403, 404, 405, 410})
_SERVER_ERRORS = 500


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """Whom to ask next: the same upstream ``again``, or another one ``elsewhere``; neither: tell the client.

    ``after`` is how long the same upstream wants to be left alone, in seconds. With ``later``, others go
    before it. ``ailing``: the failure says that the upstream is not well.
    """

    again: bool = False
    elsewhere: bool = True
    after: float = 0.0
    later: bool = False
    ailing: bool = False


def remedy(error: UpstreamError) -> Remedy:
    """What follows from one failure before the first delta."""
    if isinstance(error, UpstreamRefused):
        return _of_refusal(error.status, error.headers())
    if isinstance(error, UpstreamRedirected):
        return Remedy()
    if isinstance(error, NoFilesLeft):
        return Remedy(again=True)
    return Remedy(again=True, later=isinstance(error, UpstreamTimeout), ailing=True)


def retry_after(headers: Mapping[str, str], now: float) -> float:
    """How many seconds an upstream wants to be left alone (RFC 9110, 10.2.3); 0 where it does not say.

    ``now`` is in seconds since 1970. ``retry-after-ms`` is OpenAI's, and goes before the other.
    """
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    given = headers.get("retry-after", "")
    seconds = _number(given)
    return _until(given, now) if seconds is None else seconds


def _of_refusal(status: int, headers: Mapping[str, str]) -> Remedy:
    if status in _ITS_OWN:
        return Remedy()
    broken = status >= _SERVER_ERRORS
    if not (broken or status in _PASSING):
        return Remedy(elsewhere=False)
    again = headers.get("x-should-retry") != "false"
    return Remedy(again=again, after=retry_after(headers, time.time()), ailing=broken)


def _number(given: str) -> float | None:
    try:
        number = float(given)
    except ValueError:
        return None
    return max(0.0, number) if isfinite(number) else None


def _until(given: str, now: float) -> float:
    try:
        return max(0.0, parsedate_to_datetime(given).timestamp() - now)
    except (ValueError, OverflowError):
        return 0.0
