"""One turn, from the client's bytes to the model's."""

import logging
import time
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial

import msgspec

from filters.base import Context, Snapshot
from filters.tokens import in_text
from proxy import attempts, chain, relay, session, toolbox, wire
from proxy.flight import InFlight, Line
from proxy.memory.store import Key
from proxy.pipeline import Pipeline
from proxy.proof import HEADER as PROVEN_BY
from proxy.question import Question
from proxy.recollection import recollect
from proxy.record import Said
from proxy.reply import Reply
from proxy.rewriting import Rewriting
from proxy.routing.fallback import Fallback
from proxy.session import Identity
from proxy.silence import Silence
from proxy.supersession import number
from proxy.trace import Content
from proxy.wire import Call

_log = logging.getLogger("turnkeeper")
_DEGRADED = "x-turnkeeper-degraded"


class Request(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the client posted. Header names are in lower case."""

    headers: Mapping[str, str]
    query: Mapping[str, str]
    body: bytes
    tenant: str


async def take(request: Request, pipeline: Pipeline, reply: Reply, in_flight: InFlight) -> None:
    """Takes one turn: reads it, filters it, asks the model and passes the answer on.

    Raises TurnkeeperError where there is no answer, or only the beginning of one, and Superseded at any time.
    """
    reply.watch.clock.begin("recall")
    reply.watch.size = len(request.body)
    call = wire.read(request.body, request.headers, request.query)
    who = session.of(call, pipeline.places, request.tenant)
    _introduce(who, call, reply)
    if pipeline.places.proof:
        pipeline.places.proof.check(who.user, request.headers.get(PROVEN_BY))
    with in_flight.turn(_line(who, pipeline), call, reply):
        await _answer(call, pipeline, who, reply)


async def _answer(call: Call, pipeline: Pipeline, who: Identity, reply: Reply) -> None:
    watch = reply.watch
    watch.clock.mark("memory")
    heard, known, told, read = await recollect(call, pipeline, who, partial(reply.add, _DEGRADED))
    context = _context(who, known, pipeline)
    watch.clock.begin("filters")
    notes = chain.Notes(watch.filters, [] if pipeline.skips_failing else None)
    question = _question(heard, pipeline, who, context, notes)
    _own_up(notes, reply)
    watch.content = _content(call, heard, who, context, pipeline, question)
    fallback = Fallback(question, pipeline, watch.tries)
    watch.wanted = fallback.model
    watch.clock.begin("upstream")
    tape = reply.taped()
    try:
        await _pass_on(fallback, question, pipeline, context, reply, tape)
    finally:
        watch.model, watch.upstream = fallback.model, fallback.upstream
        watch.fell_back = fallback.upstream != pipeline.targets[0].name
        if pipeline.memory and who.key and tape:
            said = _said(call, question, notes, key=who.key, answer=b"".join(tape), at=context.now)
            asked = {
                "user": who.user,
                "by_message": who.by_message,
                "turn": watch.turn,
                "model": fallback.model,
                "again": fallback.rounds > 0,
            }
            pipeline.memory.recorder.put(msgspec.structs.replace(said, told=told, read=read, **asked))


async def _pass_on(  # noqa: PLR0913, PLR0917
    fallback: Fallback,
    question: Question,
    pipeline: Pipeline,
    context: Context,
    reply: Reply,
    tape: list[bytes],
) -> None:
    answer = Rewriting(pipeline.answer, context)
    speaking = Silence(pipeline, context, answer, reply, tape, fallback.model)
    try:
        async with speaking if question.streaming else nullcontext():
            with await fallback.begin() as begun:
                await relay.pass_on(begun, answer, reply)
    finally:
        answer.close()


def _content(  # noqa: PLR0913, PLR0917
    call: Call, heard: Call, who: Identity, context: Context, pipeline: Pipeline, question: Question
) -> Content:
    return Content(
        call=call,
        heard=heard,
        who=who,
        context=context,
        pipeline=pipeline,
        fields=question.fields,
        messages=question.messages,
    )


def _said(  # noqa: PLR0913 - all of a turn that is worth keeping
    call: Call, question: Question, notes: chain.Notes, *, key: Key, answer: bytes, at: float
) -> Said:
    return Said(
        key=key,
        window=call.messages,
        answer=answer,
        at=at,
        room=notes.room,
        shown=question.messages,
        tools=bytes(question.fields.get("tools", b"")),
        attempt=attempts.of(call),
        ended=time.time(),
    )


def _line(who: Identity, pipeline: Pipeline) -> Line | None:
    # Whoever names no session may be anyone: strangers take nobody's place.
    named = who.session != pipeline.places.default_session
    return (key, pipeline.name) if named and (key := who.key) else None


def _own_up(notes: chain.Notes, reply: Reply) -> None:
    for name in notes.left_out:
        reply.add(_DEGRADED, name)
    for name in dict.fromkeys(notes.skipped or ()):
        _log.warning("The filter '%s' has failed; the turn went on without it.", name)
        reply.add(_DEGRADED, name)


def _question(
    call: Call, pipeline: Pipeline, who: Identity, context: Context, notes: chain.Notes
) -> Question:
    fields = chain.set_fields(pipeline.filters, call.fields, context, notes)
    tools = toolbox.tools(fields, pipeline, who)
    return Question(
        headers=call.headers,
        fields=tools.offer.fields if tools else fields,
        messages=chain.run(pipeline.filters, call.messages, context, notes),
        streaming=call.field("stream") is True,
        tools=tools,
    )


def _introduce(who: Identity, call: Call, reply: Reply) -> None:
    watch = reply.watch
    watch.session, watch.user, watch.turn = who.session, who.user, number(call)
    watch.asked, watch.ignored = call.messages, lambda: (*call.ignored, *who.ignored)
    if who.session is not None:
        reply.add("x-turnkeeper-session", session.header_value(who.session))


def _context(who: Identity, memory: Snapshot, pipeline: Pipeline) -> Context:
    return Context(
        now=time.time(),
        tenant=who.tenant,
        session=who.session,
        user=who.user,
        memory=memory,
        count=pipeline.exact.count if pipeline.exact else in_text,
    )
