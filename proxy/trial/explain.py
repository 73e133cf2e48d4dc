"""What would become of a call, step by step; nothing is sent and nothing is remembered."""

import asyncio
import time
from typing import Any

import msgspec
from msgspec import UNSET

from filters.base import Context, Fields, Messages, RequestFilter, Snapshot
from filters.message import Message
from proxy.failing import name_of
from proxy.question import Question
from proxy.trial import disclosure
from proxy.trial.explanation import Change, Destination, Explanation, Read, Step, Whose
from proxy.trial.stripping import stripped
from proxy.turn import chain, identity
from proxy.turn.context import offer_memory_tools, recollect
from proxy.turn.identity import Identity, decoded
from proxy.turn.pipeline import Pipeline
from proxy.turn.request import Call, read
from proxy.turn.turn import Posted, context_of

_top_level = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_NOTHING = Snapshot()
_FIELDS = tuple(name for name in Message.__struct_fields__ if name != "others")


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the filters made of a call, and the very body that the upstream would get."""

    messages: Messages
    fields: Fields
    steps: tuple[Step, ...]
    tools: tuple[str, ...]
    degraded: tuple[str, ...]
    sent: bytes


async def remembering(request: Posted, pipeline: Pipeline, now: float) -> Explanation:
    """What would become of a request that comes at ``now``, with all that memory tells of it, as in a turn.

    Raises what ``of`` does.
    """
    # In threads: it takes a few times as long as a turn's own work, and callers wait on the loop.
    call, who = await asyncio.to_thread(_read, request, pipeline)
    lacking: list[str] = []
    found = await recollect(call, pipeline, who, lacking.append)
    told = await asyncio.to_thread(explain, found.heard, who, pipeline, now, found.snapshot)
    return msgspec.structs.replace(
        told,
        degraded=(*lacking, *told.degraded),
        messages=_disclosed(call.messages),
        heard=UNSET if found.heard is call else told.messages,
    )


def of(request: Posted, pipeline: Pipeline, now: float, *, remembers: bool = False) -> Explanation:
    """What would become of a request that comes at ``now``, in seconds since 1970, were nothing remembered.

    ``remembers`` is whether something is, though not by this pipeline. Raises RequestError for one that a
    turn would refuse too, Unauthorized for a user without proof, TurnkeeperError where a filter fails.
    """
    return explain(*_read(request, pipeline), pipeline, now, remembers=remembers)


def _read(request: Posted, pipeline: Pipeline) -> tuple[Call, Identity]:
    call = read(request.body, request.headers, request.query, pipeline.most_messages)
    who = identity.of(call, pipeline.places, request.tenant)
    identity.prove(who, pipeline.places, request.headers)
    return call, who


def explain(  # noqa: PLR0913 - all that a turn has
    call: Call,
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
    outcome = run(call, who, pipeline, now, memory or _NOTHING)
    target, body = pipeline.targets[0], _top_level(outcome.sent)
    sent: dict[str, Any] = {name: decoded(raw) for name, raw in body.items()}
    return Explanation(
        pipeline=pipeline.name,
        whose=_whose(call, who, pipeline),
        ignored=(*call.ignored, *who.ignored),
        memory=_memory(who, memory, remembers=remembers or pipeline.memory is not None),
        degraded=outcome.degraded,
        messages=_disclosed(call.messages),
        tools=outcome.tools,
        steps=outcome.steps,
        destination=Destination(upstream=target.name, kind=target.kind.name, model=_name(sent.get("model"))),
        stripped=stripped(outcome.fields, list(map(written, outcome.messages)), sent, target.kind),
        sent=disclosure.body(body, sent["messages"], target.kind),
    )


def _memory(who: Identity, memory: Snapshot | None, *, remembers: bool) -> Read:
    if who.background or not remembers:
        return "none"
    return "left out" if memory is None else "read"


def run(call: Call, who: Identity, pipeline: Pipeline, now: float, memory: Snapshot = _NOTHING) -> Outcome:
    """The call through all filters of a pipeline, and as its first upstream would get it.

    Raises RequestError where no model is named.
    """
    context = context_of(who, memory, pipeline, now=now)
    messages: Messages = call.messages
    fields: Fields = call.fields
    steps, degraded = list[Step](), list[str]()
    for each in pipeline.filters:
        step, shown, fields = _step(each, messages, fields, context, skips=pipeline.skips_failing)
        if each.leaves_out and len(shown) < len(messages):
            degraded.append(each.leaves_out)
        steps.append(step)
        messages = shown
    offer = tools.offer if (tools := offer_memory_tools(fields, pipeline, who)) else None
    fields = offer.fields if offer else fields
    question = Question(
        model=pipeline.model, headers=call.headers, fields=fields, messages=messages, streaming=False
    )
    return Outcome(
        messages=messages,
        fields=fields,
        steps=tuple(steps),
        tools=tuple(name for name in pipeline.tools if offer and name in offer.own),
        degraded=(*degraded, *dict.fromkeys(step.filter for step in steps if step.failed)),
        sent=question.to(pipeline.targets[0]).body,
    )


def written(message: Message) -> dict[str, Any]:
    """A message as a client would write it."""
    named = {name: value for name in _FIELDS if (value := getattr(message, name)) is not UNSET}
    return {**named, **message.others}


def _step(
    each: RequestFilter, messages: Messages, fields: Fields, context: Context, *, skips: bool
) -> tuple[Step, Messages, Fields]:
    started = time.perf_counter_ns()
    notes = chain.Notes(skipped=[] if skips else None)
    shown = chain.run((each,), messages, context, notes)
    kept = chain.set_fields((each,), fields, context, notes)
    microseconds = (time.perf_counter_ns() - started) // 1000
    differs = shown is not messages and list(shown) != list(messages)
    changes = tuple(_changes(fields, kept))
    step = Step(
        filter=name_of(each),
        options=each.model_dump(mode="json", exclude_unset=True),
        changed=differs or bool(changes),
        failed=bool(notes.skipped),
        microseconds=microseconds,
        before=_disclosed(messages) if differs else UNSET,
        after=_disclosed(shown) if differs else UNSET,
        fields=changes,
    )
    return step, shown, kept


def _changes(before: Fields, after: Fields) -> list[Change]:
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return [Change(name, _value(name, before), _value(name, after)) for name in names]


def _value(name: str, fields: Fields) -> Any:
    return disclosure.field(name, fields[name]) if name in fields else UNSET


def _disclosed(messages: Messages) -> list[dict[str, Any]]:
    return [disclosure.message(written(message)) for message in messages]


def _whose(call: Call, who: Identity, pipeline: Pipeline) -> Whose:
    places = pipeline.places
    session_from, user_from = identity.whence(call, places.session), identity.whence(call, places.user)
    default = "default_session" if who.session is not None else None
    return Whose(
        tenant=who.tenant,
        session=who.session,
        session_from=str(session_from) if session_from else default,
        user=who.user,
        user_from=str(user_from) if user_from else None,
        background=who.background,
    )


def _name(model: object) -> str | None:
    return model if isinstance(model, str) else None
