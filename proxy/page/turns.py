"""What a turn cost in tokens, and how much of its prompt the model had seen before."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final

import msgspec
from starlette.responses import Response

from filters.message import Message
from filters.tokens import in_message
from proxy.answer.sse import data_of, events
from proxy.answer.transcript import Transcript, transcript
from proxy.errors import NotFound, RequestError, TurnkeeperError
from proxy.page.difference import Filtered, Row, differences, filtered, plain
from proxy.page.request import PageRequest, redirect
from proxy.traces import Trace
from proxy.trial import disclosure
from proxy.trial.disclosure import Stripped
from proxy.trial.explain import ExplainedIdentity, explain_call, message_dict
from proxy.turn import request
from proxy.turn.identity import decode_raw
from proxy.turn.state import Turn
from proxy.upstream.providers import Provider
from proxy.upstream.target import Target

_KNOWN = ("role", "content", "tool_calls")
WIDTH = 1000.0
_NARROWEST = 2.0
_NAMES = {
    "receive": "Receive",
    "recall": "Session",
    "memory": "Recall",
    "filters": "Filters",
    "upstream": "Upstream",
}
_WHAT = {
    "receive": "reading the request's body",
    "recall": "parsing it, and finding out whose turn it is",
    "memory": "what memory holds of the session",
    "filters": "the request filters, and putting the body together",
    "upstream": "until the model has begun to answer",
    "First token": "the answer's first bytes go to the client",
    "Chunks": "the answer streams",
    "Record": "written to memory, off the call",
}
_KEPT: Final = "the newest are, as many as 'traces:' says"
_ASKED: Final = "asked"
# Browsers follow twenty redirections. Of four processes, one in two hundred turns is missed.
_MOST_TRIES: Final = 18


class Spending(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens. ``prompt`` is an estimate, ``stayed`` the part of it that stands as it stood a turn before.

    ``reported`` is the upstream's own usage; what it does not say is ``None``.
    """

    prompt: int
    stayed: int | None
    reported: int | None
    cached: int | None
    answered: int | None

    @property
    def share(self) -> float | None:
        """The part of the prompt that stayed, from 0 to 1; ``None`` where no turn before is kept."""
        return None if self.stayed is None else self.stayed / max(1, self.prompt)


def spending(body: bytes, answer: bytes, before: bytes | None) -> Spending:
    """What a turn cost; ``before`` is the body that was sent a turn before."""
    sent = _messages(body)
    known = _messages(before) if before else []
    stayed = [one for one, _ in takewhile(lambda pair: pair[0] == pair[1], zip(sent, known, strict=False))]
    usage = _usage(answer)
    details = usage.get("prompt_tokens_details")
    return Spending(
        prompt=sum(map(_tokens, sent)),
        stayed=sum(map(_tokens, stayed)) if before else None,
        reported=_number(usage.get("prompt_tokens")),
        cached=_number(details.get("cached_tokens")) if isinstance(details, dict) else None,
        answered=_number(usage.get("completion_tokens")),
    )


