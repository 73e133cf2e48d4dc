"""One turn, from the client's bytes to the model's."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

import msgspec

from filters.base import Context, Fields, Snapshot
from filters.episode import Episode
from proxy import chain, kinds, relay, session, wire
from proxy.clock import Clock
from proxy.errors import RequestError, UpstreamBroken
from proxy.flight import InFlight, Line
from proxy.lately import lately
from proxy.memory import recall
from proxy.memory.store import Key, StoreError
from proxy.pipeline import Pipeline, Target
from proxy.place import decoded
from proxy.record import Said
from proxy.reply import Reply
from proxy.rewriting import Rewriting
from proxy.session import Identity
from proxy.silence import Silence
from proxy.upstream import Headers, Response
from proxy.wire import Call

_PATH = "/chat/completions"
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

    Raises TurnkeeperError where nothing has been answered yet, and Superseded at any time.
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
    target = pipeline.targets[0]
    left_out: list[str] = []
    question = _question(call, pipeline, target, context, left_out.append)
    for name in left_out:
        reply.add("x-turnkeeper-degraded", name)
    clock.begin("upstream")
    answer = Rewriting(pipeline.answer, context)
    silence = Silence(pipeline.answer if question.streaming else (), context, answer, reply)
    tape = reply.taped()
    try:
        async with silence:
            await _ask(target, question, answer, reply)
    finally:
        answer.close()
        trimmed = bool(left_out)
        _record(call, pipeline, who, tape, at=context.now, model=question.model, trimmed=trimmed)


async def _recalled(call: Call, pipeline: Pipeline, who: Identity, reply: Reply) -> tuple[Call, Snapshot]:
    """What memory tells of the session and of the agent, asked at once."""
    if pipeline.lately is None or pipeline.memory is None or who.background:
        return await _of_session(call, pipeline, who, reply)
    (call, known), episodes = await asyncio.gather(
        _of_session(call, pipeline, who, reply), _of_agent(call, pipeline, who, reply)
    )
    return call, msgspec.structs.replace(known, episodes=episodes)


async def _of_agent(call: Call, pipeline: Pipeline, who: Identity, reply: Reply) -> tuple[Episode, ...]:
    """What the agent did lately; nothing where memory is dead."""
    if pipeline.memory is None or pipeline.lately is None:
        return ()
    try:
        now = time.time()
        return await lately(pipeline.lately, pipeline.memory.episodes, call, tenant=who.tenant, now=now)
    except Exception as error:  # noqa: BLE001 - whatever ails memory, the caller gets an answer
        if not isinstance(error, StoreError):
            _log.error("Episodes cannot be read: %s", type(error).__name__)
        reply.add("x-turnkeeper-degraded", "episodes")
        return ()


async def _of_session(call: Call, pipeline: Pipeline, who: Identity, reply: Reply) -> tuple[Call, Snapshot]:
    """What is remembered, and the call with its interrupted answers marked; a dead memory costs neither."""
    key = _key(who)
    if pipeline.memory is None or key is None:
        return call, Snapshot()
    try:
        session = await recall.recall(pipeline.memory.store, key)
        known, heard = recall.known(session, call.messages, injecting=pipeline.injecting)
    except Exception as error:  # noqa: BLE001 - whatever ails memory, the caller gets an answer
        if not isinstance(error, StoreError):
            _log.error("A session cannot be read: %s", type(error).__name__)
        reply.add("x-turnkeeper-degraded", "memory")
        return call, Snapshot()
    return (call if heard is call.messages else msgspec.structs.replace(call, messages=heard)), known


def _record(  # noqa: PLR0913 - all of a turn that is worth keeping
    call: Call,
    pipeline: Pipeline,
    who: Identity,
    tape: list[bytes],
    *,
    at: float,
    model: str | None,
    trimmed: bool,
) -> None:
    key = _key(who)
    if pipeline.memory and key and tape:
        answer = b"".join(tape)
        said = Said(
            key=key,
            user=who.user,
            model=model,
            window=call.messages,
            answer=answer,
            at=at,
            trimmed=trimmed,
        )
        pipeline.memory.recorder.put(said)


def _key(who: Identity) -> Key | None:
    return None if who.session is None or who.background else Key(who.tenant, who.session)


def _line(who: Identity, pipeline: Pipeline) -> Line | None:
    key = _key(who)
    # Whoever names no session may be anyone: strangers take nobody's place.
    return (key, pipeline.name) if key and who.session != pipeline.places.default_session else None


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What the model is sent, and when its first delta and its last byte are due, in the loop's time."""

    headers: Headers
    body: bytes
    model: str | None
    streaming: bool
    first: float
    total: float


def _question(
    call: Call, pipeline: Pipeline, target: Target, context: Context, tell: Callable[[str], None]
) -> Question:
    messages = chain.run(pipeline.filters, call.messages, context, tell)
    fields = chain.set_fields(pipeline.filters, call.fields, context)
    model = chosen_model(fields, pipeline, target)
    body = kinds.compose(target.kind, fields, messages, model=model, allow=target.allow)
    now = asyncio.get_running_loop().time()
    total = now + target.total
    streaming = call.field("stream") is True
    first = min(total, now + target.first_token) if streaming else total
    asked = model or decoded(fields.get("model"))
    return Question(
        headers=_headers(target, call),
        body=body,
        model=asked if isinstance(asked, str) else None,
        streaming=streaming,
        first=first,
        total=total,
    )


async def _ask(target: Target, question: Question, answer: Rewriting, reply: Reply) -> None:
    response = await target.upstream.open("POST", _PATH, question.headers, question.body, due=question.first)
    try:
        await _pass_on(response, reply, answer, question.total)
    finally:
        response.close()


async def _pass_on(response: Response, reply: Reply, answer: Rewriting, total: float) -> None:
    if response.status >= 400:  # noqa: PLR2004
        raise await relay.refused(response)
    if response.status >= 300:  # noqa: PLR2004
        raise UpstreamBroken(f"The upstream answered {response.status}, a redirection; correct its base_url.")
    if relay.is_stream(response.headers):
        await relay.stream(response, reply, answer, total=total)
    elif reply.started:
        raise UpstreamBroken("The upstream was asked for a stream, and answered with something else.")
    else:
        await relay.whole(response, reply, answer)


def _introduce(who: Identity, reply: Reply) -> None:
    if who.session is not None:
        reply.add("x-turnkeeper-session", session.header_value(who.session))


def _context(who: Identity, memory: Snapshot) -> Context:
    return Context(now=time.time(), tenant=who.tenant, session=who.session, user=who.user, memory=memory)


def chosen_model(fields: Fields, pipeline: Pipeline, target: Target) -> str | None:
    """The model that the settings put in place of the client's; RequestError where nobody named one."""
    model = pipeline.model or target.model
    if not model and not decoded(fields.get("model")):
        raise RequestError("'model' is missing; name a model, or set UPSTREAM_MODEL.", param="model")
    return model


def _headers(target: Target, call: Call) -> Headers:
    own = list(target.headers)
    wanted = (*target.forward_headers, "authorization") if target.forward_key else target.forward_headers
    sent = ((name, call.headers.get(name)) for name in wanted)
    own.extend((name.encode("latin-1"), value.encode("latin-1")) for name, value in sent if value)
    return own
