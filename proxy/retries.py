"""Where clients say which request they send, and whether they send it once more."""

from typing import Final

from proxy.identity import found
from proxy.memory.session.retry import Attempt, attempt
from proxy.place import Place
from proxy.wire import Call

PLACES: Final = tuple(
    Place.parse(spelling)
    for spelling in (
        "header:X-Request-Id",  # Tencent; the same when it tries again
        "header:Idempotency-Key",
        "body:round_id",  # Volcengine
        "body:extendData.sentenceId",  # Alibaba
    )
)
_RETRIES: Final = "x-stainless-retry-count"


def of(call: Call) -> Attempt:
    """What a call says of itself. A name that Turnkeeper gives a request which has none tells nothing."""
    return attempt(found(call, PLACES), again=_again(call.headers.get(_RETRIES)))


def _again(count: str | None) -> bool | None:
    """OpenAI's own clients count how often they have tried."""
    return None if count is None or not count.isdecimal() else bool(count.strip("0"))
