"""The models that are asked beside the calls, as a configuration says."""

from collections.abc import Mapping
from typing import NamedTuple

from filters.redact import Redact
from proxy.assembly.zone import common_zone
from proxy.background.extractor import Extractor
from proxy.background.models import ChatModel, PromptRedaction
from proxy.background.summariser import Summariser
from proxy.configuration.settings import Settings
from proxy.practice import Practice
from proxy.target import Target


class Models(NamedTuple):
    """The upstreams by their names, and what is kept from those that are asked in the background."""

    targets: Mapping[str, Target]
    discretion: PromptRedaction

    def target(self, name: str) -> Target | None:
        """The upstream of this name; none where it could only tell what it was shown."""
        target = self.targets[name]
        return None if isinstance(target.upstream, Practice) else target


def models_of(settings: Settings, targets: Mapping[str, Target]) -> Models:
    """The models; what any chain keeps from one, or is never stored, is kept from them."""
    steps = [step for one in settings.pipelines.values() for step in one.request if isinstance(step, Redact)]
    stored = settings.memory.redact if settings.memory else None
    return Models(targets, PromptRedaction((stored.marking, *steps) if stored else steps))


def summariser_of(settings: Settings, models: Models) -> Summariser | None:
    """Who writes summaries, if a model is to."""
    own = settings.memory.summaries if settings.memory else None
    target = models.target(own.upstream) if own else None
    if own is None or target is None:
        return None
    return Summariser(
        ChatModel(target, timeout=own.timeout),
        model=own.model or target.model or "",
        fallback=own.fallback,
        input_tokens=own.input_tokens,
        discretion=models.discretion,
    )


def extractor_of(settings: Settings, models: Models) -> Extractor | None:
    """Who finds facts, if a model is to."""
    own = settings.memory.facts if settings.memory else None
    target = models.target(own.upstream) if own else None
    if own is None or target is None:
        return None
    return Extractor(
        ChatModel(target, timeout=own.timeout),
        model=own.model or target.model or "",
        fallback=own.fallback,
        zone=common_zone(settings.pipelines),
        discretion=models.discretion,
    )
