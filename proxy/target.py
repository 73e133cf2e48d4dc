"""One model that may be asked, as a configuration describes it."""

import msgspec

from proxy.health import Health
from proxy.kinds import Kind
from proxy.upstream import Headers, Upstream


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A model's address, and how it wants to be talked to. Times are in seconds.

    ``secrets`` are what of the headers no client may be told.
    """

    name: str
    health: Health
    upstream: Upstream
    kind: Kind
    headers: Headers
    secrets: tuple[bytes, ...] = ()
    model: str | None = None
    models: tuple[str, ...] = ()
    allow: frozenset[str] = frozenset()
    forward_headers: tuple[str, ...] = ()
    forward_key: bool = False
    first_token: float
    first_content: float | None = None
    total: float
    retries: int = 0

    @property
    def patience(self) -> float:
        """How long it may take to answer, where it is asked once."""
        return max(self.first_token, self.first_content or 0.0)
