"""One turn, top to bottom: from the client's request to the record of its answer."""

import asyncio
import logging
from collections.abc import Mapping
from functools import partial

import msgspec

from proxy.clock import wall_time
from proxy.http.reply import Reply
from proxy.memory.session import NO_ATTEMPT
from proxy.memory.speech import MAX_SPEECH, speech_weight
from proxy.memory.tasks import in_thread_if_long
from proxy.memory.turn_record import TurnRecord
from proxy.observe.observation import AnswerCopy
from proxy.turn import chain
from proxy.turn.active import ActiveTurn, ActiveTurns, TurnClaim, turn_number
from proxy.turn.context import offer_memory_tools, read_memory
from proxy.turn.identity import attempt_of, header_value, identify
from proxy.turn.pipeline import Pipeline
from proxy.turn.relay import relay_answer
from proxy.turn.request import read_request
from proxy.turn.state import Turn
from proxy.upstream.body import ChatRequest
from proxy.upstream.routing import Dispatch

_log = logging.getLogger("turnkeeper")


class RawRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A request for a turn as it came over HTTP. Header names are in lower case."""

    headers: Mapping[str, str]
    query: Mapping[str, str]
    body: bytes
    tenant: str


async def answer_turn(raw: RawRequest, pipeline: Pipeline, reply: Reply, active_turns: ActiveTurns) -> None:
    """Answers one turn: reads it, filters it, asks a model and passes the answer on.

    Raises TurnkeeperError where there is no answer, or only the beginning of one, and Superseded at any time.
    """
    observation = reply.observation
    observation.timer.begin("recall")
    observation.size = len(raw.body)
    large_work = active_turns.large_work
    turn = await large_work.run(partial(read_turn, raw, pipeline), len(raw.body))
    request, identity = turn.request, turn.identity
    if not identity.background:  # which is part of no session, and whose words are kept nowhere
        observation.session, observation.user, observation.turn = identity.session, identity.user, turn.number
    observation.messages = request.messages
    observation.ignored = (*request.ignored, *identity.ignored)
    if identity.session is not None:
        reply.add_header("x-turnkeeper-session", header_value(identity.session))
    if proof := pipeline.places.proof:
        proof.check(identity.user, raw.headers)

    slot = None
    if turn.key is not None and identity.session != pipeline.places.default_session:
        slot = turn.key, pipeline.name  # in the default session, two requests may be of two users
    with ActiveTurn(active_turns, slot, TurnClaim(turn.number, request.messages), reply) as active:
        observation.timer.mark("memory")
        if pipeline.memory is not None:
            await active.others_ended(within=pipeline.memory.store.deadline)
        await read_memory(turn, reply.add_degraded)
        observation.timer.begin("filters")
        turn.filter_log = chain.FilterLog(observation.filters, [] if pipeline.skip_failing_filters else None)
        observation.content = None if identity.background else turn
        await filter_request(turn)
        for name in turn.filter_log.omissions:
            reply.add_degraded(name)
        for name in dict.fromkeys(turn.filter_log.failed or ()):
            _log.warning("The filter '%s' has failed; the turn went on without it", name)
            reply.add_degraded(name)

        composed = await large_work.run(partial(turn.chat.to, pipeline.targets[0]), turn.size)
        dispatch = Dispatch(turn.chat, pipeline.targets, pipeline.limits, observation.attempts, composed)
        observation.primary_model = observation.model = dispatch.model
        observation.timer.begin("upstream")
        observation.listener(observation)
        reply.copy_answer()
        interrupted = False
        try:
            await relay_answer(turn, dispatch, reply)
        except asyncio.CancelledError:
            interrupted = True
            raise
        finally:  # nothing below may wait
            observation.model, observation.upstream = dispatch.model, dispatch.upstream
            observation.fell_back = dispatch.upstream != pipeline.targets[0].name
            if observation.answer.size:
                at = active.asked_at(turn.view.at if turn.view else turn.context.now)
                _record(turn, dispatch, observation.answer, at=at, interrupted=interrupted)


def read_turn(raw: RawRequest, pipeline: Pipeline) -> Turn:
    """The turn that a request asks for, and whose it is; raises RequestError."""
    request = read_request(raw.body, raw.headers, raw.query, pipeline.max_messages)
    identity = identify(request, pipeline.places, raw.tenant)
    key = identity.key
    return Turn(
        pipeline=pipeline,
        request=request,
        identity=identity,
        key=key,
        number=turn_number(request),
        attempt=NO_ATTEMPT if key is None else attempt_of(request),
        window=request.messages,
        size=len(raw.body),
        is_memorable=len(raw.body) <= MAX_SPEECH or speech_weight(request.messages) <= MAX_SPEECH,
    )


async def filter_request(turn: Turn) -> None:
    """Fills ``chat``: the request as the filters leave it, with the memory tools.

    Raises FilterFailed, and RequestError where they leave no message.
    """
    pipeline, request, context = turn.pipeline, turn.request, turn.context
    run = partial(chain.run, pipeline.filters, turn.window, context, turn.filter_log)
    fields = chain.set_fields(pipeline.filters, request.fields, context, turn.filter_log)
    tools = None
    if pipeline.tools:
        tools = offer_memory_tools(fields, pipeline, turn.identity, turn.retracted_texts)
    turn.chat = ChatRequest(
        model=pipeline.model,
        headers=request.headers,
        fields=tools.offer.fields if tools else fields,
        messages=await in_thread_if_long(run, len(turn.window) + len(context.memory.dropped), turn.size),
        streaming=request.field("stream") is True,
        tools=tools,
    )
    if turn.window and not turn.chat.messages:
        error = partial(chain.no_messages_left, pipeline.filters, turn.window, context)
        raise await in_thread_if_long(error, len(turn.window), turn.size)


def _record(turn: Turn, dispatch: Dispatch, answer: AnswerCopy, *, at: float, interrupted: bool) -> None:
    """Hands memory what the client got."""
    memory, identity = turn.pipeline.memory, turn.identity
    if memory is None or turn.key is None:
        return
    if dialogue := dispatch.dialogue:
        dialogue.commit_if_reached(answer.data)
    memory.recorder.put(
        TurnRecord(
            key=turn.key,
            user=identity.user,
            user_from_message=identity.user_from_message,
            turn=turn.number,
            model=dispatch.model,
            window=turn.request.messages,
            answer=answer.data,
            cut=answer.is_cut,
            at=at,
            room=turn.filter_log.room,
            shown_facts=turn.shown_facts,
            shown_call=turn.shown_call,
            view=turn.view,
            prompt=turn.chat.messages,
            tools=bytes(turn.chat.fields.get("tools", b"")),
            had_tool_rounds=dialogue is not None and dialogue.rounds > 0,
            attempt=turn.attempt,
            ended_at=wall_time(),
            size=turn.size + len(answer.data),
            interrupted=interrupted,
        )
    )
