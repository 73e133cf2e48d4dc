"""A draft of a pipeline, written by a user of the page: its form, and what a process needs to build it."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Final, Self

import msgspec

from filters.base import Filter
from proxy.describe.pages import step_text
from proxy.errors import filter_name
from proxy.settings.build_pipelines import with_filters
from proxy.settings.filter_registry import OWN_FILES, FilterRegistry, load_file
from proxy.settings.load import Steps
from proxy.turn.pipeline import Pipeline
from proxy.upstream.practice import PracticeModel
from proxy.upstream.providers import PROVIDERS
from proxy.upstream.routing import TimeLimits
from proxy.upstream.target import Health, Target

_SHIPPED: Final = "filters."
_LONGEST_MODEL: Final = 300


class Choices(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a form: a pipeline, a model in place of its own, and its steps as YAML."""

    pipeline: str
    model: str
    yaml: str

    @classmethod
    def of(
        cls, fields: Mapping[str, str], pipelines: Mapping[str, Pipeline], pipeline: str = "default"
    ) -> Self:
        """The choices of a form; ``pipeline`` and its filters where it leaves them out."""
        chosen = pipelines.get(fields.get("pipeline", pipeline)) or pipelines["default"]
        yaml = fields.get("yaml", "")
        if fields.get("load") or not yaml.strip():
            yaml = as_yaml(chosen)
        return cls(pipeline=chosen.name, model=fields.get("model", "").strip()[:_LONGEST_MODEL], yaml=yaml)


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """Steps as YAML, with all that a trial needs of the pipeline whose own steps they replace.

    ``own_filters`` leads from the modules of filters that are not shipped to their files. ``pipeline`` has
    neither filters nor targets here. ``remembers`` is whether it has memory, which is out of reach here.
    """

    yaml: str
    tenant: str
    own_filters: Mapping[str, str]
    pipeline: Pipeline
    remembers: bool
    upstream: str
    provider: str
    upstream_model: str | None
    allow: frozenset[str]

    @classmethod
    def of(cls, choices: Choices, pipelines: Mapping[str, Pipeline], tenant: str) -> Self:
        """The draft that a tenant's form describes."""
        pipeline = pipelines[choices.pipeline]
        target, memory = pipeline.targets[0], pipeline.memory
        return cls(
            yaml=choices.yaml,
            tenant=tenant,
            own_filters=own_filters(pipelines),
            pipeline=Pipeline(
                name=pipeline.name,
                targets=(),
                filters=(),
                skip_failing_filters=pipeline.skip_failing_filters,
                places=pipeline.places,
                max_messages=pipeline.max_messages,
                model=choices.model or pipeline.model,
                limits=TimeLimits(first_token=0.0, total=0.0),
                shown_tools=pipeline.tools if memory and memory.facts and memory.search else (),
            ),
            remembers=memory is not None,
            upstream=target.name,
            provider=target.provider.name,
            upstream_model=target.model,
            allow=target.allow,
        )

    def with_steps(self, steps: Steps) -> Pipeline:
        """The pipeline of this draft; nothing is connected."""
        target = Target(
            name=self.upstream,
            health=Health(),
            upstream=PracticeModel(),
            provider=PROVIDERS[self.provider],
            headers=(),
            model=self.upstream_model,
            allow=self.allow,
            first_token=0.0,
            total=0.0,
        )
        pipeline = msgspec.structs.replace(self.pipeline, targets=(target,))
        return with_filters(pipeline, steps.request, steps.answer)


def as_yaml(pipeline: Pipeline) -> str:
    """The steps of a pipeline as YAML, a line each where it fits."""
    sides: list[str] = []
    for side, steps in (("request", pipeline.filters), ("answer", pipeline.answer_filters)):
        lines = [f"{side}:\n"] if steps else []
        for step in steps:
            text = step_text(filter_name(step), step.model_dump(mode="json", exclude_unset=True))
            lines += [f"  {line}\n" for line in text.splitlines()]
        sides += ["".join(lines)] if lines else []
    return "\n".join(sides) or "request: []"


def own_filters(pipelines: Mapping[str, Pipeline]) -> dict[str, str]:
    """The modules of the users' own filters that a pipeline has loaded, and their files."""
    steps = [step for each in pipelines.values() for step in (*each.filters, *each.answer_filters)]
    modules = {type(step).__module__ for step in steps if isinstance(step, Filter)}
    return {
        name: str(getattr(import_module(name), "__file__", None) or "")
        for name in sorted(modules)
        if not name.startswith(_SHIPPED)
    }


def loaded_filters(own: Mapping[str, str]) -> FilterRegistry:
    """The filters that are shipped, and users' own. Raises PluginError where one of them cannot be loaded."""
    modules: dict[str, ModuleType] = {}
    for name, file in own.items():
        # A file is loaded by its name alone; of a package, the module may import others beside it.
        module = load_file(Path(file)) if name.startswith(OWN_FILES) else import_module(name)
        modules[name.rpartition(".")[2]] = module
    return FilterRegistry(files=modules, installed=False)
