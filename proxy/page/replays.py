"""A recorded call, replayed: each of its prompts as another pipeline or other filters would send it."""

from collections.abc import Sequence
from typing import Final

from markupsafe import Markup
from starlette.responses import Response

from proxy.errors import TurnkeeperError
from proxy.page.draft import Choices, Draft, as_yaml
from proxy.page.request import PageRequest
from proxy.page.trials import CallTrial, SentPrompt
from proxy.trace import Trace
from proxy.trial.replay import read_recording

_HERE: Final = "conversations"


async def _show(request: PageRequest) -> Response:
    key, pipelines = request.session_key, request.runtime.pipelines
    recording = await read_recording(request.memory, key)
    choices = Choices.of(request.form, pipelines)
    status, replayed = 200, ""
    if request.form and not request.form.get("load"):
        now = Choices(pipeline=choices.pipeline, model="", yaml=as_yaml(pipelines[choices.pipeline]))
        await request.server.traces.fetch(request.tenant)
        traces = await request.with_content(list(request.server.traces.newest(*key))[::-1])
        try:
            trial = CallTrial(
                draft=Draft.of(choices, pipelines, request.tenant),
                present=Draft.of(now, pipelines, request.tenant),
                recording=recording,
                sent=await request.executor.run(lambda: _sent(traces)),
            )
            replayed = (await request.run_trial(trial, len(choices.yaml))).decode()
        except TurnkeeperError as error:
            status, replayed = error.status, request.renderer.text("errors.html", fault=error.message)
    return await request.page(
        "replay.html",
        _HERE,
        status=status,
        id=key.session,
        choices=choices,
        pipelines=list(pipelines),
        replayed=Markup(replayed),  # noqa: S704 - rendered by the same templates
    )


def _sent(traces: Sequence[Trace]) -> Sequence[SentPrompt]:
    sent = []
    for trace in traces:
        if trace.content and trace.pipeline:
            target = trace.pipeline.targets[0]
            body = trace.content.chat.to(target).body
            sent.append(SentPrompt(trace.content, body, target.provider.name))
    return sent


ROUTES: Final = (("GET", "/conversations/{id}/replay", _show), ("POST", "/conversations/{id}/replay", _show))
