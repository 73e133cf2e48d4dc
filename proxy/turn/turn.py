"""One turn, from the client's request to the record of its answer."""

import logging
import time
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial

import msgspec

from filters.base import Context, Snapshot
from filters.tokens import in_text
from proxy.answer.stream_filters import FilteredAnswer
from proxy.errors import UpstreamRefused
from proxy.http.reply import Reply
from proxy.memory.merge.turn import TurnRecord
from proxy.memory.tasks import in_thread_if_long
from proxy.observe.observation import Observation
from proxy.traces import TurnContent
from proxy.turn import chain, identity, relay
from proxy.turn.active import ActiveTurns, Slot, turn_number
from proxy.turn.context import Recollected, offer_memory_tools, recollect
from proxy.turn.identity import Identity
from proxy.turn.pipeline import Pipeline
from proxy.turn.relay import Silence
from proxy.turn.request import ClientRequest, read_request
from proxy.upstream.request import ChatRequest
from proxy.upstream.routing import Fallback

_log = logging.getLogger("turnkeeper")


class RawRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the client posted. Header names are in lower case."""

    headers: Mapping[str, str]
    query: Mapping[str, str]
    body: bytes
    tenant: str


async def answer_turn(request: RawRequest, pipeline: Pipeline, reply: Reply, in_flight: ActiveTurns) -> None:
    """Takes one turn: reads it, filters it, asks the model and passes the answer on.

    Raises TurnkeeperError where there is no answer, or only the beginning of one, and Superseded at any time.
    """
    reply.observation.timer.begin("recall")
    reply.observation.size = len(request.body)
    call = read_request(request.body, request.headers, request.query, pipeline.max_messages)
    who = identity.identify(call, pipeline.places, request.tenant)
    _introduce(who, call, reply)
    identity.prove(who, pipeline.places, request.headers)
    with in_flight.begin(_seat(who, pipeline), call, reply):
        await _answer(call, pipeline, who, reply)


def _introduce(who: Identity, call: ClientRequest, reply: Reply) -> None:
    watch = reply.observation
    watch.session, watch.user, watch.turn = who.session, who.user, turn_number(call)
    watch.messages, watch.ignored = call.messages, lambda: (*call.ignored, *who.ignored)
    if who.session is not None:
        reply.add_header("x-turnkeeper-session", identity.header_value(who.session))


def _seat(who: Identity, pipeline: Pipeline) -> Slot | None:
    """Where a newer turn would take the place of this one; nowhere for whoever names no session."""
    key = who.key
    if key is None or who.session == pipeline.places.default_session:  # strangers may be anyone
        return None
    return key, pipeline.name


async def _answer(call: ClientRequest, pipeline: Pipeline, who: Identity, reply: Reply) -> None:
    watch = reply.observation
    watch.timer.mark("memory")
    remembered = await recollect(call, pipeline, who, reply.add_degraded)
    context = context_of(who, remembered.snapshot, pipeline, now=time.time())
    watch.timer.begin("filters")
    notes = chain.Notes(watch.filters, [] if pipeline.skips_failing else None)
    question = await _question(remembered, pipeline, who, context, notes)
    _own_up(notes, reply)
    watch.content = content = TurnContent(
        call=call,
        heard=remembered.heard,
        who=who,
        context=context,
        pipeline=pipeline,
        fields=question.fields,
        messages=question.messages,
    )
    fallback = Fallback(question, pipeline.targets, pipeline.limits, watch.attempts)
    watch.primary_model = fallback.model
    watch.timer.begin("upstream")
    reply.record()
    try:
        await _pass_on(content, fallback, reply)
    finally:
        _ended(content, remembered, notes, fallback, watch)


def context_of(who: Identity, snapshot: Snapshot, pipeline: Pipeline, *, now: float) -> Context:
    """What filters may know of a turn."""
    return Context(
        now=now,
        tenant=who.tenant,
        session=who.session,
        user=who.user,
        memory=snapshot,
        count=pipeline.token_counter.count if pipeline.token_counter else in_text,
    )


async def _question(
    remembered: Recollected, pipeline: Pipeline, who: Identity, context: Context, notes: chain.Notes
) -> ChatRequest:
    heard = remembered.heard
    filtered = partial(chain.run, pipeline.filters, heard.messages, context, notes)
    fields = chain.set_fields(pipeline.filters, heard.fields, context, notes)
    tools = offer_memory_tools(fields, pipeline, who, remembered.unsaid(who)) if pipeline.tools else None
    return ChatRequest(
        model=pipeline.model,
        headers=heard.headers,
        fields=tools.offer.fields if tools else fields,
        messages=await in_thread_if_long(filtered, len(heard.messages) + len(context.memory.dropped)),
        streaming=heard.field("stream") is True,
        tools=tools,
    )


def _own_up(notes: chain.Notes, reply: Reply) -> None:
    for name in notes.left_out:
        reply.add_degraded(name)
    for name in dict.fromkeys(notes.skipped or ()):
        _log.warning("The filter '%s' has failed; the turn went on without it", name)
        reply.add_degraded(name)


async def _pass_on(content: TurnContent, fallback: Fallback, reply: Reply) -> None:
    pipeline, context = content.pipeline, content.context
    answer = FilteredAnswer(pipeline.answer, context)
    silence = Silence(pipeline, context, answer, reply, fallback.model)
    try:
        async with silence if fallback.streaming else nullcontext():
            with await fallback.begin() as begun:
                await relay.pass_on(begun, answer, reply, fallback.dialogue)
    except UpstreamRefused as error:
        error.hide(secret for target in pipeline.targets for secret in target.secrets)
        raise
    finally:
        answer.close()


def _ended(
    content: TurnContent, remembered: Recollected, notes: chain.Notes, fallback: Fallback, watch: Observation
) -> None:
    """Notes who answered, and hands memory what the client got: nothing here may wait."""
    pipeline, who = content.pipeline, content.who
    watch.model, watch.upstream = fallback.model, fallback.upstream
    watch.fell_back = fallback.upstream != pipeline.targets[0].name
    if pipeline.memory and watch.chunks and (key := who.key):
        said = TurnRecord(
            key=key,
            user=who.user,
            by_message=who.user_from_message,
            turn=watch.turn,
            model=fallback.model,
            window=content.call.messages,
            answer=b"".join(watch.chunks),
            at=content.context.now,
            room=notes.room,
            shown_facts=remembered.told,
            view=remembered.read,
            shown=content.messages,
            tools=bytes(content.fields.get("tools", b"")),
            again=fallback.rounds > 0,
            attempt=identity.attempt_of(content.call),
            ended_at=time.time(),
        )
        if dialogue := fallback.dialogue:
            dialogue.commit_if_reached(said.answer)
        pipeline.memory.recorder.put(said)
