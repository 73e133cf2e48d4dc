"""A recorded call, replayed: each of its prompts as another pipeline or other filters would send it."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import msgspec
from starlette.responses import Response

from proxy.errors import TurnkeeperError
from proxy.page.choices import choices_of, chosen_pipeline
from proxy.page.difference import Group, grouped_rows
from proxy.page.request import PageRequest
from proxy.settings.diagnostics import Diagnostic
from proxy.trial.replay import Recording, ReplayedTurn, SentTurn, read_recording, replay, sent_turn
from proxy.turn.pipeline import Pipeline

_HERE: Final = "conversations"
_PROMPTS: Final = 50


class ReplayedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt: ``groups`` lead from what was sent, or would be now, to what would be sent."""

    turn: ReplayedTurn
    groups: Sequence[Group]
    parameters: Sequence[tuple[str, Any, Any]]


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """The newest prompts of a call, the newest first, and how many of all ``total`` are changed."""

    prompts: Sequence[ReplayedPrompt]
    total: int
    changed: int


async def _show(request: PageRequest) -> Response:
    key = request.session_key
    recording = await read_recording(request.memory, key)
    choices = choices_of(request, "default", request.form)
    faults: Sequence[Diagnostic] = ()
    fault: str | None = None
    replayed: Replayed | None = None
    if request.form and not request.form.get("load"):
        try:
            pipeline = chosen_pipeline(request, choices)
            if isinstance(pipeline, Pipeline):
                present = request.runtime.pipelines[choices.pipeline]
                traces = [trace for trace in request.server.traces.newest(*key) if trace.content is not None]
                sent = [sent_turn(trace.content) for trace in reversed(traces) if trace.content is not None]
                work = partial(_replayed, recording, pipeline, present, sent)
                replayed = await request.executor.run(work)
            else:
                faults = pipeline
        except TurnkeeperError as error:
            fault = error.message
    return await request.page(
        "replay.html",
        _HERE,
        id=key.session,
        choices=choices,
        pipelines=list(request.runtime.pipelines),
        replayed=replayed,
        faults=faults,
        fault=fault,
    )


def _replayed(
    recording: Recording, pipeline: Pipeline, present: Pipeline, sent: Sequence[SentTurn]
) -> Replayed:
    turns = list(replay(recording, pipeline, present, sent=sent))
    return Replayed(
        prompts=[_prompt(turn) for turn in turns[: -_PROMPTS - 1 : -1]],
        total=len(turns),
        changed=sum(turn.changed for turn in turns),
    )


def _prompt(turn: ReplayedTurn) -> ReplayedPrompt:
    one, other = turn.before.parameters, turn.after.parameters
    return ReplayedPrompt(
        turn=turn,
        groups=grouped_rows(turn.before.messages, turn.after.messages) if turn.changed else (),
        parameters=[
            (name, one.get(name), other.get(name))
            for name in {**one, **other}
            if one.get(name) != other.get(name)
        ],
    )


ROUTES: Final = (("GET", "/conversations/{id}/replay", _show), ("POST", "/conversations/{id}/replay", _show))
