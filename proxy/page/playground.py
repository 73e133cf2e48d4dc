"""The playground, where filters are tried on a request, and the replay of a recorded call."""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Final

from starlette.responses import Response

from proxy.page.renderer import HEADERS
from proxy.page.request import PageRequest
from proxy.page.trials import CallTrial, Choices, Draft, RequestTrial, as_yaml
from proxy.trace import Trace
from proxy.trial.replay import SentPrompt, read_recording

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
    """Returns a voice platform's example request as JSON; ``None`` for an unknown name."""
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
    tried = await request.run_trial(trial, len(body) + len(choices.yaml))
    if request.headers.get("x-part"):
        response = Response(tried.html, tried.status, HEADERS, "text/html")
    else:
        response = await request.page(
            "playground.html",
            "playground",
            status=tried.status,
            tried=tried.html,
            request=body,
            choices=choices,
            pipelines=list(pipelines),
            examples=TITLES,
            example=chosen,
        )
    response.headers.update(tried.headers)
    return response


async def _replay(request: PageRequest) -> Response:
    key, pipelines = request.session_key, request.runtime.pipelines
    recording = await read_recording(request.memory, key)
    choices = Choices.of(request.form, pipelines)
    status, replayed = 200, ""
    if request.form and not request.form.get("load"):
        present = Choices(pipeline=choices.pipeline, model="", yaml=as_yaml(pipelines[choices.pipeline]))
        await request.server.traces.fetch(request.tenant)
        traces = await request.with_content(list(request.server.traces.newest(*key))[::-1])
        trial = CallTrial(
            draft=Draft.of(choices, pipelines, request.tenant),
            present=Draft.of(present, pipelines, request.tenant),
            recording=recording,
            sent=await request.executor.run(lambda: _sent(traces)),
        )
        tried = await request.run_trial(trial, len(choices.yaml))
        status, replayed = tried.status, tried.html
    return await request.page(
        "replay.html",
        "conversations",
        status=status,
        id=key.session,
        choices=choices,
        pipelines=list(pipelines),
        replayed=replayed,
    )


def _sent(traces: Sequence[Trace]) -> Sequence[SentPrompt]:
    sent = []
    for trace in traces:
        if trace.content and trace.content.sent_body and trace.pipeline:
            target = trace.target_of(trace.pipeline)
            sent.append(SentPrompt(trace.content, target.provider.name))
    return sent


ROUTES: Final = (
    ("GET", "/playground", _show),
    ("POST", "/playground", _submit),
    ("GET", "/conversations/{id}/replay", _replay),
    ("POST", "/conversations/{id}/replay", _replay),
)
