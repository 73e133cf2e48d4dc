"""A pipeline: the filters, upstreams and limits of a turn, as the settings describe them."""

import sys
from collections.abc import Sequence
from datetime import UTC, tzinfo

import msgspec

from filters.base import AnswerFilter, RequestFilter
from proxy.memory.memory import Memory
from proxy.memory.token_scale import TokenCounter
from proxy.memory.view import ChainNeeds
from proxy.turn.identity import IdPlace, IdPlaces
from proxy.upstream.routing import TimeLimits
from proxy.upstream.target import Target


class EpisodeLookup(msgspec.Struct, frozen=True):
    """Whose episodes a prompt shows: at most ``limit``, from the last ``hours``.

    Where ``agent`` is ``None``, the agent's id stands at ``place`` in the request.
    """

    agent: str | None
    place: IdPlace
    hours: float
    limit: int


class Pipeline(msgspec.Struct, frozen=True, kw_only=True):
    """One named way from a client's messages to a model.

    ``filters`` are for requests. With ``skip_failing_filters``, a turn goes on without one that fails.
    ``keep_alive`` is in seconds.
    """

    name: str
    targets: tuple[Target, ...]
    filters: Sequence[RequestFilter]
    answer_filters: Sequence[AnswerFilter] = ()
    skip_failing_filters: bool = False
    id_places: IdPlaces
    memory: Memory | None = None
    episode_lookup: EpisodeLookup | None = None
    tools: tuple[str, ...] = ()
    tool_rounds: int = 0
    shown_tools: tuple[str, ...] = ()
    """The memory tools that a trial without memory shows as offered."""
    max_recalled: int = 0
    """How many passages are recalled for each turn; 0 where no filter uses them."""
    max_messages: int = sys.maxsize
    """How many messages a request may have."""
    zone: tzinfo = UTC
    """The time zone in which 'yesterday' and the like are resolved."""
    chain_needs: ChainNeeds = ChainNeeds()
    """What its filters need of a session."""
    max_facts: int = 0
    """How many facts about the user a prompt begins with; 0 where no filter uses them."""
    max_fact_tokens: int = 0
    """How many tokens these may have."""
    tells_last_call: bool = False
    """Whether a filter shows the user's last call."""
    model: str | None = None
    token_counter: TokenCounter | None = None
    limits: TimeLimits
    keep_alive: float | None = None
