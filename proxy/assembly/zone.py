"""Where a day begins for the callers of a pipeline."""

from collections.abc import Sequence
from datetime import tzinfo

from filters.base import RequestFilter
from filters.inject_episodes import InjectEpisodes
from filters.recall import Recall
from filters.system_prompt import SystemPrompt
from filters.timestamp_prefix import TimestampPrefix
from filters.zone import zone_named


def zone_of(steps: Sequence[RequestFilter]) -> tzinfo:
    """As the first step says that names a time zone, ``recall`` before all others."""
    telling = Recall | TimestampPrefix | SystemPrompt | InjectEpisodes
    naming = [step for step in steps if isinstance(step, telling) and "timezone" in step.model_fields_set]
    naming.sort(key=lambda step: not isinstance(step, Recall))
    return zone_named(naming[0].timezone if naming else "UTC")
