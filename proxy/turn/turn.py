"""One turn, top to bottom: from the client's request to the record of its answer."""

import asyncio
import logging
from collections.abc import Mapping
from functools import partial

import msgspec

from proxy.clock import wall_time
from proxy.errors import RequestError
from proxy.http.reply import Reply
from proxy.memory.memory import Memory
from proxy.memory.session import NO_ATTEMPT, with_positions
from proxy.memory.speech import MAX_SPEECH, speech_weight
from proxy.memory.tasks import LARGE, MANY_MESSAGES, LargeWork
from proxy.memory.turn_record import TurnRecord
from proxy.turn import chain
from proxy.turn.active import NO_CLAIM, ActiveTurn, ActiveTurns, TurnClaim, request_turn_id
from proxy.turn.context import offer_memory_tools, read_memory
from proxy.turn.identity import attempt_of, header_value, identify
from proxy.turn.pipeline import Pipeline
from proxy.turn.relay import relay_answer
from proxy.turn.request import read_request
from proxy.turn.state import Turn, TurnContent
from proxy.upstream.body import ChatRequest, UpstreamRequest
from proxy.upstream.routing import Dispatch

_log = logging.getLogger("turnkeeper")


class RawRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An HTTP request for a turn. Header names are in lower case."""

    headers: Mapping[str, str]
    query: Mapping[str, str]
    body: bytes
    tenant: str


async def answer_turn(raw: RawRequest, pipeline: Pipeline, reply: Reply, active_turns: ActiveTurns) -> None:
    """Answers one turn: decodes the request, filters it, asks a model and relays the answer.

    Raises TurnkeeperError where there is no answer, or only the beginning of one, and Superseded at any time.
    """
    observation, large_work = reply.observation, active_turns.large_work
    report = observation.report
    observation.timer.begin("recall")
    observation.size = len(raw.body)
    if len(raw.body) < LARGE:
        turn = read_turn(raw, pipeline)
    else:
        turn = await large_work.run(partial(read_turn, raw, pipeline))
    _announce(turn, raw, reply)

    slot, claim = None, NO_CLAIM
    if turn.key is not None and turn.identity.session != pipeline.id_places.default_session:
        # In the default session, two requests may be of two users.
        slot, claim = (turn.key, pipeline.name), TurnClaim(turn.turn_id, turn.request.messages)
    with ActiveTurn(active_turns, slot, claim, reply) as active:
        observation.timer.mark("memory")
        if active.others and pipeline.memory is not None:
            await active.others_ended(within=pipeline.memory.store.deadline)
        await read_memory(turn, reply.add_degraded)
        observation.timer.begin("filters")
        report.filters = turn.filter_log.times
        content = None
        if not turn.identity.background:
            shown = turn.shown_call or (turn.view and turn.view.session.shown_call)
            content = TurnContent(
                headers=raw.headers,
                query=raw.query,
                body=raw.body,
                identity=turn.identity,
                marked=None if turn.window is turn.request.messages else turn.window,
                now=turn.context.now,
                memory=turn.context.memory,
                last_call_speakers=shown.speakers if shown else (),
            )
            observation.content, observation.route = content, pipeline
        composed = await _prompt(turn, reply, large_work)

        dispatch = Dispatch(turn.chat, pipeline.targets, pipeline.limits, report.attempts, composed)
        report.primary_model = report.model = dispatch.model
        observation.timer.begin("upstream")
        observation.on_progress(observation)
        reply.note_sent = observation.answer.add
        context, memory = turn.context, pipeline.memory
        record = _begin_record(turn, dispatch.model, memory) if turn.key and memory else None
        if slot and content and turn.size < LARGE:
            active.release_claim(partial(_claim, turn.turn_id, content))
        # To free what was decoded after the answer is slower: it has left the processor's caches by then.
        del turn, raw, claim, composed
        cancelled = False
        try:
            await relay_answer(pipeline, context, dispatch, reply)
        except asyncio.CancelledError:
            cancelled = True
            raise
        finally:  # nothing below may wait
            report.model, report.upstream = dispatch.model, dispatch.upstream
            observation.sent_body = dispatch.sent_body
            report.fell_back = dispatch.upstream != pipeline.targets[0].name
            if record and memory and observation.answer.size:
                answer, dialogue = observation.answer, dispatch.dialogue
                data = answer.data
                if dialogue:
                    dialogue.commit_if_reached(data)
                memory.recorder.put(
                    msgspec.structs.replace(
                        record,
                        model=dispatch.model,
                        answer=data,
                        cut=answer.is_cut,
                        at=active.asked_at(record.at),
                        had_tool_rounds=dialogue is not None and dialogue.rounds > 0,
                        ended_at=wall_time(),
                        size=record.size + len(data),
                        cancelled=cancelled,
                    )
                )


def _announce(turn: Turn, raw: RawRequest, reply: Reply) -> None:
    """Reports whose turn it is; raises Unauthorized where the user's id lacks its HMAC."""
    identity, report = turn.identity, reply.observation.report
    if not identity.background:  # which is part of no session, and whose words are kept nowhere
        report.session, report.user, report.turn_id = identity.session, identity.user, turn.turn_id
    report.ignored = (*turn.request.ignored, *identity.ignored)
    if identity.session is not None:
        reply.add_header("x-turnkeeper-session", header_value(identity.session))
    if proof := turn.pipeline.id_places.proof:
        proof.check(identity.user, raw.headers)


