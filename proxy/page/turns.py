"""One turn: where its time went, what each filter did, what the model saw, and what it answered."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from starlette.responses import Response

from proxy.answer.transcript import Transcript, transcript
from proxy.errors import NotFound, RequestError, TurnkeeperError
from proxy.kinds import Kind
from proxy.page.difference import Filtered, Row, differences, filtered, plain
from proxy.page.room import Room, redirect
from proxy.page.spending import Spending, spending
from proxy.page.timeline import WIDTH, pictures
from proxy.question import Question
from proxy.target import Target
from proxy.traces import Trace, TurnContent
from proxy.trial import disclosure
from proxy.trial.disclosure import Stripped
from proxy.trial.explain import ExplainedIdentity, explain_call, message_dict
from proxy.turn import request
from proxy.turn.identity import decoded

_KEPT: Final = "the newest are, as many as 'traces:' says"
_ASKED: Final = "asked"
# Browsers follow twenty redirections. Of four processes, one in two hundred turns is missed.
_MOST_TRIES: Final = 18


class Inside(msgspec.Struct, frozen=True, kw_only=True):
    """What was said in a turn, made ready to be looked at. ``fault`` is why some of it could not be."""

    whose: ExplainedIdentity | None = None
    asked: Sequence[Row] = ()
    ignored: Sequence[str] = ()
    fields: Mapping[str, Any] = {}
    found: Sequence[Row] = ()
    steps: Sequence[Filtered] = ()
    stripped: Sequence[Stripped] = ()
    sent: str = ""
    answer: Transcript = Transcript()
    spent: Spending
    fault: str | None = None


async def _shown(room: Room) -> Response:
    traces = room.server.traces
    trace = traces.find(room.tenant, room.params["id"])
    if trace is None:
        return _elsewhere(room)
    before, after = traces.beside(trace)
    inside = await room.turnstile.run(lambda: _inside(trace, before)) if trace.content else None
    return await room.page(
        "turn.html",
        "live",
        trace=trace,
        turn=trace.account,
        before=before,
        after=after,
        pictures=pictures(trace, traces.written(trace)),
        width=WIDTH,
        inside=inside,
        keeps=traces.keeping.content,
    )


def _elsewhere(room: Room) -> Response:
    """To another process of this port, as far as chance leads there; raises NotFound after some tries.

    Which process a connection reaches is the kernel's to choose, so that each try wants a new one.
    """
    if not room.server.place:
        raise NotFound(f"This turn is not kept any more; {_KEPT}.")
    asked = room.query.get(_ASKED, "0")
    tries = int(asked) if re.fullmatch(r"\d{1,2}", asked, re.ASCII) else _MOST_TRIES
    if tries >= _MOST_TRIES:
        raise NotFound(
            f"None of the processes that answered keeps this turn; {_KEPT} of each process."
            " If it is new, go back and choose it again: others may answer then."
        )
    onward = redirect("turns", room.params["id"], query=f"?{_ASKED}={tries + 1}")
    onward.headers["connection"] = "close"
    return onward


def _inside(trace: Trace, before: Trace | None) -> Inside:
    content = trace.content
    assert content is not None  # noqa: S101 - the caller has looked
    body = sent(trace)
    spent = spending(body, trace.answer, sent(before) if before and before.content else None)
    answer = transcript(trace.answer)
    asked, marked = _disclosed(content)
    found = differences(asked, marked) if asked != marked else ()
    shown = Inside(
        asked=plain(asked),
        ignored=(*content.call.ignored, *content.who.ignored),
        fields={name: disclosure.shown_field(name, raw) for name, raw in content.call.fields.items()},
        found=found,
        sent=_disclosed_body(body, _target(trace, content).kind),
        answer=answer,
        spent=spent,
    )
    return _explained(trace, content, shown)


def _explained(trace: Trace, content: TurnContent, shown: Inside) -> Inside:
    """What the filters did, by running them again: they do no I/O, and the same in gives the same out."""
    context = content.context
    pipeline = msgspec.structs.replace(content.pipeline, targets=(_target(trace, content),))
    try:
        told = explain_call(content.heard, content.who, pipeline, context.now, context.memory)
    except TurnkeeperError as error:
        return msgspec.structs.replace(shown, fault=error.message)
    return msgspec.structs.replace(
        shown,
        whose=told.whose,
        steps=[filtered(number, step) for number, step in enumerate(told.steps, 1)],
        stripped=told.stripped,
    )


def _disclosed(content: TurnContent) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    asked, marked = (
        [disclosure.shown_message(message_dict(message)) for message in call.messages]
        for call in (content.call, content.heard)
    )
    return asked, marked


def sent(trace: Trace) -> bytes:
    """The body as the upstream got it that was asked last; empty where none was."""
    content = trace.content
    if content is None:
        return b""
    model, fields, messages = content.pipeline.model, content.fields, content.messages
    question = Question(model=model, headers={}, fields=fields, messages=messages, streaming=False)
    try:
        return question.to(_target(trace, content)).body
    except RequestError:
        return b""


def _target(trace: Trace, content: TurnContent) -> Target:
    targets = content.pipeline.targets
    return next((target for target in targets if target.name == trace.account.upstream), targets[0])


def _disclosed_body(body: bytes, kind: Kind) -> str:
    if not body:
        return ""
    fields = request.top_level(body)
    messages = decoded(fields["messages"])
    shown = disclosure.shown_body(fields, messages if isinstance(messages, list) else [], kind)
    return msgspec.json.format(msgspec.json.encode(shown), indent=2).decode()


ROUTES: Final = (("GET", "/turns/{id}", _shown),)
