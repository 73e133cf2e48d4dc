"""The playground: what each filter of a pipeline would do with a request, and what is wrong with either."""

from collections.abc import Mapping
from importlib.resources import files
from typing import Final

from markupsafe import Markup
from starlette.responses import Response

from proxy.errors import TurnkeeperError
from proxy.page.draft import Choices, Draft
from proxy.page.renderer import HEADERS
from proxy.page.request import PageRequest
from proxy.page.trials import RequestTrial

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


async def _show(request: PageRequest) -> Response:
    chosen = request.query.get("example", _FIRST)
    return await _answer(request, {**request.query, "load": "yes"}, example(chosen) or "", chosen)


async def _submit(request: PageRequest) -> Response:
    form = request.form
    chosen, body = form.get("example", ""), form.get("request", "")
    if form.get("load"):
        body = example(chosen) or body
    return await _answer(request, form, body, chosen)


async def _answer(request: PageRequest, fields: Mapping[str, str], body: str, chosen: str) -> Response:
    pipelines = request.runtime.pipelines
    choices = Choices.of(fields, pipelines)
    trial = RequestTrial(draft=Draft.of(choices, pipelines, request.tenant), request=body)
    status, headers = 200, dict[str, str]()
    try:
        tried = (await request.run_trial(trial, len(body) + len(choices.yaml))).decode()
    except TurnkeeperError as error:
        status, headers = error.status, dict(error.headers())
        tried = request.renderer.text("errors.html", fault=error.message)
    if request.headers.get("x-part"):
        response = Response(tried, status, HEADERS, "text/html")
    else:
        response = await request.page(
            "playground.html",
            _HERE,
            status=status,
            tried=Markup(tried),  # noqa: S704 - rendered by the same templates
            request=body,
            choices=choices,
            pipelines=list(pipelines),
            examples=TITLES,
            example=chosen,
        )
    response.headers.update(headers)
    return response


ROUTES: Final = (("GET", "/playground", _show), ("POST", "/playground", _submit))