def _messages(body: bytes) -> Sequence[Mapping[str, Any]]:
    try:
        found = msgspec.json.decode(body)["messages"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return []
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _tokens(message: Mapping[str, Any]) -> int:
    try:
        known = {name: message[name] for name in _KNOWN if name in message}
        return in_message(msgspec.convert(known, Message))
    except (msgspec.ValidationError, TypeError):
        return 0


def _usage(answer: bytes) -> Mapping[str, Any]:
    """The last usage that an answer tells of, a stream's or a whole one's."""
    if answer.lstrip()[:1] == b"{":
        return _usage_of(answer)
    for event in reversed([event for event in events(answer) if b'"usage"' in event]):
        if found := _usage_of(data_of(event)):
            return found
    return {}


def _usage_of(data: bytes | None) -> Mapping[str, Any]:
    try:
        chunk = msgspec.json.decode(data or b"null")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    usage = chunk.get("usage") if isinstance(chunk, dict) else None
    return usage if isinstance(usage, dict) else {}


def _number(given: object) -> int | None:
    return given if type(given) is int else None


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """One stage: where its bar stands in a picture ``WIDTH`` wide, and its seconds."""

    name: str
    what: str
    kind: str
    start: float
    width: float
    seconds: float
    ticks: Sequence[float] = ()


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """Bars on one scale, which is ``seconds`` long."""

    title: str
    seconds: float
    bars: Sequence[Bar]


def pictures(trace: Trace, written: float | None) -> Sequence[Picture]:
    """A turn's own work, and all of the turn; ``written`` is when memory had it."""
    stages = list(_stages(trace))
    own = [each for each in stages if each[0] != "upstream"]
    inside = Picture(title="Turnkeeper's own work", seconds=0.0, bars=())
    if own:
        start, end = own[0][1], max(end for _, _, end in own)
        inside = Picture(
            title="Turnkeeper's own work", seconds=end - start, bars=list(_drawn(own, start, end))
        )
    everything = [("own", trace.start, own[-1][2] if own else trace.end), *_rest(trace, stages, written)]
    end = max(end for _, _, end in everything)
    whole = Picture(
        title="The whole turn",
        seconds=trace.end - trace.start,
        bars=list(_drawn(everything, trace.start, end, trace.chunks)),
    )
    return [whole, inside]


def _stages(trace: Trace) -> Iterator[tuple[str, float, float]]:
    """Each mark until the next; the last until the first chunk, or the turn's end."""
    last = trace.chunks[0] if trace.chunks else trace.end
    marks = [("receive", trace.start), *trace.marks]
    ends = [*(mark for _, mark in marks[1:]), last]
    for (name, start), end in zip(marks, ends, strict=True):
        yield name, start, max(start, end)


def _rest(
    trace: Trace, stages: Sequence[tuple[str, float, float]], written: float | None
) -> Iterator[tuple[str, float, float]]:
    yield from (each for each in stages if each[0] == "upstream")
    if trace.chunks:
        yield "First token", trace.chunks[0], trace.chunks[0]
        yield "Chunks", trace.chunks[0], trace.end
    if written is not None:
        yield "Record", trace.end, max(trace.end, written)


def _drawn(
    stages: Sequence[tuple[str, float, float]], start: float, end: float, ticks: Sequence[float] = ()
) -> Iterator[Bar]:
    scale = WIDTH / (end - start) if end > start else 0.0
    for name, began, ended in stages:
        width = max(_NARROWEST, (ended - began) * scale)
        left = min((began - start) * scale, WIDTH - width)
        instant = name == "First token"
        yield Bar(
            name="Turnkeeper" if name == "own" else _NAMES.get(name, name),
            what="receive, session, recall and filters; closer below"
            if name == "own"
            else _WHAT.get(name, ""),
            kind="own" if name in {"own", *_NAMES} - {"upstream"} else name.lower().replace(" ", "-"),
            start=round(max(0.0, left), 2),
            width=round(width, 2),
            seconds=(ended - start) if instant else ended - began,
            ticks=[round((tick - start) * scale, 2) for tick in ticks] if name == "Chunks" else (),
        )


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


async def _shown(request: PageRequest) -> Response:
    traces = request.server.traces
    trace = traces.find(request.tenant, request.params["id"])
    if trace is None:
        return _elsewhere(request)
    before, after = traces.neighbours(trace)
    inside = await request.executor.run(lambda: _inside(trace, before)) if trace.content else None
    return await request.page(
        "turn.html",
        "live",
        trace=trace,
        turn=trace.report,
        before=before,
        after=after,
        pictures=pictures(trace, traces.write_time(trace)),
        width=WIDTH,
        inside=inside,
        keeps=traces.retention.content,
    )


def _elsewhere(request: PageRequest) -> Response:
    """To another process of this port, as far as chance leads there; raises NotFound after some tries.

    Which process a connection reaches is the kernel's to choose, so that each try wants a new one.
    """
    if not request.server.process_name:
        raise NotFound(f"This turn is not kept any more; {_KEPT}.")
    asked = request.query.get(_ASKED, "0")
    tries = int(asked) if re.fullmatch(r"\d{1,2}", asked, re.ASCII) else _MOST_TRIES
    if tries >= _MOST_TRIES:
        raise NotFound(
            f"None of the processes that answered keeps this turn; {_KEPT} of each process."
            " If it is new, go back and choose it again: others may answer then."
        )
    onward = redirect("turns", request.params["id"], query=f"?{_ASKED}={tries + 1}")
    onward.headers["connection"] = "close"
    return onward


def _inside(trace: Trace, before: Trace | None) -> Inside:
    turn = trace.content
    assert turn is not None  # noqa: S101 - the caller has looked
    body = sent(trace)
    spent = spending(body, trace.answer, sent(before) if before and before.content else None)
    answer = transcript(trace.answer)
    asked, marked = _disclosed(turn)
    found = differences(asked, marked) if asked != marked else ()
    shown = Inside(
        asked=plain(asked),
        ignored=(*turn.request.ignored, *turn.identity.ignored),
        fields={name: disclosure.shown_field(name, raw) for name, raw in turn.request.fields.items()},
        found=found,
        sent=_disclosed_body(body, _target(trace, turn).provider),
        answer=answer,
        spent=spent,
    )
    return _explained(trace, turn, shown)


def _explained(trace: Trace, turn: Turn, shown: Inside) -> Inside:
    """What the filters did, by running them again: they do no I/O, and the same in gives the same out."""
    context = turn.context
    pipeline = msgspec.structs.replace(turn.pipeline, targets=(_target(trace, turn),))
    try:
        told = explain_call(turn.marked_request, turn.identity, pipeline, context.now, context.memory)
    except TurnkeeperError as error:
        return msgspec.structs.replace(shown, fault=error.message)
    return msgspec.structs.replace(
        shown,
        whose=told.identity,
        steps=[filtered(number, step) for number, step in enumerate(told.steps, 1)],
        stripped=told.stripped,
    )


def _disclosed(turn: Turn) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    asked, marked = (
        [disclosure.shown_message(message_dict(message)) for message in messages]
        for messages in (turn.request.messages, turn.window)
    )
    return asked, marked


def sent(trace: Trace) -> bytes:
    """The body as the upstream got it that was asked last; empty where none was."""
    turn = trace.content
    if turn is None:
        return b""
    try:
        return turn.chat.to(_target(trace, turn)).body
    except RequestError:
        return b""


def _target(trace: Trace, turn: Turn) -> Target:
    targets = turn.pipeline.targets
    return next((target for target in targets if target.name == trace.report.upstream), targets[0])


def _disclosed_body(body: bytes, kind: Provider) -> str:
    if not body:
        return ""
    fields = request.raw_fields(body)
    messages = decode_raw(fields["messages"])
    shown = disclosure.shown_body(fields, messages if isinstance(messages, list) else [], kind)
    return msgspec.json.format(msgspec.json.encode(shown), indent=2).decode()


ROUTES: Final = (("GET", "/turns/{id}", _shown),)
