"""What a turn goes through: filters, then an upstream, each made ready when the settings were read."""

import sys
from collections.abc import Sequence
from datetime import UTC, tzinfo

import msgspec

from filters.base import AnswerFilter, RequestFilter
from proxy.exact import Exact
from proxy.health import Health
from proxy.identity import Places
from proxy.kinds import Kind
from proxy.lately import Lately
from proxy.memory.known import Wanted
from proxy.remembering import Memory
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


class Pipeline(msgspec.Struct, frozen=True, kw_only=True):
    """One named way from a client's messages to a model. Times are in seconds.

    ``first_token`` is what all its targets together have until one has begun to answer, ``total`` until it
    has ended. ``skips_failing`` is whether a turn goes on without a request filter that fails.
    """

    name: str
    targets: tuple[Target, ...]
    filters: Sequence[RequestFilter]
    answer: Sequence[AnswerFilter] = ()
    skips_failing: bool = False
    places: Places
    memory: Memory | None = None
    lately: Lately | None = None
    tools: tuple[str, ...] = ()
    tool_rounds: int = 0
    recalls: int = 0
    """How much is recalled of a person for each turn; 0 where no step tells of it."""
    most_messages: int = sys.maxsize
    """How many messages a request may have."""
    zone: tzinfo = UTC
    """Where the days begin that a person speaks of."""
    wanted: Wanted = Wanted()
    """What its steps do with what is known of a session."""
    tells: int = 0
    """How many facts about a person a prompt begins with; 0 where no step tells of them."""
    model: str | None = None
    exact: Exact | None = None
    first_token: float
    total: float
    hedge: float | None = None
    keep_alive: float | None = None
