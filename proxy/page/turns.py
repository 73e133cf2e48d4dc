"""The page of one turn: its timeline, its tokens, the effect of each filter, and the model's answer.

A kept turn can be run again with another model, pipeline or filters, without recording anything.
"""

import asyncio
import logging
import re
import time
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
from starlette.responses import Response

from filters.message import Message, newest_words
from filters.tokens import in_message
from proxy.answer.sse import decode_raw
from proxy.answer.transcript import Transcript, transcript
from proxy.errors import NotFound, TurnkeeperError
from proxy.http.reply import Client, Reply
from proxy.observe.observation import Observation, usage_of
from proxy.page.difference import (
    DiffGroup,
    DiffRow,
    StepDiff,
    diff_rows,
    grouped_rows,
    step_diff,
    unchanged_rows,
)
from proxy.page.request import PageRequest, redirect
from proxy.page.trials import AnswerTrial, Choices, Draft, FilteredCall, FilteredData, TurnTrial
from proxy.settings.diagnostics import Diagnostic
from proxy.trace import Trace
from proxy.trial import disclosure
from proxy.trial.disclosure import Stripped
from proxy.trial.explain import ExplainedIdentity, explain_call, message_dict
from proxy.turn.pipeline import Pipeline
from proxy.turn.relay import pass_on
from proxy.turn.request import raw_fields
from proxy.turn.state import TurnContent
from proxy.upstream.body import ChatRequest
from proxy.upstream.routing import Dispatch

WIDTH: Final = 1000.0
_NARROWEST: Final = 2.0
# For each stage, its name on the page and its description.
_STAGES: Final = {
    "own": ("Turnkeeper", "receive, session, recall and filters; closer below"),
    "receive": ("Receive", "reading the request's body"),
    "recall": ("Session", "parsing it, and naming its session and user"),
    "memory": ("Recall", "reading the session from memory"),
    "filters": ("Filters", "the request filters, and putting the body together"),
    "upstream": ("Upstream", "until the model has begun to answer"),
    "first-token": ("First token", "the answer's first bytes go to the client"),
    "chunks": ("Chunks", "the answer streams"),
    "record": ("Record", "written to memory, off the call"),
}
_OWN: Final = frozenset({"own", "receive", "recall", "memory", "filters"})
_COUNTED: Final = ("role", "content", "tool_calls")
_READ_BY_MODELS: Final = ("role", "content", "name", "tool_calls", "tool_call_id")
_CURL: Final = """curl -sN "$UPSTREAM_BASE_URL/chat/completions" \\
  -H "Authorization: Bearer $UPSTREAM_API_KEY" -H 'Content-Type: application/json' \\
  -d '{body}'
"""
_KEPT: Final = "only the newest are, as many as 'traces.keep' says"
_TRIES: Final = "asked"
# In bytes of a request and its answer: rendering more would delay calls, and nobody reads it.
_LARGEST_SHOWN: Final = 4_000_000
# Browsers follow twenty redirections. Of four processes, one in two hundred turns is missed.
_MOST_TRIES: Final = 18
# In seconds: where hosts share their turns, a turn is stored half a second after its end.
_PAUSES: Final = (0.0, 0.7)

Span = tuple[str, float, float]
"""A stage, its start and its end, by ``time.perf_counter``."""
_log = logging.getLogger("turnkeeper")


class Rerun(msgspec.Struct, frozen=True, kw_only=True):
    """The result of running a turn again. Times are in seconds; ``sent`` is the body for the first upstream.

    ``error`` is why the answer is missing or incomplete, and ``step_errors`` are errors in the steps.
    """

    answer: Transcript = Transcript()
    sent: bytes = b""
    upstream: str | None = None
    model: str | None = None
    first_token: float | None = None
    duration: float = 0.0
    tokens: tuple[int | None, int | None] = (None, None)
    error: str | None = None
    step_errors: Sequence[Diagnostic] = ()


class StageBar(msgspec.Struct, frozen=True, kw_only=True):
    """One stage, with the place of its bar in a timeline of ``WIDTH``, and its duration in seconds."""

    name: str
    what: str
    kind: str
    start: float
    width: float
    seconds: float
    ticks: Sequence[float] = ()


class StageTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """Bars on one scale of ``seconds``."""

    title: str
    seconds: float
    bars: Sequence[StageBar]


class TokenCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Estimated tokens of the ``prompt``, and of its ``prefix`` that is the same as a turn before."""

    prompt: int
    prefix: int | None

    @property
    def share(self) -> float | None:
        """The prefix's share of the prompt, from 0 to 1; ``None`` where no turn before is kept."""
        return None if self.prefix is None else self.prefix / max(1, self.prompt)


class TurnDetail(msgspec.Struct, frozen=True, kw_only=True):
    """The details of a turn for the page. ``error`` is why the filters could not be run again.

    ``words`` are the user's newest words, ``prompt`` compares the received with the sent messages, and
    ``curl`` is a command that sends the same prompt.
    """

    identity: ExplainedIdentity | None
    messages: Sequence[DiffRow]
    ignored: Sequence[str]
    fields: Mapping[str, Any]
    marked: Sequence[DiffRow]
    steps: Sequence[StepDiff]
    stripped: Sequence[Stripped]
    words: str
    prompt: Sequence[DiffGroup]
    sent: str
    curl: str
    answer: Transcript
    tokens: TokenCounts
    error: str | None


async def _find(request: PageRequest) -> Trace | None:
    """Finds the path's turn, also on other hosts; waits briefly for one that has just ended."""
    traces, id_ = request.server.traces, request.params["id"]
    for pause in _PAUSES if traces.shared else (0.0,):
        await asyncio.sleep(pause)
        await traces.fetch(request.tenant)
        if trace := traces.find(request.tenant, id_):
            (trace,) = await request.with_content([trace])
            return trace
    return None


async def _show(request: PageRequest) -> Response:
    trace = await _find(request)
    return _try_another_process(request) if trace is None else await _answer(request, trace)


async def _run(request: PageRequest) -> Response:
    trace = await _find(request)
    if trace is None:
        return _try_another_process(request, "run", status=307)
    if trace.content is None:
        raise NotFound(f"The words of this turn are not kept; {_KEPT}.")
    if request.form.get("load"):
        return await _answer(request, trace)
    choices = _choices(request, trace)
    return await _answer(request, trace, await run_again(request, trace.content, choices))


async def _answer(request: PageRequest, trace: Trace, rerun: Rerun | None = None) -> Response:
    traces = request.server.traces
    before, after = traces.neighbours(trace)
    if before:
        (before,) = await request.with_content([before])
    same = (each.report for each in traces.newest(request.tenant, trace.report.session))
    content, pipeline, detail = trace.content, trace.pipeline, None
    if content and pipeline and trace.size <= _LARGEST_SHOWN:
        detail = await request.executor.run(lambda: _detail(trace, content, pipeline, before))
    return await request.page(
        "turn.html",
        "live",
        trace=trace,
        turn=trace.report,
        has_session=bool(request.runtime.memory) and any(each.outcome != "failed" for each in same),
        before=before,
        after=after,
        timelines=timelines(trace),
        width=WIDTH,
        detail=detail,
        keeps=traces.retention.content,
        choices=_choices(request, trace) if content else None,
        pipelines=list(request.runtime.pipelines),
        rerun=rerun,
        change=_change(trace, rerun.sent) if rerun and rerun.sent else (),
    )


def _choices(request: PageRequest, trace: Trace) -> Choices:
    return Choices.of(request.form, request.runtime.pipelines, trace.report.pipeline)


def _try_another_process(request: PageRequest, *steps: str, status: int = 303) -> Response:
    """Redirects to another process of this port, a form with 307; after some tries, to the conversation.

    The kernel chooses the process for a connection, so that each try needs a new one. Raises NotFound where
    the query names no conversation.
    """
    place = {name: request.query[name] for name in ("session", "at") if name in request.query}
    text = request.query.get(_TRIES, "0")
    tries = int(text) if re.fullmatch(r"\d{1,2}", text, re.ASCII) else _MOST_TRIES
    if request.server.process_name and tries < _MOST_TRIES and not request.server.traces.shared:
        query = urlencode({**place, _TRIES: tries + 1})
        response = redirect("turns", request.params["id"], *steps, query=f"?{query}")
        response.status_code = status
        response.headers["connection"] = "close"
        return response
    if place.keys() == {"session", "at"} and not steps and request.runtime.memory:
        return redirect("conversations", place["session"], query=f"?{urlencode({'at': place['at']})}")
    if request.server.process_name and not request.server.traces.shared:
        raise NotFound(
            f"None of the processes that answered keeps this turn; {_KEPT} of each process."
            " If it is new, go back and choose it again: others may answer then."
        )
    raise NotFound(f"This turn is not kept any more; {_KEPT}.")


