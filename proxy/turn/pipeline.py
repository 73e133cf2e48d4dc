"""A pipeline: the filters, upstreams and limits of a turn, made ready when the settings were read."""

import sys
from collections.abc import Sequence
from datetime import UTC, tzinfo

import msgspec

from filters.base import AnswerFilter, RequestFilter
from proxy.memory.memory import Memory
from proxy.memory.view import ChainNeeds
from proxy.turn.identity import Place, Places
from proxy.upstream.routing import TimeLimits
from proxy.upstream.target import Target
from proxy.upstream.tokens import TokenCounter


class EpisodeLookup(msgspec.Struct, frozen=True):
    """Whose episodes are told, how far back and how many; without ``agent``, ``place`` says whose."""

    agent: str | None
    place: Place
    hours: float
    limit: int


class Pipeline(msgspec.Struct, frozen=True, kw_only=True):
    """One named way from a client's messages to a model. Times are in seconds.

    ``skips_failing`` is whether a turn goes on without a request filter that fails.
    """

    name: str
    targets: tuple[Target, ...]
    filters: Sequence[RequestFilter]
    answer: Sequence[AnswerFilter] = ()
    skips_failing: bool = False
    places: Places
    memory: Memory | None = None
    episode_lookup: EpisodeLookup | None = None
    tools: tuple[str, ...] = ()
    tool_rounds: int = 0
    max_recalled: int = 0
    """How much is recalled of a person for each turn; 0 where no step tells of it."""
    max_messages: int = sys.maxsize
    """How many messages a request may have."""
    zone: tzinfo = UTC
    """Where the days begin that a person speaks of."""
    view_options: ChainNeeds = ChainNeeds()
    """What its steps do with what is known of a session."""
    max_facts: int = 0
    """How many facts about a person a prompt begins with; 0 where no step tells of them."""
    model: str | None = None
    token_counter: TokenCounter | None = None
    limits: TimeLimits
    keep_alive: float | None = None
