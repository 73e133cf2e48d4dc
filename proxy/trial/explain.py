"""All that would happen to one call, as it is told."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal
from urllib.parse import parse_qsl, urlsplit

import msgspec
from msgspec import UNSET, UnsetType

from filters.base import Context, Fields, Messages, RequestFilter, Snapshot
from filters.message import Message
from proxy.errors import RequestError, filter_name
from proxy.trial import disclosure
from proxy.trial.disclosure import Stripped, stripped_fields
from proxy.turn import chain, identity
from proxy.turn.context import offer_memory_tools, recollect
from proxy.turn.identity import Identity, decode_raw
from proxy.turn.pipeline import Pipeline
from proxy.turn.request import ClientRequest, read_request
from proxy.turn.turn import RawRequest, context_of
from proxy.upstream.request import ChatRequest

MemoryUse = Literal["read", "left out", "none"]
"""Whether memory was read, though there is some, or there is none for a call."""
_FORM = 'write a request\'s body, or {"headers": {…}, "path": "…", "body": {…}}'
_top_level = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_NOTHING = Snapshot()
_FIELDS = tuple(name for name in Message.__struct_fields__ if name != "others")


class ExplainedIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Whose turn it is, and the places that said so; ``None`` where no place did."""

    tenant: str
    session: str | None
    session_from: str | None
    user: str | None
    user_from: str | None
    background: bool


class FieldChange(msgspec.Struct, frozen=True):
    """A field of the top level before and after a filter; ``UNSET`` where it is not there."""

    name: str
    before: Any = UNSET
    after: Any = UNSET


class FilterStep(msgspec.Struct, frozen=True, kw_only=True):
    """What one filter did. ``before`` and ``after`` are messages, there only where the filter changed any.

    ``options`` are those that the configuration sets. One that has ``failed`` was passed over.
    """

    filter: str
    options: Mapping[str, Any]
    changed: bool
    failed: bool = False
    microseconds: int
    before: Sequence[Mapping[str, Any]] | UnsetType = UNSET
    after: Sequence[Mapping[str, Any]] | UnsetType = UNSET
    fields: tuple[FieldChange, ...] = ()


class Destination(msgspec.Struct, frozen=True, kw_only=True):
    """Where the request would go, and which model it would ask for."""

    upstream: str
    kind: str
    model: str | None


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """All that would happen to one call.

    Values of fields that neither OpenAI nor a known engine names are not in it, only their type and length.
    ``sent`` is the body that the upstream would get; ``stripped`` is what it would not. ``memory`` is whether
    it was read, left out, or there is none for this call; ``degraded`` is what it did not tell, and what else
    was left out. ``heard`` are the messages with what memory marks in them, where it does; ``tools`` are the
    proxy's own that the model would be offered.
    """

    pipeline: str
    whose: ExplainedIdentity
    ignored: tuple[str, ...]
    memory: MemoryUse
    degraded: tuple[str, ...]
    messages: Sequence[Mapping[str, Any]]
    heard: Sequence[Mapping[str, Any]] | UnsetType = UNSET
    tools: tuple[str, ...]
    steps: tuple[FilterStep, ...]
    destination: Destination
    stripped: tuple[Stripped, ...]
    sent: Mapping[str, Any]


def request_from_file(data: bytes, headers: Mapping[str, str], tenant: str = "default") -> RawRequest:
    """The request that a file holds; ``headers``, in lower case, go before those of the file.

    Raises RequestError.
    """
    wrapped = _wrapped(data)
    named = {**_headers(wrapped.get("headers", {})), **headers}
    query = dict(parse_qsl(_query_of(wrapped.get("path", "/"))))
    body = bytes(wrapped["body"]) if "body" in wrapped else data
    return RawRequest(headers=named, query=query, body=body, tenant=tenant)


def parse_header(given: str) -> tuple[str, str]:
    """A header that is written as ``Name: value``. Raises RequestError."""
    name, colon, value = given.partition(":")
    if not colon or not name.strip():
        raise RequestError("Write a header as 'Name: value'.")
    return name.strip().lower(), value.strip()


