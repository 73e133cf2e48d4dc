"""A draft of a pipeline, written by a user of the page, and what it does with a request."""

import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Final, Self

import msgspec

from filters.base import Filter
from proxy.errors import FilterFailed, RequestError, TurnkeeperError
from proxy.page.difference import StepDiff, step_diff
from proxy.page.renderer import Renderer
from proxy.settings.diagnostics import Diagnostic
from proxy.settings.filter_registry import OWN_FILES, FilterRegistry, PluginError, load_file
from proxy.settings.load import Steps, load_steps, step_warnings
from proxy.trial import explain
from proxy.trial.explain import Explanation, explain_request
from proxy.turn.identity import Places
from proxy.turn.pipeline import Pipeline
from proxy.upstream.practice import PracticeModel
from proxy.upstream.providers import PROVIDERS
from proxy.upstream.routing import TimeLimits
from proxy.upstream.target import Health, Target

_LARGEST_REQUEST: Final = 256_000
_LARGEST_RESULT: Final = 5_000_000
_SHIPPED: Final = "filters."
_MODEL: Final = "a-model"


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A request and the steps to try with it, with all that an explanation needs of a pipeline.

    ``own_filters`` leads from the modules of filters that are not shipped to their files. ``remembers`` is
    whether the pipeline has memory, which is left out here.
    """

    request: str
    yaml: str
    tenant: str
    own_filters: Mapping[str, str]
    pipeline: str
    places: Places
    skip_failing_filters: bool
    max_messages: int
    remembers: bool
    model: str | None
    upstream: str
    provider: str
    upstream_model: str | None
    allow: frozenset[str]

    @classmethod
    def of(
        cls, request: str, yaml: str, tenant: str, pipeline: Pipeline, own_filters: Mapping[str, str]
    ) -> Self:
        """A draft that takes the place of a pipeline's own steps."""
        target = pipeline.targets[0]
        return cls(
            request=request,
            yaml=yaml,
            tenant=tenant,
            own_filters=own_filters,
            pipeline=pipeline.name,
            places=pipeline.places,
            skip_failing_filters=pipeline.skip_failing_filters,
            max_messages=pipeline.max_messages,
            remembers=pipeline.memory is not None,
            model=pipeline.model,
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
        return Pipeline(
            name=self.pipeline,
            targets=(target,),
            filters=steps.request,
            skip_failing_filters=self.skip_failing_filters,
            places=self.places,
            max_messages=self.max_messages,
            model=self.model,
            limits=TimeLimits(first_token=0.0, total=0.0),
        )


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a try. ``fault`` is what is wrong with the request; ``faults`` are the pipeline's."""

    explanation: Explanation | None = None
    steps: Sequence[StepDiff] = ()
    sent: str = ""
    fault: str | None = None
    faults: Sequence[Diagnostic] = ()
    doubts: Sequence[Diagnostic] = ()


def own_filters(pipelines: Mapping[str, Pipeline]) -> dict[str, str]:
    """The modules of the users' own filters that a pipeline has loaded, and their files."""
    steps = [step for each in pipelines.values() for step in (*each.filters, *each.answer_filters)]
    modules = {type(step).__module__ for step in steps if isinstance(step, Filter)}
    return {name: _file_of(name) for name in sorted(modules) if not name.startswith(_SHIPPED)}


def loaded_filters(own: Mapping[str, str]) -> FilterRegistry:
    """The filters that are shipped, and users' own. Raises PluginError where one of them cannot be loaded."""
    modules = {name.rpartition(".")[2]: _load(name, file) for name, file in own.items()}
    return FilterRegistry(files=modules, installed=False)


def try_draft(draft: Draft) -> Trial:
    """What a draft does with its request. Raises MemoryError where there is too little, also in a filter."""
    try:
        steps = load_steps(draft.yaml, loaded_filters(draft.own_filters))
    except PluginError as error:
        return Trial(fault=f"A filter of this server's own cannot be run: {error}.")
    if not isinstance(steps, Steps):
        return Trial(faults=steps)
    warnings = step_warnings(draft.yaml, steps)
    try:
        explanation = _explain(draft, draft.with_steps(steps))
    except FilterFailed as error:
        if error.cause is MemoryError:
            raise MemoryError from None
        return Trial(fault=error.message, doubts=warnings)
    except TurnkeeperError as error:
        return Trial(fault=error.message, doubts=warnings)
    sent = None if explanation.sent is None else msgspec.json.encode(explanation.sent)
    return Trial(
        fault=explanation.error["message"] if explanation.error else None,
        explanation=explanation,
        steps=[step_diff(number, step) for number, step in enumerate(explanation.steps, 1)],
        sent="" if sent is None else msgspec.json.format(sent, indent=2).decode(),
        doubts=warnings,
    )


def render_trial(renderer: Renderer, trial: Trial) -> bytes:
    """The part of the page that shows a try; of a result that is too long to be shown, that it is."""
    html = renderer.text("tried.html", trial=trial).encode("utf-8", "replace")
    if len(html) <= _LARGEST_RESULT:
        return html
    fault = f"The result has more than {_LARGEST_RESULT // 1_000_000} MB, which is too long to be shown."
    return render_trial(renderer, Trial(fault=fault, doubts=trial.doubts))


def _file_of(name: str) -> str:
    return str(getattr(import_module(name), "__file__", None) or "")


def _load(name: str, file: str) -> ModuleType:
    # A file is loaded by its name alone; of a package, the module may import others beside it.
    return load_file(Path(file)) if name.startswith(OWN_FILES) else import_module(name)


def _explain(draft: Draft, pipeline: Pipeline) -> Explanation:
    data = draft.request.encode("utf-8", "replace")
    if not data.strip():
        raise RequestError("Paste a request, or choose a voice platform's.")
    if len(data) > _LARGEST_REQUEST:
        raise RequestError(f"A request here has at most {_LARGEST_REQUEST // 1000} KB.")
    request = explain.request_from_file(data, {}, draft.tenant)
    try:
        return explain_request(request, pipeline, time.time(), remembers=draft.remembers)
    except RequestError as error:
        if error.param != "model":
            raise
        # Not every platform names a model, and here none is asked.
        named = msgspec.structs.replace(pipeline, model=_MODEL)
        return explain_request(request, named, time.time(), remembers=draft.remembers)
