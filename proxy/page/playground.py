"""A request and a pipeline, tried on paper: what each filter would do, and what is wrong with them."""

import sys
import time
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Final

import msgspec
from starlette.responses import Response

from filters.base import Filter
from proxy.describe.pages import step_of
from proxy.errors import RequestError, TurnkeeperError
from proxy.failing import name_of
from proxy.page.difference import Filtered, Row, filtered, plain
from proxy.page.examples import TITLES, example
from proxy.page.room import Room
from proxy.settings.diagnostics import Diagnostic
from proxy.settings.filter_registry import FilterRegistry
from proxy.settings.load import Steps, load_steps, step_warnings
from proxy.trial import explain
from proxy.trial.explain import Explanation, explain_request
from proxy.turn.pipeline import Pipeline

_HERE: Final = "playground"
_MOST_REQUEST: Final = 256_000
_FIRST: Final = "agora"
_MODEL: Final = "a-model"


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a try. ``fault`` is what is wrong with the request; ``faults`` are the pipeline's."""

    told: Explanation | None = None
    asked: Sequence[Row] = ()
    steps: Sequence[Filtered] = ()
    sent: str = ""
    fault: str | None = None
    faults: Sequence[Diagnostic] = ()
    doubts: Sequence[Diagnostic] = ()


async def _shown(room: Room) -> Response:
    name = _pipeline(room.query, room).name
    chosen = room.query.get("example", _FIRST)
    return await _answered(room, name, example(chosen) or "", written(room.parts.pipelines[name]), chosen)


async def _posted(room: Room) -> Response:
    name = _pipeline(room.form, room).name
    text, request = room.form.get("yaml", ""), room.form.get("request", "")
    if room.form.get("load"):
        text = written(room.parts.pipelines[name])
        request = example(room.form.get("example", "")) or request
    return await _answered(room, name, request, text, room.form.get("example", ""))


async def _answered(room: Room, name: str, request: str, text: str, chosen: str) -> Response:
    tried = await _tried(room, room.parts.pipelines[name], request, text)
    if room.headers.get("x-part"):
        return await room.fragment("tried.html", tried=tried)
    return await room.page(
        "playground.html",
        _HERE,
        tried=tried,
        request=request,
        yaml=text,
        pipelines=list(room.parts.pipelines),
        chosen=name,
        examples=TITLES,
        example=chosen,
    )


async def _tried(room: Room, pipeline: Pipeline, request: str, text: str) -> Tried:
    shelf = shelf_of(room.parts.pipelines)
    try:
        return await room.turnstile.run(lambda: _try(room.tenant, pipeline, request, text, shelf))
    except TimeoutError:
        return Tried(fault="This takes too long to be tried here; try it with 'turnkeeper explain'.")


def _try(tenant: str, pipeline: Pipeline, request: str, text: str, shelf: FilterRegistry) -> Tried:
    draft = load_steps(text, shelf)
    if not isinstance(draft, Steps):
        return Tried(faults=draft)
    warned = step_warnings(text, draft)
    try:
        told = _explained(tenant, msgspec.structs.replace(pipeline, filters=draft.request), request)
    except TurnkeeperError as error:
        return Tried(fault=error.message, doubts=warned)
    return Tried(
        told=told,
        asked=plain(told.messages),
        steps=[filtered(number, step) for number, step in enumerate(told.steps, 1)],
        sent=msgspec.json.format(msgspec.json.encode(told.sent), indent=2).decode(),
        doubts=warned,
    )


def _explained(tenant: str, pipeline: Pipeline, text: str) -> Explanation:
    data = text.encode("utf-8", "replace")
    if not data.strip():
        raise RequestError("Paste a request, or pick an engine's.")
    if len(data) > _MOST_REQUEST:
        raise RequestError(f"A request to be tried here has at most {_MOST_REQUEST // 1000} KB.")
    request = explain.request_from_file(data, {}, tenant)
    try:
        return explain_request(request, pipeline, time.time())
    except RequestError as error:
        if error.param != "model":
            raise
        # Not every engine names one, and here nobody is asked anything.
        return explain_request(request, msgspec.structs.replace(pipeline, model=_MODEL), time.time())


def shelf_of(pipelines: Mapping[str, Pipeline]) -> FilterRegistry:
    """The filters that are shipped, and those of users' own that a pipeline has loaded already."""
    steps: Sequence[Filter] = [
        step
        for each in pipelines.values()
        for step in (*each.filters, *each.answer)
        if isinstance(step, Filter)
    ]
    modules = {type(step).__module__ for step in steps}
    own = {
        module.rpartition(".")[2]: _module(module) for module in modules if not module.startswith("filters.")
    }
    return FilterRegistry(files={name: found for name, found in own.items() if found}, installed=False)


def _module(name: str) -> ModuleType | None:
    return sys.modules.get(name)


def written(pipeline: Pipeline) -> str:
    """The steps of a pipeline as YAML, a line each where it fits."""
    sides = (("request", pipeline.filters), ("answer", pipeline.answer))
    return "\n".join(f"{side}:\n{_steps(steps)}" for side, steps in sides if steps) or "request: []"


def _steps(steps: Sequence[Filter]) -> str:
    told = [step_of(name_of(step), step.model_dump(mode="json", exclude_unset=True)) for step in steps]
    return "".join(f"  {line}\n" for step in told for line in step.splitlines())


def _pipeline(given: Mapping[str, str], room: Room) -> Pipeline:
    found = room.parts.pipelines.get(given.get("pipeline", "default"))
    return found or room.parts.pipelines["default"]


ROUTES: Final = (("GET", "/playground", _shown), ("POST", "/playground", _posted))
