"""One turn, from the client's bytes to the model's."""

import logging
import time
from collections.abc import Mapping
from contextlib import nullcontext

import msgspec

from filters.base import Context, Snapshot
from proxy import chain, relay, session, wire
from proxy.clock import Clock
from proxy.fallback import Fallback
from proxy.flight import InFlight, Line
from proxy.memory import recall
from proxy.memory.store import Key, StoreError
from proxy.pipeline import Pipeline
from proxy.question import Question
from proxy.record import Said
from proxy.reply import Reply
from proxy.rewriting import Rewriting
from proxy.session import Identity
from proxy.silence import Silence
from proxy.wire import Call

_MOST_NAMED = 10
_log = logging.getLogger("turnkeeper")


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What the client posted. Header names are in lower case."""

    headers: Mapping[str, str]
    query: Mapping[str, str]
    body: bytes
    tenant: str


async def take(request: Request, pipeline: Pipeline, reply: Reply, in_flight: InFlight) -> None:
    """Takes one turn: reads it, filters it, asks the model and passes the answer on.

    Raises TurnkeeperError where there is no answer, or only the beginning of one, and Superseded at any time.
    """
    clock = Clock("recall")
    reply.timed_by(clock)
    call = wire.read(request.body, request.headers, request.query)
    if call.ignored:
        _log.info("Extension fields that could not be used: %s", ", ".join(call.ignored[:_MOST_NAMED]))
    who = session.of(call, pipeline.places, request.tenant)
    _introduce(who, reply)
    with in_flight.turn(_line(who, pipeline), call, reply):
        await _answer(call, pipeline, who, reply, clock)


async def _answer(call: Call, pipeline: Pipeline, who: Identity, reply: Reply, clock: Clock) -> None:
    call, known = await _recalled(call, pipeline, who, reply)
    context = _context(who, known)
    clock.begin("filters")
    question = _question(call, pipeline, context)
    fallback = Fallback(question, pipeline)
    clock.begin("upstream")
    answer = Rewriting(pipeline.answer, context)
    tape = reply.taped()
    silence = Silence(pipeline, context, answer, reply, tape) if question.streaming else nullcontext()
    try:
        async with silence:
            with await fallback.begin() as begun:
                await relay.pass_on(begun, answer, reply)
    finally:
        answer.close()
        _record(call, pipeline, who, tape, at=context.now, model=fallback.model)


async def _recalled(call: Call, pipeline: Pipeline, who: Identity, reply: Reply) -> tuple[Call, Snapshot]:
    """What is remembered, and the call with its interrupted answers marked; a dead memory costs neither."""
    key = _key(who)
    if pipeline.memory is None or key is None:
        return call, Snapshot()
    try:
        session = await recall.recall(pipeline.memory.store, key)
        known, heard = recall.known(session, call.messages)
    except Exception as error:  # noqa: BLE001 - whatever ails memory, the caller gets an answer
        if not isinstance(error, StoreError):
            _log.error("A session cannot be read: %s", type(error).__name__)
        reply.add("x-turnkeeper-degraded", "memory")
        return call, Snapshot()
    return (call if heard is call.messages else msgspec.structs.replace(call, messages=heard)), known


def _record(  # noqa: PLR0913 - all of a turn that is worth keeping
    call: Call, pipeline: Pipeline, who: Identity, tape: list[bytes], *, at: float, model: str | None
) -> None:
    key = _key(who)
    if pipeline.memory and key and tape:
        answer = b"".join(tape)
        said = Said(key=key, user=who.user, model=model, window=call.messages, answer=answer, at=at)
        pipeline.memory.recorder.put(said)


def _key(who: Identity) -> Key | None:
    return None if who.session is None or who.background else Key(who.tenant, who.session)


def _line(who: Identity, pipeline: Pipeline) -> Line | None:
    key = _key(who)
    # Whoever names no session may be anyone: strangers take nobody's place.
    return (key, pipeline.name) if key and who.session != pipeline.places.default_session else None


def _question(call: Call, pipeline: Pipeline, context: Context) -> Question:
    return Question(
        headers=call.headers,
        fields=chain.set_fields(pipeline.filters, call.fields, context),
        messages=chain.run(pipeline.filters, call.messages, context),
        streaming=call.field("stream") is True,
    )


def _introduce(who: Identity, reply: Reply) -> None:
    if who.session is not None:
        reply.add("x-turnkeeper-session", session.header_value(who.session))


def _context(who: Identity, memory: Snapshot) -> Context:
    return Context(now=time.time(), tenant=who.tenant, session=who.session, user=who.user, memory=memory)
