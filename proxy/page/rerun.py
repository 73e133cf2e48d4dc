"""A kept turn that is run again with another model, pipeline or filters: a test that nothing records."""

import logging
from collections.abc import Sequence
from functools import partial

import msgspec

from proxy.answer.stream_filters import FilteredAnswer
from proxy.answer.transcript import Transcript, transcript
from proxy.errors import TurnkeeperError
from proxy.http.reply import Reply
from proxy.observe.observation import Observation, usage_of
from proxy.page.choices import Choices, chosen_pipeline
from proxy.page.request import PageRequest
from proxy.settings.diagnostics import Diagnostic
from proxy.trial.explain import FilterRun, run_filters
from proxy.turn.pipeline import Pipeline
from proxy.turn.relay import pass_on
from proxy.turn.state import Turn
from proxy.upstream.request import ChatRequest
from proxy.upstream.routing import Dispatch

_log = logging.getLogger("turnkeeper")


class Rerun(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it. Times are in seconds; ``sent`` is the body that the upstream got.

    ``fault`` is why there is no answer, or no whole one, and ``faults`` what is wrong with the steps.
    """

    answer: Transcript = Transcript()
    sent: bytes = b""
    upstream: str | None = None
    model: str | None = None
    first_token: float | None = None
    duration: float = 0.0
    tokens: tuple[int | None, int | None] = (None, None)
    fault: str | None = None
    faults: Sequence[Diagnostic] = ()


async def run_again(request: PageRequest, turn: Turn, choices: Choices) -> Rerun:
    """Asks a model once more, with memory as the turn had it; nothing is written, counted or published."""
    observation = Observation("")
    try:
        pipeline = chosen_pipeline(request, choices)
        if not isinstance(pipeline, Pipeline):
            return Rerun(faults=pipeline)
        run = await request.executor.run(partial(_filtered, turn, pipeline))
        async with request.runtime.admit_by_size(request.tenant, turn.size, request.reply):
            dispatch, fault = await _ask(turn, pipeline, run, observation)
    except TurnkeeperError as error:
        return Rerun(fault=error.message)
    _log.info("A turn was run again as a test, at the upstream '%s'", dispatch.upstream)
    answer, usage = observation.answer, usage_of(observation.answer.tail)
    return Rerun(
        answer=transcript(answer.data),
        sent=run.sent,
        upstream=dispatch.upstream,
        model=dispatch.model,
        first_token=answer.times[0] - observation.timer.start if answer.times else None,
        duration=observation.duration,
        tokens=(usage.input, usage.output),
        fault=fault,
    )


def _filtered(turn: Turn, pipeline: Pipeline) -> FilterRun:
    context = turn.context
    return run_filters(turn.marked_request, turn.identity, pipeline, context.now, context.memory)


async def _ask(
    turn: Turn, pipeline: Pipeline, run: FilterRun, observation: Observation
) -> tuple[Dispatch, str | None]:
    """The answer goes to ``observation`` alone; the memory tools that a model calls are not carried out."""
    chat = ChatRequest(
        model=pipeline.model,
        headers=turn.request.headers,
        fields=run.fields,
        messages=run.messages,
        streaming=turn.request.field("stream") is True,
    )
    reply = Reply(_drop, observation=observation)
    reply.copy_answer()
    dispatch = Dispatch(chat, pipeline.targets, pipeline.limits, observation.attempts)
    answer = FilteredAnswer(pipeline.answer_filters, run.context)
    try:
        with await dispatch.begin() as upstream_answer:
            await pass_on(upstream_answer, answer, reply)
    except TurnkeeperError as error:
        return dispatch, error.message
    finally:
        answer.close()
    return dispatch, None


async def _drop(_message: object) -> None:
    """Takes what would go to a client."""
