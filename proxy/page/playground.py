"""The playground: what each filter of a pipeline would do with a request, and what is wrong with either."""

import sys
import time
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Final

import msgspec
from starlette.responses import Response

from filters.base import Filter
from proxy.describe.pages import step_text
from proxy.errors import RequestError, TurnkeeperError, filter_name
from proxy.page.difference import StepDiff, step_diff
from proxy.page.request import PageRequest
from proxy.settings.diagnostics import Diagnostic
from proxy.settings.filter_registry import FilterRegistry
from proxy.settings.load import Steps, load_steps, step_warnings
from proxy.trial import explain
from proxy.trial.explain import Explanation, explain_request
from proxy.turn.pipeline import Pipeline

_HERE: Final = "playground"
_LARGEST_REQUEST: Final = 256_000
_FIRST: Final = "agora"
_MODEL: Final = "a-model"
TITLES: Final[Mapping[str, str]] = {
    "agora": "Agora",
    "livekit": "LiveKit",
    "pipecat": "Pipecat",
    "vapi": "Vapi",
    "elevenlabs": "ElevenLabs",
    "hume": "Hume",
    "tencent": "Tencent",
    "volcengine": "Volcengine",
    "zego": "ZEGO",
    "alibaba": "Alibaba",
}


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a try. ``fault`` is what is wrong with the request; ``faults`` are the pipeline's."""

    explanation: Explanation | None = None
    steps: Sequence[StepDiff] = ()
    sent: str = ""
    fault: str | None = None
    faults: Sequence[Diagnostic] = ()
    doubts: Sequence[Diagnostic] = ()


def example(name: str) -> str | None:
    """A voice platform's request as JSON; ``None`` where there is no example of it."""
    if name not in TITLES:
        return None
    return (files("proxy.page") / "examples" / f"{name}.json").read_text("utf-8")


def loaded_filters(pipelines: Mapping[str, Pipeline]) -> FilterRegistry:
    """The filters that are shipped, and the users' own that a pipeline has loaded already."""
    steps = [step for each in pipelines.values() for step in (*each.filters, *each.answer_filters)]
    modules = {type(step).__module__ for step in steps if isinstance(step, Filter)}
    own = {
        name.rpartition(".")[2]: sys.modules.get(name) for name in modules if not name.startswith("filters.")
    }
    return FilterRegistry(files={name: module for name, module in own.items() if module}, installed=False)


def as_yaml(pipeline: Pipeline) -> str:
    """The steps of a pipeline as YAML, a line each where it fits."""
    sides = (("request", pipeline.filters), ("answer", pipeline.answer_filters))
    return "\n".join(f"{side}:\n{_steps(steps)}" for side, steps in sides if steps) or "request: []"


def _steps(steps: Sequence[Filter]) -> str:
    blocks = [
        step_text(filter_name(step), step.model_dump(mode="json", exclude_unset=True)) for step in steps
    ]
    return "".join(f"  {line}\n" for block in blocks for line in block.splitlines())


async def _show(request: PageRequest) -> Response:
    pipeline, chosen = _pipeline(request, request.query), request.query.get("example", _FIRST)
    return await _answer(request, pipeline, example(chosen) or "", as_yaml(pipeline), chosen)


async def _submit(request: PageRequest) -> Response:
    form = request.form
    pipeline, chosen = _pipeline(request, form), form.get("example", "")
    body, yaml = form.get("request", ""), form.get("yaml", "")
    if form.get("load"):
        body, yaml = example(chosen) or body, as_yaml(pipeline)
    return await _answer(request, pipeline, body, yaml, chosen)


def _pipeline(request: PageRequest, fields: Mapping[str, str]) -> Pipeline:
    pipelines = request.runtime.pipelines
    return pipelines.get(fields.get("pipeline", "default")) or pipelines["default"]


async def _answer(request: PageRequest, pipeline: Pipeline, body: str, yaml: str, chosen: str) -> Response:
    filters = loaded_filters(request.runtime.pipelines)
    try:
        trial = await request.executor.run(lambda: _try(request.tenant, pipeline, body, yaml, filters))
    except TimeoutError:
        trial = Trial(fault="This takes too long to be tried here; try it with 'turnkeeper explain'.")
    if request.headers.get("x-part"):
        return await request.fragment("tried.html", trial=trial)
    return await request.page(
        "playground.html",
        _HERE,
        trial=trial,
        request=body,
        yaml=yaml,
        pipelines=list(request.runtime.pipelines),
        chosen=pipeline.name,
        examples=TITLES,
        example=chosen,
    )


def _try(tenant: str, pipeline: Pipeline, body: str, yaml: str, filters: FilterRegistry) -> Trial:
    steps = load_steps(yaml, filters)
    if not isinstance(steps, Steps):
        return Trial(faults=steps)
    warnings = step_warnings(yaml, steps)
    try:
        explanation = _explain(tenant, msgspec.structs.replace(pipeline, filters=steps.request), body)
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


def _explain(tenant: str, pipeline: Pipeline, body: str) -> Explanation:
    data = body.encode("utf-8", "replace")
    if not data.strip():
        raise RequestError("Paste a request, or pick an engine's.")
    if len(data) > _LARGEST_REQUEST:
        raise RequestError(f"A request to be tried here has at most {_LARGEST_REQUEST // 1000} KB.")
    request = explain.request_from_file(data, {}, tenant)
    try:
        return explain_request(request, pipeline, time.time())
    except RequestError as error:
        if error.param != "model":
            raise
        # Not every platform names a model, and here none is asked.
        return explain_request(request, msgspec.structs.replace(pipeline, model=_MODEL), time.time())


ROUTES: Final = (("GET", "/playground", _show), ("POST", "/playground", _submit))
