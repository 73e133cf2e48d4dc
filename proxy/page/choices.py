"""What a kept turn, or a recorded call, is tried with: another pipeline, model or filters."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from proxy.errors import RequestError
from proxy.page.draft import loaded_filters, own_filters
from proxy.page.playground import as_yaml
from proxy.page.request import PageRequest
from proxy.settings.build_pipelines import with_filters
from proxy.settings.diagnostics import Diagnostic
from proxy.settings.filter_registry import PluginError
from proxy.settings.load import Steps, load_steps
from proxy.turn.pipeline import Pipeline

_LONGEST_MODEL: Final = 300


class Choices(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a form: a pipeline, a model in place of its own, and its steps as YAML."""

    pipeline: str
    model: str
    yaml: str


def choices_of(request: PageRequest, pipeline: str, fields: Mapping[str, str]) -> Choices:
    """The choices of a form; ``pipeline`` and its filters where it leaves them out."""
    pipelines = request.runtime.pipelines
    chosen = pipelines.get(fields.get("pipeline", pipeline)) or pipelines["default"]
    yaml = fields.get("yaml", "")
    if fields.get("load") or not yaml.strip():
        yaml = as_yaml(chosen)
    model = fields.get("model", "").strip()[:_LONGEST_MODEL]
    return Choices(pipeline=chosen.name, model=model, yaml=yaml)


def chosen_pipeline(request: PageRequest, choices: Choices) -> Pipeline | Sequence[Diagnostic]:
    """The pipeline of these choices, or what is wrong with its steps.

    Raises RequestError where a filter of the server's own cannot be loaded.
    """
    pipelines = request.runtime.pipelines
    try:
        steps = load_steps(choices.yaml, loaded_filters(own_filters(pipelines)))
    except PluginError as error:
        raise RequestError(f"A filter of this server's own cannot be loaded: {error}.") from None
    if not isinstance(steps, Steps):
        return steps
    pipeline = with_filters(pipelines[choices.pipeline], steps.request, steps.answer)
    return msgspec.structs.replace(pipeline, model=choices.model) if choices.model else pipeline
