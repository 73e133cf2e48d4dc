"""The playground: what each filter of a pipeline would do with a request, and what is wrong with either."""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Final

from markupsafe import Markup
from starlette.responses import Response

from filters.base import Filter
from proxy.describe.pages import step_text
from proxy.errors import TurnkeeperError, filter_name
from proxy.page.draft import Draft, Trial, own_filters, render_trial
from proxy.page.renderer import HEADERS
from proxy.page.request import PageRequest
from proxy.turn.pipeline import Pipeline

_HERE: Final = "playground"
_FIRST: Final = "agora"
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


def example(name: str) -> str | None:
    """A voice platform's request as JSON; ``None`` where there is no example of it."""
    if name not in TITLES:
        return None
    return (files("proxy.page") / "examples" / f"{name}.json").read_text("utf-8")


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
    draft = Draft.of(body, yaml, request.tenant, pipeline, own_filters(request.runtime.pipelines))
    status, headers = 200, dict[str, str]()
    try:
        async with request.runtime.admit_by_size(request.tenant, len(body) + len(yaml), request.reply):
            tried = await request.drafts.render(draft)
    except TurnkeeperError as error:
        status, headers = error.status, dict(error.headers())
        tried = render_trial(request.renderer, Trial(fault=error.message)).decode()
    if request.headers.get("x-part"):
        response = Response(tried, status, HEADERS, "text/html")
    else:
        response = await request.page(
            "playground.html",
            _HERE,
            status=status,
            tried=Markup(tried),  # noqa: S704 - rendered by the same templates
            request=body,
            yaml=yaml,
            pipelines=list(request.runtime.pipelines),
            chosen=pipeline.name,
            examples=TITLES,
            example=chosen,
        )
    response.headers.update(headers)
    return response


ROUTES: Final = (("GET", "/playground", _show), ("POST", "/playground", _submit))