def timelines(trace: Trace) -> Sequence[StageTimeline]:
    """The timeline of a whole turn, and that of the proxy's own stages on a larger scale."""
    # The client of a turn that failed before its first token got the error, and no answer.
    chunks = () if trace.report.outcome == "failed" and trace.report.first_token is None else trace.chunks
    first = chunks[0] if chunks else trace.end
    marks = [("receive", trace.start), *trace.marks]
    ends = [*(mark for _, mark in marks[1:]), first]
    stages = [(name, start, max(start, end)) for (name, start), end in zip(marks, ends, strict=True)]
    local = [span for span in stages if span[0] != "upstream"]
    spans = [("own", trace.start, local[-1][2] if local else trace.end)]
    spans += [span for span in stages if span[0] == "upstream"]
    if chunks:
        spans += [("first-token", first, first), ("chunks", first, trace.end)]
    if trace.written_at is not None:
        spans.append(("record", trace.end, max(trace.end, trace.written_at)))
    whole = _timeline("The whole turn", spans, chunks)
    return [
        msgspec.structs.replace(whole, seconds=trace.end - trace.start),
        _timeline("Turnkeeper's own work", local),
    ]


def _timeline(title: str, spans: Sequence[Span], ticks: Sequence[float] = ()) -> StageTimeline:
    start = spans[0][1] if spans else 0.0
    length = max((end for _, _, end in spans), default=0.0) - start
    scale = WIDTH / length if length > 0 else 0.0
    bars = []
    for kind, began, ended in spans:
        name, what = _STAGES.get(kind, (kind, ""))
        if kind == "upstream" and not ticks:
            what = "no answer came"
        width = max(_NARROWEST, (ended - began) * scale)
        bars.append(
            StageBar(
                name=name,
                what=what,
                kind="own" if kind in _OWN else kind,
                start=round(max(0.0, min((began - start) * scale, WIDTH - width)), 2),
                width=round(width, 2),
                seconds=ended - (start if kind == "first-token" else began),
                ticks=[round((tick - start) * scale, 2) for tick in ticks] if kind == "chunks" else (),
            )
        )
    return StageTimeline(title=title, seconds=length, bars=bars)


def token_counts(body: bytes, body_before: bytes | None) -> TokenCounts:
    """Estimates the tokens of a prompt; ``body_before`` is the body that was sent a turn before."""
    messages = _messages(body)
    pairs = zip(messages, _messages(body_before) if body_before else (), strict=False)
    prefix = [message for message, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]
    return TokenCounts(
        prompt=sum(map(_estimate, messages)), prefix=sum(map(_estimate, prefix)) if body_before else None
    )


