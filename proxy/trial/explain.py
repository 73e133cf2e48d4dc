"""What would become of a call, step by step; nothing is sent and nothing is remembered."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from filters.base import Context, Fields, Messages, RequestFilter, Snapshot
from filters.message import Message
from proxy import chain, session, wire
from proxy.failing import name_of
from proxy.pipeline import Pipeline
from proxy.place import decoded
from proxy.question import Question
from proxy.session import Identity
from proxy.trial import disclosure
from proxy.trial.stripping import Stripped, stripped
from proxy.turn import Request
from proxy.wire import Call

_top_level = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_NOTHING = Snapshot()
_FIELDS = tuple(name for name in Message.__struct_fields__ if name != "others")


class Whose(msgspec.Struct, frozen=True, kw_only=True):
    """Whose turn it is, and the places that said so; ``None`` where no place did."""

    tenant: str
    session: str | None
    session_from: str | None
    user: str | None
    user_from: str | None
    background: bool


class Change(msgspec.Struct, frozen=True):
    """A field of the top level before and after a filter; ``UNSET`` where it is not there."""

    name: str
    before: Any = UNSET
    after: Any = UNSET


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What one filter did. ``before`` and ``after`` are messages, there only where the filter changed any.

    ``options`` are those that the configuration sets.
    """

    filter: str
    options: Mapping[str, Any]
    changed: bool
    microseconds: int
    before: Sequence[Mapping[str, Any]] | UnsetType = UNSET
    after: Sequence[Mapping[str, Any]] | UnsetType = UNSET
    fields: tuple[Change, ...] = ()


class Destination(msgspec.Struct, frozen=True, kw_only=True):
    """Where the request would go, and which model it would ask for."""

    upstream: str
    kind: str
    model: str | None


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """All that would happen to one call.

    Values of fields that neither OpenAI nor a known engine names are not in it, only their type and length.
    ``sent`` is the body that the upstream would get; ``stripped`` is what it would not.
    """

    pipeline: str
    whose: Whose
    ignored: tuple[str, ...]
    messages: Sequence[Mapping[str, Any]]
    steps: tuple[Step, ...]
    destination: Destination
    stripped: tuple[Stripped, ...]
    sent: Mapping[str, Any]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the filters made of a call, and the very body that the upstream would get."""

    messages: Messages
    fields: Fields
    steps: tuple[Step, ...]
    sent: bytes


def of(request: Request, pipeline: Pipeline, now: float) -> Explanation:
    """What would become of a request that comes at ``now``, in seconds since 1970.

    Raises RequestError for one that a turn would refuse too, TurnkeeperError where a filter fails.
    """
    call = wire.read(request.body, request.headers, request.query)
    return explain(call, session.of(call, pipeline.places, request.tenant), pipeline, now)


def explain(
    call: Call, identity: Identity, pipeline: Pipeline, now: float, memory: Snapshot = _NOTHING
) -> Explanation:
    """What would become of a call that comes at ``now``, in seconds since 1970.

    ``memory`` is what its filters know of the session. Raises RequestError where no model is named.
    """
    outcome = run(call, identity, pipeline, now, memory)
    target, body = pipeline.targets[0], _top_level(outcome.sent)
    sent: dict[str, Any] = {name: decoded(raw) for name, raw in body.items()}
    return Explanation(
        pipeline=pipeline.name,
        whose=_whose(call, identity, pipeline),
        ignored=(*call.ignored, *identity.ignored),
        messages=_disclosed(call.messages),
        steps=outcome.steps,
        destination=Destination(upstream=target.name, kind=target.kind.name, model=_name(sent.get("model"))),
        stripped=stripped(outcome.fields, list(map(written, outcome.messages)), sent, target.kind),
        sent=disclosure.body(body, sent["messages"], target.kind),
    )


def run(
    call: Call, identity: Identity, pipeline: Pipeline, now: float, memory: Snapshot = _NOTHING
) -> Outcome:
    """The call through all filters of a pipeline, and as its first upstream would get it.

    Raises RequestError where no model is named.
    """
    who = identity
    context = Context(now=now, tenant=who.tenant, session=who.session, user=who.user, memory=memory)
    messages: Messages = call.messages
    fields: Fields = call.fields
    steps = []
    for each in pipeline.filters:
        step, messages, fields = _step(each, messages, fields, context)
        steps.append(step)
    question = Question(headers=call.headers, fields=fields, messages=messages, streaming=False)
    sent = question.to(pipeline.targets[0], pipeline).body
    return Outcome(messages=messages, fields=fields, steps=tuple(steps), sent=sent)


def written(message: Message) -> dict[str, Any]:
    """A message as a client would write it."""
    named = {name: value for name in _FIELDS if (value := getattr(message, name)) is not UNSET}
    return {**named, **message.others}


def _step(
    each: RequestFilter, messages: Messages, fields: Fields, context: Context
) -> tuple[Step, Messages, Fields]:
    started = time.perf_counter_ns()
    shown, kept = chain.applied(each, messages, context), chain.set_by(each, fields, context)
    microseconds = (time.perf_counter_ns() - started) // 1000
    differs = shown is not messages and list(shown) != list(messages)
    changes = tuple(_changes(fields, kept))
    step = Step(
        filter=name_of(each),
        options=each.model_dump(mode="json", exclude_unset=True),
        changed=differs or bool(changes),
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


def _whose(call: Call, identity: Identity, pipeline: Pipeline) -> Whose:
    places = pipeline.places
    session_from, user_from = session.whence(call, places.session), session.whence(call, places.user)
    default = "default_session" if identity.session is not None else None
    return Whose(
        tenant=identity.tenant,
        session=identity.session,
        session_from=str(session_from) if session_from else default,
        user=identity.user,
        user_from=str(user_from) if user_from else None,
        background=identity.background,
    )


def _name(model: object) -> str | None:
    return model if isinstance(model, str) else None
