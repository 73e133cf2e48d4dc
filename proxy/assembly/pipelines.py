"""The pipelines that a configuration names, made ready."""

import os
from collections.abc import Iterable, Mapping
from functools import partial

import msgspec

from filters.base import RequestFilter
from filters.inject_episodes import InjectEpisodes
from filters.inject_facts import InjectFacts
from filters.inject_summaries import InjectSummaries
from filters.recall import Recall
from filters.restore_history import RestoreHistory
from proxy.assembly.targets import targets_of
from proxy.assembly.zone import zone_of
from proxy.configuration.settings import Identity, Settings
from proxy.configuration.settings import Pipeline as PipelineSettings
from proxy.exact import Exact
from proxy.memory.view import ChainNeeds
from proxy.remembering import Memory
from proxy.target import Target
from proxy.turn.identity import PROVEN_PLACES, SESSION_PLACES, USER_PLACES, Place, Places, Proof, identifier
from proxy.turn.pipeline import Lately, Pipeline


def pipelines(settings: Settings, environ: Mapping[str, str] = os.environ) -> Mapping[str, Pipeline]:
    """The pipelines that a configuration describes, by name; nothing is connected."""
    return pipelines_of(settings, targets_of(settings, environ))


def pipelines_of(
    settings: Settings,
    targets: Mapping[str, Target],
    memory: Memory | None = None,
    exact: Exact | None = None,
) -> Mapping[str, Pipeline]:
    """The pipelines by name, to these models and with this memory."""
    made = {name: _pipeline(name, one, targets, memory) for name, one in settings.pipelines.items()}
    common = partial(msgspec.structs.replace, exact=exact, most_messages=settings.listen.max_messages)
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
        lately=_lately(settings.request),
        tools=settings.tools,
        tool_rounds=settings.tool_rounds,
        wanted=_wanted(settings.request),
        tells=max((step.limit for step in settings.request if isinstance(step, InjectFacts)), default=0),
        recalls=max((step.limit for step in settings.request if isinstance(step, Recall)), default=0),
        zone=zone_of(settings.request),
        model=settings.model or None,
        first_token=settings.first_token or sum(target.patience for target in asked),
        total=max(target.total for target in asked),
        hedge=settings.hedge,
        keep_alive=settings.keep_alive,
    )


def _wanted(steps: Iterable[RequestFilter]) -> ChainNeeds:
    kinds = {type(step) for step in steps}
    return ChainNeeds(injecting=InjectSummaries in kinds, restoring=RestoreHistory in kinds)


def _lately(steps: Iterable[RequestFilter]) -> Lately | None:
    """What the first step that tells of episodes needs to know."""
    step = next((step for step in steps if isinstance(step, InjectEpisodes)), None)
    if step is None:
        return None
    return Lately(identifier(step.agent), Place.parse(step.place), step.hours, step.limit)


def _places(settings: Identity) -> Places:
    secret = settings.user_hmac.get_secret_value()
    return Places(
        session=_parsed(settings.session, SESSION_PLACES),
        user=_parsed(settings.user, PROVEN_PLACES if secret else USER_PLACES),
        default_session=settings.default_session or None,
        proof=Proof(secret) if secret else None,
    )


def _parsed(places: tuple[str, ...] | None, otherwise: tuple[Place, ...]) -> tuple[Place, ...]:
    return otherwise if places is None else tuple(map(Place.parse, places))
