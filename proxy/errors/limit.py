import math
from collections.abc import Mapping

from proxy.errors.error import TurnkeeperError


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
