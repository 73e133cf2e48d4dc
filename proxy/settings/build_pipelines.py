"""The models that a configuration names, made ready."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import tzinfo
from functools import cache, partial

import msgspec

from filters.base import RequestFilter
from filters.inject_episodes import InjectEpisodes
from filters.inject_facts import InjectFacts
from filters.inject_summaries import InjectSummaries
from filters.option_types import time_zone
from filters.recall import Recall
from filters.restore_history import RestoreHistory
from filters.system_prompt import SystemPrompt
from filters.timestamp_prefix import TimestampPrefix
from proxy.memory.memory import Memory
from proxy.memory.view import ChainNeeds
from proxy.settings.pipeline import Identity
from proxy.settings.pipeline import Pipeline as PipelineSettings
from proxy.settings.pipeline import Upstream as UpstreamSettings
from proxy.settings.settings import Settings
from proxy.turn.identity import (
    PROVEN_PLACES,
    SESSION_PLACES,
    USER_PLACES,
    Place,
    Places,
    UserProof,
    identifier,
)
from proxy.turn.pipeline import EpisodeLookup, Pipeline
from proxy.upstream.client import HttpUpstream, Upstream
from proxy.upstream.dial import Trust, system_trust
from proxy.upstream.practice import PracticeModel
from proxy.upstream.providers import PROVIDERS
from proxy.upstream.routing import TimeLimits
from proxy.upstream.target import Health, Target
from proxy.upstream.tokens import TokenCounter
from proxy.version import VERSION

_PRACTICE = "practice:"
_SHORTEST_SECRET = 8


def build_targets(settings: Settings, environ: Mapping[str, str]) -> Mapping[str, Target]:
    """Each upstream of the settings; nothing is connected. Certificates are read once, if at all."""
    trust = cache(system_trust)
    return {name: _target(name, upstream, environ, trust) for name, upstream in settings.upstreams.items()}


def _target(name: str, settings: UpstreamSettings, environ: Mapping[str, str], trust: Trust) -> Target:
    return Target(
        name=name,
        health=Health(name=name),
        upstream=_upstream(settings, environ, trust),
        provider=PROVIDERS[settings.accepts],
        headers=tuple(_headers(settings)),
        secrets=tuple(_secrets(settings)),
        model=settings.model or None,
        allow=frozenset(settings.allow),
        forward_headers=settings.forward_headers,
        forward_key=settings.forward_key,
        first_token=settings.first_token,
        first_content=settings.first_content,
        total=settings.total,
        retries=settings.retries,
    )


def _upstream(settings: UpstreamSettings, environ: Mapping[str, str], trust: Trust) -> Upstream:
    if settings.base_url == _PRACTICE:
        return PracticeModel()
    return HttpUpstream(
        settings.base_url,
        connect=settings.connect,
        max_connections=settings.max_connections,
        environ=environ,
        trust=trust,
    )


def _headers(settings: UpstreamSettings) -> Iterator[tuple[bytes, bytes]]:
    yield b"content-type", b"application/json"
    yield b"accept-encoding", b"identity"  # a packed stream arrives late, if at all
    yield b"user-agent", f"turnkeeper/{VERSION}".encode()
    key = settings.api_key.get_secret_value()
    if key and not settings.forward_key:
        name, value = ("api-key", key) if settings.accepts == "azure" else ("authorization", f"Bearer {key}")
        yield name.encode(), value.encode()
    for header, secret in settings.headers.items():
        yield header.lower().encode(), secret.get_secret_value().encode()


def _secrets(settings: UpstreamSettings) -> Iterator[bytes]:
    for secret in (settings.api_key, *settings.headers.values()):
        written = secret.get_secret_value().encode()
        # Without the scheme before it, as in ``Bearer``. What is shorter is a number or a word of its own.
        if len(bare := written.rpartition(b" ")[2]) >= _SHORTEST_SECRET:
            yield bare


def zone_of(steps: Sequence[RequestFilter]) -> tzinfo:
    """As the first step says that names a time zone, ``recall`` before all others."""
    return time_zone(_named(steps) or "UTC")


def common_zone(pipelines: Mapping[str, PipelineSettings]) -> tzinfo:
    """Of whoever names no pipeline: as ``default`` says, else as all others do that say anything."""
    named = {name: _named(one.request) for name, one in pipelines.items()}
    others = {zone for zone in named.values() if zone}
    agreed = others.pop() if len(others) == 1 else None
    return time_zone(named["default"] or agreed or "UTC")


def _named(steps: Sequence[RequestFilter]) -> str | None:
    telling = Recall | TimestampPrefix | SystemPrompt | InjectEpisodes
    naming = [step for step in steps if isinstance(step, telling) and "timezone" in step.model_fields_set]
    naming.sort(key=lambda step: not isinstance(step, Recall))
    return naming[0].timezone if naming else None


def build_pipelines(settings: Settings, environ: Mapping[str, str] = os.environ) -> Mapping[str, Pipeline]:
    """The pipelines that a configuration describes, by name; nothing is connected."""
    return pipelines_of(settings, build_targets(settings, environ))


def pipelines_of(
    settings: Settings,
    targets: Mapping[str, Target],
    memory: Memory | None = None,
    exact: TokenCounter | None = None,
) -> Mapping[str, Pipeline]:
    """The pipelines by name, to these models and with this memory."""
    made = {name: _pipeline(name, one, targets, memory) for name, one in settings.pipelines.items()}
    common = partial(msgspec.structs.replace, token_counter=exact, max_messages=settings.listen.max_messages)
    return {name: common(one) for name, one in made.items()}


def _pipeline(
    name: str, settings: PipelineSettings, targets: Mapping[str, Target], memory: Memory | None
) -> Pipeline:
    asked = tuple(targets[upstream] for upstream in settings.upstreams)
    return Pipeline(
        name=name,
        targets=asked,
        filters=settings.request,
        skips_failing=settings.failing == "skip",
        answer=settings.answer,
        places=_places(settings.identity),
        memory=memory,
        episode_lookup=_lately(settings.request),
        tools=settings.tools,
        tool_rounds=settings.tool_rounds,
        view_options=_wanted(settings.request),
        max_facts=max((step.limit for step in settings.request if isinstance(step, InjectFacts)), default=0),
        max_recalled=max((step.limit for step in settings.request if isinstance(step, Recall)), default=0),
        zone=zone_of(settings.request),
        model=settings.model or None,
        limits=TimeLimits(
            first_token=settings.first_token or sum(target.patience for target in asked),
            total=max(target.total for target in asked),
            hedge=settings.hedge,
        ),
        keep_alive=settings.keep_alive,
    )


def _wanted(steps: Iterable[RequestFilter]) -> ChainNeeds:
    kinds = {type(step) for step in steps}
    return ChainNeeds(summaries=InjectSummaries in kinds, history=RestoreHistory in kinds)


def _lately(steps: Iterable[RequestFilter]) -> EpisodeLookup | None:
    """What the first step that tells of episodes needs to know."""
    step = next((step for step in steps if isinstance(step, InjectEpisodes)), None)
    if step is None:
        return None
    return EpisodeLookup(identifier(step.agent), Place.parse(step.place), step.hours, step.limit)


def _places(settings: Identity) -> Places:
    secret = settings.user_hmac.get_secret_value()
    return Places(
        session=_parsed(settings.session, SESSION_PLACES),
        user=_parsed(settings.user, PROVEN_PLACES if secret else USER_PLACES),
        default_session=settings.default_session or None,
        proof=UserProof(secret) if secret else None,
    )


def _parsed(places: tuple[str, ...] | None, otherwise: tuple[Place, ...]) -> tuple[Place, ...]:
    return otherwise if places is None else tuple(map(Place.parse, places))
