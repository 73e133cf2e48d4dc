"""Where a day begins for the callers of a pipeline."""

from collections.abc import Mapping, Sequence
from datetime import tzinfo

from filters.base import RequestFilter
from filters.inject_episodes import InjectEpisodes
from filters.recall import Recall
from filters.system_prompt import SystemPrompt
from filters.timestamp_prefix import TimestampPrefix
from filters.zone import zone_named
from proxy.configuration.settings import Pipeline


def zone_of(steps: Sequence[RequestFilter]) -> tzinfo:
    """As the first step says that names a time zone, ``recall`` before all others."""
    return zone_named(_named(steps) or "UTC")


def common_zone(pipelines: Mapping[str, Pipeline]) -> tzinfo:
    """Of whoever names no pipeline: as ``default`` says, else as all others do that say anything."""
    named = {name: _named(one.request) for name, one in pipelines.items()}
    others = {zone for zone in named.values() if zone}
    agreed = others.pop() if len(others) == 1 else None
    return zone_named(named["default"] or agreed or "UTC")


def _named(steps: Sequence[RequestFilter]) -> str | None:
    telling = Recall | TimestampPrefix | SystemPrompt | InjectEpisodes
    naming = [step for step in steps if isinstance(step, telling) and "timezone" in step.model_fields_set]
    naming.sort(key=lambda step: not isinstance(step, Recall))
    return naming[0].timezone if naming else None
