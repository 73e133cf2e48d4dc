"""A kept turn that is run again with another model, pipeline or filters: a test that nothing records."""

import logging
from collections.abc import Sequence

import msgspec

from proxy.answer.transcript import Transcript, transcript
from proxy.errors import TurnkeeperError
from proxy.http.reply import NoClient, Reply
from proxy.observe.observation import Observation, usage_of
from proxy.page.draft import Choices, Draft
from proxy.page.request import PageRequest
from proxy.page.trials import AnswerTrial, DraftErrors, FilteredCall, FilteredData, TurnTrial, read_result
from proxy.settings.diagnostics import Diagnostic
from proxy.turn.relay import pass_on
from proxy.turn.state import TurnContent
from proxy.upstream.body import ChatRequest
from proxy.upstream.routing import Dispatch

_log = logging.getLogger("turnkeeper")


class Rerun(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it. Times are in seconds; ``sent`` is the body for the first upstream.

    ``error`` is why there is no answer, or no whole one, and ``step_errors`` what is wrong with the steps.
    """

    answer: Transcript = Transcript()
    sent: bytes = b""
    upstream: str | None = None
    model: str | None = None
    first_token: float | None = None
    duration: float = 0.0
    tokens: tuple[int | None, int | None] = (None, None)
    error: str | None = None
    step_errors: Sequence[Diagnostic] = ()


async def run_again(request: PageRequest, content: TurnContent, choices: Choices) -> Rerun:
    """Asks a model once more, with memory as the turn had it; nothing is written, counted or published.

    The memory tools that a model calls are not carried out.
    """
    pipelines, drafts = request.runtime.pipelines, request.drafts
    draft = Draft.of(choices, pipelines, request.tenant)
    try:
        async with request.runtime.admit_by_size(request.tenant, content.size, request.reply):
            call = read_result(await drafts.run(TurnTrial(draft=draft, content=content)))
            if isinstance(call, DraftErrors):
                return Rerun(error=call.error, step_errors=call.step_errors)
            assert isinstance(call, FilteredCall)  # noqa: S101 - a turn's trial has no other result
            pipeline = pipelines[choices.pipeline]
            chat = ChatRequest(
                model=draft.pipeline.model,
                headers=content.request.headers,
                fields=call.fields,
                messages=call.messages,
                streaming=content.is_streaming,
            )
            sent = chat.to(pipeline.targets[0]).body
            observation = Observation("")
            dispatch = Dispatch(chat, pipeline.targets, pipeline.limits, observation.attempts)
            failure = await _ask(dispatch, observation)
            data, duration = observation.answer.data, observation.duration
            if call.has_answer_filters and data:
                answer = read_result(await drafts.run(AnswerTrial(draft=draft, content=content, data=data)))
                if isinstance(answer, FilteredData):
                    data, failure = answer.data, failure or answer.error
                elif isinstance(answer, DraftErrors):
                    data, failure = b"", answer.error
    except TurnkeeperError as error:
        return Rerun(error=error.message)
    _log.info("A turn was run again as a test, at the upstream '%s'", dispatch.upstream)
    times, usage = observation.answer.times, usage_of(observation.answer.tail)
    return Rerun(
        answer=transcript(data),
        sent=sent,
        upstream=dispatch.upstream,
        model=dispatch.model,
        first_token=times[0] - observation.timer.start if times else None,
        duration=duration,
        tokens=(usage.input, usage.output),
        error=failure,
    )


async def _ask(dispatch: Dispatch, observation: Observation) -> str | None:
    """Why there is no whole answer, if there is none; it goes to ``observation`` alone."""
    reply = Reply(NoClient(), observation)
    reply.note_sent = observation.answer.add
    try:
        await pass_on(await dispatch.begin(), None, reply)
    except TurnkeeperError as error:
        return error.message
    return None
