"""Builds upstreams and pipelines from settings, without opening connections."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import tzinfo
from functools import cache

import msgspec

from filters.base import AnswerFilter, RequestFilter
from filters.inject_episodes import InjectEpisodes
from filters.inject_facts import InjectFacts
from filters.inject_last_call import InjectLastCall
from filters.inject_summaries import InjectSummaries
from filters.option_types import time_zone
from filters.recall import Recall
from filters.restore_history import RestoreHistory
from filters.system_prompt import SystemPrompt
from filters.timestamp_prefix import TimestampPrefix
from proxy.memory.memory import Memory
from proxy.memory.token_scale import TokenCounter
from proxy.memory.view import ChainNeeds
from proxy.settings.pipeline import PipelineSettings, UpstreamSettings
from proxy.settings.settings import Settings
from proxy.settings.values import PRACTICE
from proxy.turn.identity import (
    PROVEN_PLACES,
    SESSION_PLACES,
    USER_PLACES,
    IdPlace,
    IdPlaces,
    UserProof,
    identifier,
)
from proxy.turn.pipeline import EpisodeLookup, Pipeline
from proxy.upstream.client import HttpUpstream, Upstream
from proxy.upstream.dial import system_trust
from proxy.upstream.practice import PracticeModel
from proxy.upstream.providers import PROVIDERS
from proxy.upstream.routing import TimeLimits
from proxy.upstream.target import Health, Target
from proxy.version import VERSION

_SHORTEST_SECRET = 8


def build_targets(settings: Settings, environ: Mapping[str, str]) -> Mapping[str, Target]:
    """Builds the upstreams by name; ``environ`` names proxies to them. Certificates are read once."""
    trust = cache(system_trust)
    targets = {}
    for name, section in settings.upstreams.items():
        upstream: Upstream = PracticeModel()
        if section.base_url != PRACTICE:
            upstream = HttpUpstream(
                section.base_url,
                connect=section.connect,
                max_connections=section.max_connections,
                environ=environ,
                trust=trust,
            )
        # Without a scheme such as ``Bearer``. Shorter values are numbers or ordinary words.
        secrets = [
            secret.get_secret_value().encode().rpartition(b" ")[2]
            for secret in (section.api_key, *section.headers.values())
        ]
        targets[name] = Target(
            name=name,
            health=Health(name=name),
            upstream=upstream,
            provider=PROVIDERS[section.accepts],
            headers=tuple(_headers(section)),
            secrets=tuple(secret for secret in secrets if len(secret) >= _SHORTEST_SECRET),
            model=section.model or None,
            allow=frozenset(section.allow),
            forward_headers=section.forward_headers,
            forward_key=section.forward_key,
            first_token=section.first_token,
            first_content=section.first_content,
            total=section.total,
            retries=section.retries,
        )
    return targets


def _headers(settings: UpstreamSettings) -> Iterator[tuple[bytes, bytes]]:
    yield b"content-type", b"application/json"
    yield b"user-agent", f"turnkeeper/{VERSION}".encode()
    key = settings.api_key.get_secret_value()
    if key and not settings.forward_key:
        header = PROVIDERS[settings.accepts].key_header
        yield header.encode(), f"Bearer {key}".encode() if header == "authorization" else key.encode()
    for header, secret in settings.headers.items():
        yield header.lower().encode(), secret.get_secret_value().encode()


def build_pipelines(
    settings: Settings,
    targets: Mapping[str, Target] | None = None,
    memory: Memory | None = None,
    token_counter: TokenCounter | None = None,
) -> Mapping[str, Pipeline]:
    """Builds the pipelines by name; without ``targets``, to upstreams without the environment's proxies."""
    targets = build_targets(settings, {}) if targets is None else targets
    pipelines = {}
    for name, section in settings.pipelines.items():
        candidates = tuple(targets[each] for each in section.upstreams)
        identity, secret = section.identity, section.identity.user_hmac.get_secret_value()
        user_places = PROVEN_PLACES if secret else USER_PLACES
        id_places = IdPlaces(
            session=SESSION_PLACES
            if identity.session is None
            else tuple(map(IdPlace.parse, identity.session)),
            user=user_places if identity.user is None else tuple(map(IdPlace.parse, identity.user)),
            default_session=identity.default_session or None,
            proof=UserProof(secret) if secret else None,
        )
        pipeline = Pipeline(
            name=name,
            targets=candidates,
            filters=(),
            skip_failing_filters=section.failing == "skip",
            id_places=id_places,
            memory=memory,
            tools=section.tools,
            tool_rounds=section.tool_rounds,
            model=section.model or None,
            limits=TimeLimits(
                first_token=section.first_token or sum(target.begins_within for target in candidates),
                total=max(target.total for target in candidates),
                hedge=section.hedge,
            ),
            keep_alive=section.keep_alive,
            max_messages=settings.listen.max_messages,
            token_counter=token_counter,
        )
        pipelines[name] = with_filters(pipeline, section.request, section.answer)
    return pipelines


def with_filters(
    pipeline: Pipeline, request: Sequence[RequestFilter], answer: Sequence[AnswerFilter]
) -> Pipeline:
    """The pipeline with other filters, and with the parts of memory that they need."""
    episodes = next((step for step in request if isinstance(step, InjectEpisodes)), None)
    lookup = None
    if episodes:
        place = IdPlace.parse(episodes.place)
        lookup = EpisodeLookup(identifier(episodes.agent), place, episodes.hours, episodes.limit)
    kinds = {type(step) for step in request}
    return msgspec.structs.replace(
        pipeline,
        filters=request,
        answer_filters=answer,
        episode_lookup=lookup,
        chain_needs=ChainNeeds(summaries=InjectSummaries in kinds, history=RestoreHistory in kinds),
        max_facts=max((step.limit for step in request if isinstance(step, InjectFacts)), default=0),
        max_fact_tokens=max((s.max_tokens for s in request if isinstance(s, InjectFacts)), default=0),
        tells_last_call=InjectLastCall in kinds,
        max_recalled=max((step.limit for step in request if isinstance(step, Recall)), default=0),
        zone=chain_time_zone(request),
    )


# --- time zones


def chain_time_zone(steps: Sequence[RequestFilter]) -> tzinfo:
    """The time zone of ``recall`` if it sets one, else of the first step that does, else UTC."""
    return time_zone(_zone_name(steps) or "UTC")


def common_time_zone(pipelines: Mapping[str, PipelineSettings]) -> tzinfo:
    """The time zone of work without a pipeline: that of ``default``, the one that others share, or UTC."""
    names = {name: _zone_name(pipeline.request) for name, pipeline in pipelines.items()}
    distinct = {name for name in names.values() if name}
    shared = distinct.pop() if len(distinct) == 1 else None
    return time_zone(names["default"] or shared or "UTC")


def _zone_name(steps: Sequence[RequestFilter]) -> str | None:
    kinds = Recall | TimestampPrefix | SystemPrompt | InjectEpisodes
    zoned = [step for step in steps if isinstance(step, kinds) and "timezone" in step.model_fields_set]
    zoned.sort(key=lambda step: not isinstance(step, Recall))
    return zoned[0].timezone if zoned else None