def _wrapped(data: bytes) -> dict[str, Any]:
    """The parts of a request, the body as it is written; empty where the file is the body itself."""
    try:
        fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}  # reading the body says what is wrong with it
    if "body" not in fields or "messages" in fields:
        return {}
    return {name: raw if name == "body" else _decoded(name, raw) for name, raw in fields.items()}


def _decoded(name: str, raw: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        raise RequestError(f"'{name}' cannot be read; {_FORM}.") from None


def _headers(given: object) -> Mapping[str, str]:
    if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
        raise RequestError(f"'headers' must be names and texts; {_FORM}.", param="headers")
    return {name.lower(): value for name, value in given.items()}


def _query_of(path: object) -> str:
    try:
        return urlsplit(path).query if isinstance(path, str) else _no_path()
    except ValueError:
        return _no_path()


def _no_path() -> str:
    raise RequestError(f"'path' must be a path; {_FORM}.", param="path")


class FilterRun(msgspec.Struct, frozen=True, kw_only=True):
    """What the filters made of a call, and the very body that the upstream would get."""

    messages: Messages
    fields: Fields
    steps: tuple[FilterStep, ...]
    tools: tuple[str, ...]
    degraded: tuple[str, ...]
    sent: bytes


async def explain_with_memory(request: RawRequest, pipeline: Pipeline, now: float) -> Explanation:
    """What would become of a request that comes at ``now``, with all that memory tells of it, as in a turn.

    Raises what ``of`` does.
    """
    # In threads: it takes a few times as long as a turn's own work, and callers wait on the loop.
    call, who = await asyncio.to_thread(_read, request, pipeline)
    lacking: list[str] = []
    found = await recollect(call, pipeline, who, lacking.append)
    told = await asyncio.to_thread(explain_call, found.heard, who, pipeline, now, found.snapshot)
    return msgspec.structs.replace(
        told,
        degraded=(*lacking, *told.degraded),
        messages=_disclosed(call.messages),
        heard=UNSET if found.heard is call else told.messages,
    )


def explain_request(
    request: RawRequest, pipeline: Pipeline, now: float, *, remembers: bool = False
) -> Explanation:
    """What would become of a request that comes at ``now``, in seconds since 1970, were nothing remembered.

    ``remembers`` is whether something is, though not by this pipeline. Raises RequestError for one that a
    turn would refuse too, Unauthorized for a user without proof, TurnkeeperError where a filter fails.
    """
    return explain_call(*_read(request, pipeline), pipeline, now, remembers=remembers)


def _read(request: RawRequest, pipeline: Pipeline) -> tuple[ClientRequest, Identity]:
    call = read_request(request.body, request.headers, request.query, pipeline.max_messages)
    who = identity.identify(call, pipeline.places, request.tenant)
    identity.prove(who, pipeline.places, request.headers)
    return call, who


def explain_call(  # noqa: PLR0913 - all that a turn has
    call: ClientRequest,
    who: Identity,
    pipeline: Pipeline,
    now: float,
    memory: Snapshot | None = None,
    *,
    remembers: bool = False,
) -> Explanation:
    """What would become of a call that comes at ``now``, in seconds since 1970.

    ``memory`` is what its filters know of the session, ``None`` where that was not read. Raises RequestError
    where no model is named.
    """
    outcome = run_filters(call, who, pipeline, now, memory or _NOTHING)
    target, body = pipeline.targets[0], _top_level(outcome.sent)
    sent: dict[str, Any] = {name: decode_raw(raw) for name, raw in body.items()}
    return Explanation(
        pipeline=pipeline.name,
        whose=_whose(call, who, pipeline),
        ignored=(*call.ignored, *who.ignored),
        memory=_memory(who, memory, remembers=remembers or pipeline.memory is not None),
        degraded=outcome.degraded,
        messages=_disclosed(call.messages),
        tools=outcome.tools,
        steps=outcome.steps,
        destination=Destination(
            upstream=target.name, kind=target.provider.name, model=_name(sent.get("model"))
        ),
        stripped=stripped_fields(
            outcome.fields, list(map(message_dict, outcome.messages)), sent, target.provider
        ),
        sent=disclosure.shown_body(body, sent["messages"], target.provider),
    )


def _memory(who: Identity, memory: Snapshot | None, *, remembers: bool) -> MemoryUse:
    if who.background or not remembers:
        return "none"
    return "left out" if memory is None else "read"


def run_filters(
    call: ClientRequest, who: Identity, pipeline: Pipeline, now: float, memory: Snapshot = _NOTHING
) -> FilterRun:
    """The call through all filters of a pipeline, and as its first upstream would get it.

    Raises RequestError where no model is named.
    """
    context = context_of(who, memory, pipeline, now=now)
    messages: Messages = call.messages
    fields: Fields = call.fields
    steps, degraded = list[FilterStep](), list[str]()
    for each in pipeline.filters:
        step, shown, fields = _step(each, messages, fields, context, skips=pipeline.skips_failing)
        if each.leaves_out and len(shown) < len(messages):
            degraded.append(each.leaves_out)
        steps.append(step)
        messages = shown
    offer = tools.offer if (tools := offer_memory_tools(fields, pipeline, who)) else None
    fields = offer.fields if offer else fields
    question = ChatRequest(
        model=pipeline.model, headers=call.headers, fields=fields, messages=messages, streaming=False
    )
    return FilterRun(
        messages=messages,
        fields=fields,
        steps=tuple(steps),
        tools=tuple(name for name in pipeline.tools if offer and name in offer.names),
        degraded=(*degraded, *dict.fromkeys(step.filter for step in steps if step.failed)),
        sent=question.to(pipeline.targets[0]).body,
    )


def message_dict(message: Message) -> dict[str, Any]:
    """A message as a client would write it."""
    named = {name: value for name in _FIELDS if (value := getattr(message, name)) is not UNSET}
    return {**named, **message.others}


def _step(
    each: RequestFilter, messages: Messages, fields: Fields, context: Context, *, skips: bool
) -> tuple[FilterStep, Messages, Fields]:
    started = time.perf_counter_ns()
    notes = chain.Notes(skipped=[] if skips else None)
    shown = chain.run((each,), messages, context, notes)
    kept = chain.set_fields((each,), fields, context, notes)
    microseconds = (time.perf_counter_ns() - started) // 1000
    differs = shown is not messages and list(shown) != list(messages)
    changes = tuple(_changes(fields, kept))
    step = FilterStep(
        filter=filter_name(each),
        options=each.model_dump(mode="json", exclude_unset=True),
        changed=differs or bool(changes),
        failed=bool(notes.skipped),
        microseconds=microseconds,
        before=_disclosed(messages) if differs else UNSET,
        after=_disclosed(shown) if differs else UNSET,
        fields=changes,
    )
    return step, shown, kept


def _changes(before: Fields, after: Fields) -> list[FieldChange]:
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return [FieldChange(name, _value(name, before), _value(name, after)) for name in names]


def _value(name: str, fields: Fields) -> Any:
    return disclosure.shown_field(name, fields[name]) if name in fields else UNSET


def _disclosed(messages: Messages) -> list[dict[str, Any]]:
    return [disclosure.shown_message(message_dict(message)) for message in messages]


def _whose(call: ClientRequest, who: Identity, pipeline: Pipeline) -> ExplainedIdentity:
    places = pipeline.places
    session_from, user_from = (
        identity.place_of_id(call, places.session),
        identity.place_of_id(call, places.user),
    )
    default = "default_session" if who.session is not None else None
    return ExplainedIdentity(
        tenant=who.tenant,
        session=who.session,
        session_from=str(session_from) if session_from else default,
        user=who.user,
        user_from=str(user_from) if user_from else None,
        background=who.background,
    )


def _name(model: object) -> str | None:
    return model if isinstance(model, str) else None
