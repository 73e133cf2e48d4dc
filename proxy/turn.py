"""One turn, from the client's bytes to the model's."""

import asyncio
import time
from collections.abc import Callable, Mapping

import msgspec

from filters.base import Context, Fields, Snapshot
from proxy import chain, kinds, relay, session, wire
from proxy.errors import RequestError, UpstreamBroken
from proxy.pipeline import Pipeline, Target
from proxy.place import decoded
from proxy.reply import Reply
from proxy.session import Identity
from proxy.upstream import Headers, Response
from proxy.wire import Call

_PATH = "/chat/completions"


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What the client posted. Header names are in lower case."""

    headers: Mapping[str, str]
    query: Mapping[str, str]
    body: bytes
    tenant: str


async def take(request: Request, pipeline: Pipeline, reply: Reply) -> None:
    """Takes one turn: reads it, filters it, asks the model and passes the answer on.

    Raises TurnkeeperError where nothing has been answered yet.
    """
    clock = Clock()
    call = wire.read(request.body, request.headers, request.query)
    who = session.of(call, pipeline.places, request.tenant)
    _introduce(who, reply)
    memory = Snapshot()
    clock.lap("recall")
    context = _context(who, memory)
    messages = chain.run(pipeline.filters, call.messages, context)
    fields = chain.set_fields(pipeline.filters, call.fields, context)
    target = pipeline.targets[0]
    model = chosen_model(fields, pipeline, target)
    body = kinds.compose(target.kind, fields, messages, model=model, allow=target.allow)
    clock.lap("filters")
    await _ask(target, call, body, reply, clock)


async def _ask(target: Target, call: Call, body: bytes, reply: Reply, clock: "Clock") -> None:
    streaming = call.field("stream") is True
    total = clock.started + target.total
    first = min(total, clock.started + target.first_token) if streaming else total
    response = await target.upstream.open("POST", _PATH, _headers(target, call), body, due=first)
    try:
        await _pass_on(response, reply, total, lambda: clock.report(reply))
    finally:
        response.close()


async def _pass_on(response: Response, reply: Reply, total: float, begun: Callable[[], None]) -> None:
    if response.status >= 400:  # noqa: PLR2004
        raise await relay.refused(response)
    if response.status >= 300:  # noqa: PLR2004
        raise UpstreamBroken(f"The upstream answered {response.status}, a redirection; correct its base_url.")
    if relay.is_stream(response.headers):
        await relay.stream(response, reply, total=total, begun=begun)
    else:
        await relay.whole(response, reply, begun=begun)


class Clock:
    """How long each stage of a turn took, for the ``Server-Timing`` header."""

    def __init__(self) -> None:
        self.started = asyncio.get_running_loop().time()
        self._last = time.perf_counter()
        self._laps: list[str] = []

    def lap(self, stage: str) -> None:
        """Ends a stage; the next one begins."""
        now = time.perf_counter()
        self._laps.append(f"{stage};dur={(now - self._last) * 1000:.2f}")
        self._last = now

    def report(self, reply: Reply) -> None:
        """Ends the last stage and tells the client."""
        self.lap("upstream")
        reply.add("server-timing", ", ".join(self._laps))


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