async def _prompt(turn: Turn, reply: Reply, large_work: LargeWork) -> UpstreamRequest:
    """Filters the turn, and composes what the first target is sent."""
    target, messages = turn.pipeline.targets[0], len(turn.window) + len(turn.context.memory.dropped)
    if turn.size >= LARGE or messages >= MANY_MESSAGES:
        # Filters give way to other threads, and an encoder does not.
        await asyncio.to_thread(filter_request, turn)
        composed = await large_work.run(partial(turn.chat.to, target))
    else:
        filter_request(turn)
        composed = turn.chat.to(target)
    log = turn.filter_log
    for name in log.omissions:
        reply.add_degraded(name)
    for name in dict.fromkeys(log.failed or ()):
        _log.warning("The filter '%s' has failed; the turn went on without it", name)
        reply.add_degraded(name)
    return composed


def read_turn(raw: RawRequest, pipeline: Pipeline) -> Turn:
    """The turn of a request, with its session and user; raises RequestError."""
    request = read_request(raw.body, raw.headers, raw.query, pipeline.max_messages)
    identity = identify(request, pipeline.id_places, raw.tenant)
    key = identity.key
    return Turn(
        pipeline=pipeline,
        request=request,
        identity=identity,
        key=key,
        turn_id=request_turn_id(request),
        attempt=NO_ATTEMPT if key is None else attempt_of(request),
        window=request.messages,
        size=len(raw.body),
        filter_log=chain.FilterLog(failed=[] if pipeline.skip_failing_filters else None),
        is_memorable=len(raw.body) <= MAX_SPEECH or speech_weight(request.messages) <= MAX_SPEECH,
    )


def filter_request(turn: Turn) -> None:
    """Fills ``chat``: the request as the filters leave it, with the memory tools.

    Raises FilterFailed, and RequestError where they leave no message.
    """
    pipeline, request, context = turn.pipeline, turn.request, turn.context
    fields = chain.set_fields(pipeline.filters, request.fields, context, turn.filter_log)
    tools = None
    if pipeline.tools:
        tools = offer_memory_tools(fields, pipeline, turn.identity, turn.retracted_texts, at=context.now)
    turn.chat = ChatRequest(
        model=pipeline.model,
        headers=request.headers,
        fields=tools.offer.fields if tools else fields,
        messages=chain.run(pipeline.filters, turn.window, context, turn.filter_log),
        streaming=request.field("stream") is True,
        tools=tools,
    )
    if turn.window and not turn.chat.messages:
        raise chain.no_messages_left(pipeline.filters, turn.window, context)


def _claim(turn_id: int | None, content: TurnContent) -> TurnClaim:
    try:
        return TurnClaim(turn_id, content.messages)
    except RequestError:  # it is nested as deeply as can be read, and read from further up the stack
        return TurnClaim(turn_id, ())


def _begin_record(turn: Turn, model: str, memory: Memory) -> TurnRecord:
    """The record of a turn for memory, still without its answer."""
    identity, view, chat = turn.identity, turn.view, turn.chat
    if view and turn.size < LARGE:
        view = view.condensed()
    models = {model, *[target.model for target in turn.pipeline.targets[1:] if target.model]}
    is_sample = any(map(memory.writer.scales.wants_sample, models))
    assert turn.key is not None  # noqa: S101 - the caller asks for no other turn's
    return TurnRecord(
        key=turn.key,
        user=identity.user,
        user_from_message=identity.user_from_message,
        turn_id=turn.turn_id,
        window=view.window if view else turn.request.messages,
        answer=b"",
        at=view.at if view else turn.context.now,
        room=turn.filter_log.room,
        shown_facts=with_positions(turn.shown_facts, chat.messages),
        shown_call=turn.shown_call,
        view=view,
        prompt=chat.messages if is_sample else (),
        tools=bytes(chat.fields.get("tools", b"")) if is_sample else b"",
        attempt=turn.attempt,
        size=turn.size,
    )