def _messages(body: bytes) -> Sequence[Mapping[str, Any]]:
    try:
        messages = msgspec.json.decode(body)["messages"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return []
    return [each for each in messages if isinstance(each, dict)] if isinstance(messages, list) else []


def _estimate(message: Mapping[str, Any]) -> int:
    try:
        counted = {name: message[name] for name in _COUNTED if name in message}
        return in_message(msgspec.convert(counted, Message))
    except (msgspec.ValidationError, TypeError):
        return 0


def _detail(trace: Trace, content: TurnContent, pipeline: Pipeline, before: Trace | None) -> TurnDetail:
    body = last_sent_body(trace)
    target = trace.target_of(pipeline)
    client, marked_request = content.request, content.marked_request
    messages, marked = (
        [disclosure.shown_message(message_dict(message)) for message in window]
        for window in (client.messages, marked_request.messages)
    )
    prompt: Sequence[DiffGroup] = ()
    sent = curl = ""
    if body:
        fields = raw_fields(body)
        decoded = decode_raw(fields["messages"])
        shown = disclosure.shown_body(fields, decoded if isinstance(decoded, list) else [], target.provider)
        sent = msgspec.json.format(msgspec.json.encode(shown), indent=2).decode()
        prompt = grouped_rows(*(list(map(_as_prompt, each)) for each in (messages, shown["messages"])))
        curl = _CURL.format(body=sent.replace("'", "'\\''"))
    # The filters can be run again, as they do no I/O and are deterministic.
    single = msgspec.structs.replace(pipeline, targets=(target,))
    explanation, error = None, None
    try:
        explanation = explain_call(marked_request, content.identity, single, content.now, content.memory)
    except TurnkeeperError as failure:
        error = failure.message
    return TurnDetail(
        identity=explanation.identity if explanation else None,
        messages=unchanged_rows(messages),
        ignored=(*client.ignored, *content.identity.ignored),
        fields={name: disclosure.shown_field(name, raw) for name, raw in client.fields.items()},
        marked=diff_rows(messages, marked) if messages != marked else (),
        steps=[step_diff(*each) for each in enumerate(explanation.steps, 1)] if explanation else (),
        stripped=explanation.stripped if explanation else (),
        words=newest_words(client.messages),
        prompt=prompt,
        sent=sent,
        curl=curl,
        answer=transcript(trace.answer),
        tokens=token_counts(body, last_sent_body(before) if before and before.content else None),
        error=error,
    )


def _change(trace: Trace, sent: bytes) -> Sequence[DiffGroup]:
    """The differences between the turn's prompt and another one."""
    before, after = (list(map(_as_prompt, _messages(body))) for body in (last_sent_body(trace), sent))
    return [group for group in grouped_rows(before, after) if group.kind != "same"]


def _as_prompt(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of a message that models read."""
    return {name: message[name] for name in _READ_BY_MODELS if message.get(name) is not None}


def last_sent_body(trace: Trace) -> bytes:
    """The body that was sent to the last upstream; empty where none was asked."""
    return trace.content.sent_body if trace.content else b""


ROUTES: Final = (("GET", "/turns/{id}", _show), ("POST", "/turns/{id}/run", _run))


async def run_again(request: PageRequest, content: TurnContent, choices: Choices) -> Rerun:
    """Runs a turn again with the memory that it had; nothing is written, counted or published.

    Memory tools are not run.
    """
    pipelines, drafts = request.runtime.pipelines, request.drafts
    draft = Draft.of(choices, pipelines, request.tenant)
    try:
        async with request.runtime.admit_by_size(request.tenant, content.size, request.reply):
            tried = await drafts.run(TurnTrial(draft=draft, content=content))
            call = msgspec.json.decode(tried, type=FilteredCall)
            if call.error or call.step_errors:
                return Rerun(error=call.error, step_errors=call.step_errors)
            pipeline = pipelines[choices.pipeline]
            chat = ChatRequest(
                model=draft.pipeline.model,
                headers=content.request.headers,
                fields=call.fields,
                messages=call.messages,
                streaming=content.is_streaming,
            )
            sent = chat.to(pipeline.targets[0]).body
            observation = Observation()
            dispatch = Dispatch(chat, pipeline.targets, pipeline.limits, observation.report.attempts)
            failure = await _ask(dispatch, observation)
            data, duration = observation.answer.data, time.perf_counter() - observation.timer.start
            if call.has_answer_filters and data:
                tried = await drafts.run(AnswerTrial(draft=draft, content=content, data=data))
                answer = msgspec.json.decode(tried, type=FilteredData)
                data, failure = answer.data, failure or answer.error
    except TurnkeeperError as error:
        return Rerun(error=error.message)
    _log.info("A turn was run again as a test, at the upstream '%s'", dispatch.upstream)
    times, usage = observation.answer.times, usage_of(observation.answer.tail)
    return Rerun(
        answer=transcript(data),
        sent=sent,
        upstream=dispatch.upstream,
        model=dispatch.model,
        first_token=times[0] - observation.timer.start if times else None,
        duration=duration,
        tokens=(usage.input, usage.output),
        error=failure,
    )


async def _ask(dispatch: Dispatch, observation: Observation) -> str | None:
    """Asks a model; the answer goes to ``observation`` alone. Returns an error message, or ``None``."""
    reply = Reply(Client(), observation)
    reply.note_sent = observation.answer.add
    try:
        await pass_on(await dispatch.begin(), None, reply)
    except TurnkeeperError as error:
        return error.message
    return None
