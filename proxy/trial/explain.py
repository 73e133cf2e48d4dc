"""Explains a request: its prompt, step by step, with the changes of each step; nothing is sent or stored."""

import asyncio
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, Literal
from urllib.parse import parse_qsl, urlsplit

import msgspec
from msgspec import UNSET, UnsetType

from filters.base import Context, Fields, Messages, RequestFilter, Snapshot
from filters.message import Message
from proxy.answer.sse import decode_raw
from proxy.errors import RequestError, filter_name
from proxy.tools.memory_tools import Offer, offer_tools
from proxy.trial import disclosure
from proxy.trial.disclosure import Stripped, stripped_fields
from proxy.turn import chain
from proxy.turn.context import filter_context, offer_memory_tools, read_memory
from proxy.turn.identity import Identity, find_id
from proxy.turn.pipeline import Pipeline
from proxy.turn.request import ClientRequest
from proxy.turn.state import Turn
from proxy.turn.turn import RawRequest, read_turn
from proxy.upstream.body import ChatRequest

MessageDict = Mapping[str, Any]
Piece = tuple[Literal["same", "removed", "added"], str]
MemoryUse = Literal["read", "left out", "none"]
"""Whether memory was read for a call, was left out, or does not exist."""

_FORM = 'write a request\'s body, or {"headers": {…}, "path": "…", "body": {…}}'
_NO_MEMORY = Snapshot()
_FIELDS = tuple(name for name in Message.__struct_fields__ if name != "others")
_top_level = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_WORD = re.compile(r"\w+|\s+|[^\w\s]")
_MAX_WORDS = 4000  # comparing takes quadratic time
_SIMILAR = 0.4


class ExplainedIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The tenant, session and user of a call, and the places of their ids; ``None`` where there is none."""

    tenant: str
    session: str | None
    session_from: str | None
    user: str | None
    user_from: str | None
    background: bool


class FieldChange(msgspec.Struct, frozen=True):
    """A field of the top level before and after a filter; ``UNSET`` where it is missing."""

    name: str
    before: Any = UNSET
    after: Any = UNSET


class FilterStep(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of one filter.

    ``options`` are those that the configuration sets. ``before`` and ``after`` are the messages where the
    filter changed any. A filter that ``failed`` was skipped.
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
    """The upstream of a request and the model that it names."""

    upstream: str
    kind: str
    model: str | None


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The explanation of one call.

    ``annotated`` are the messages with memory's marks, if it sets any. ``degraded`` names the parts that were
    left out, of memory and others. ``tools`` are the memory tools offered to the model, ``sent``
    is the body for the upstream, and ``stripped`` what is missing there. Where the filters leave no message,
    nothing is sent, and ``error`` is what the client gets. Of values of fields that neither
    OpenAI nor a known voice platform names, only type and length are included.
    """

    pipeline: str
    identity: ExplainedIdentity = msgspec.field(name="whose")
    ignored: tuple[str, ...]
    memory: MemoryUse
    degraded: tuple[str, ...]
    messages: Sequence[Mapping[str, Any]]
    annotated: Sequence[Mapping[str, Any]] | UnsetType = msgspec.field(name="heard", default=UNSET)
    tools: tuple[str, ...]
    steps: tuple[FilterStep, ...]
    destination: Destination
    stripped: tuple[Stripped, ...]
    sent: Mapping[str, Any] | None
    error: Mapping[str, Any] | UnsetType = UNSET


async def explain_with_memory(request: RawRequest, pipeline: Pipeline, now: float) -> Explanation:
    """Explains a request at ``now``, in seconds since 1970, with memory as in a turn.

    Raises the errors of ``explain_request``.
    """
    # In threads, since it takes several times as long as a turn, and would block the event loop.
    turn = await asyncio.to_thread(_read, request, pipeline)
    missing: list[str] = []
    await read_memory(turn, missing.append)
    marked, memory = turn.marked_request, turn.context.memory

    def work() -> Explanation:
        explained = explain_call(marked, turn.identity, pipeline, now, memory)
        return msgspec.structs.replace(
            explained,
            degraded=(*missing, *explained.degraded),
            messages=_disclosed(turn.request.messages),
            annotated=UNSET if marked is turn.request else explained.messages,
        )

    return await asyncio.to_thread(work)


def explain_request(
    request: RawRequest, pipeline: Pipeline, now: float, *, remembers: bool = False
) -> Explanation:
    """Explains a request at ``now``, in seconds since 1970, without memory.

    ``remembers`` is whether there is memory that this pipeline lacks. Raises RequestError for a request that
    a turn would refuse, Unauthorized for a user without proof, and TurnkeeperError where a filter fails.
    """
    turn = _read(request, pipeline)
    return explain_call(turn.request, turn.identity, pipeline, now, remembers=remembers)


def _read(raw: RawRequest, pipeline: Pipeline) -> Turn:
    turn = read_turn(raw, pipeline)
    if proof := pipeline.id_places.proof:
        proof.check(turn.identity.user, raw.headers)
    return turn


def explain_call(  # noqa: PLR0913 - all that a turn has
    call: ClientRequest,
    identity: Identity,
    pipeline: Pipeline,
    now: float,
    memory: Snapshot | None = None,
    *,
    remembers: bool = False,
) -> Explanation:
    """Explains a call at ``now``, in seconds since 1970.

    ``memory`` is the snapshot for filters, ``None`` where memory was not read. Raises RequestError where no
    model is named.
    """
    run = run_filters(call, identity, pipeline, now, memory or _NO_MEMORY)
    target, body = pipeline.targets[0], _top_level(run.sent)
    sent: dict[str, Any] = {name: decode_raw(raw) for name, raw in body.items()}
    model = sent.get("model")
    use: MemoryUse = "left out" if memory is None else "read"
    if identity.background or not (remembers or pipeline.memory):
        use = "none"
    error = None
    if call.messages and not run.messages:
        error = chain.no_messages_left(pipeline.filters, call.messages, run.context)
    session_from = find_id(call, pipeline.id_places.session)[1]
    user_from = find_id(call, pipeline.id_places.user)[1]
    return Explanation(
        pipeline=pipeline.name,
        identity=ExplainedIdentity(
            tenant=identity.tenant,
            session=identity.session,
            session_from=str(session_from or "default_session") if identity.session is not None else None,
            user=identity.user,
            user_from=str(user_from) if user_from else None,
            background=identity.background,
        ),
        ignored=(*call.ignored, *identity.ignored),
        memory=use,
        degraded=run.degraded,
        messages=_disclosed(call.messages),
        tools=run.tools,
        steps=run.steps,
        destination=Destination(
            upstream=target.name, kind=target.provider.name, model=model if isinstance(model, str) else None
        ),
        stripped=stripped_fields(run.fields, list(map(message_dict, run.messages)), sent, target.provider),
        sent=None if error else disclosure.shown_body(body, sent["messages"], target.provider),
        error=msgspec.json.decode(error.body())["error"] if error else UNSET,
    )


class FilterRun(msgspec.Struct, frozen=True, kw_only=True):
    """A call after all filters, and the body for the upstream."""

    context: Context
    messages: Messages
    fields: Fields
    steps: tuple[FilterStep, ...]
    tools: tuple[str, ...]
    degraded: tuple[str, ...]
    sent: bytes


def run_filters(
    call: ClientRequest, identity: Identity, pipeline: Pipeline, now: float, memory: Snapshot = _NO_MEMORY
) -> FilterRun:
    """Runs a call through all filters of a pipeline, up to the body for its first upstream.

    Raises RequestError where no model is named.
    """
    context = filter_context(identity, memory, pipeline, now=now)
    messages: Messages = call.messages
    fields: Fields = call.fields
    steps, degraded = list[FilterStep](), list[str]()
    for each in pipeline.filters:
        step, filtered, fields = _run_step(
            each, messages, fields, context, skips=pipeline.skip_failing_filters
        )
        if each.leaves_out and len(filtered) < len(messages):
            degraded.append(each.leaves_out)
        steps.append(step)
        messages = filtered
    offer: Offer | None = None
    if pipeline.shown_tools and identity.key is not None:
        offer = offer_tools(fields, pipeline.shown_tools)
    elif tools := offer_memory_tools(fields, pipeline, identity, at=context.now):
        offer = tools.offer
    fields = offer.fields if offer else fields
    request = ChatRequest(
        model=pipeline.model, headers=call.headers, fields=fields, messages=messages, streaming=False
    )
    return FilterRun(
        context=context,
        messages=messages,
        fields=fields,
        steps=tuple(steps),
        tools=tuple(name for name in pipeline.tools or pipeline.shown_tools if offer and name in offer.names),
        degraded=(*degraded, *dict.fromkeys(step.filter for step in steps if step.failed)),
        sent=request.to(pipeline.targets[0]).body,
    )


def _run_step(
    each: RequestFilter, messages: Messages, fields: Fields, context: Context, *, skips: bool
) -> tuple[FilterStep, Messages, Fields]:
    started = time.perf_counter_ns()
    log = chain.FilterLog(failed=[] if skips else None)
    filtered = chain.run((each,), messages, context, log)
    new_fields = chain.set_fields((each,), fields, context, log)
    microseconds = (time.perf_counter_ns() - started) // 1000

    def value(name: str, fields: Fields) -> Any:
        return disclosure.shown_field(name, fields[name]) if name in fields else UNSET

    differs = filtered is not messages and list(filtered) != list(messages)
    changes = tuple(
        FieldChange(name, value(name, fields), value(name, new_fields))
        for name in {**fields, **new_fields}
        if fields.get(name) != new_fields.get(name)
    )
    step = FilterStep(
        filter=filter_name(each),
        options=each.model_dump(mode="json", exclude_unset=True),
        changed=differs or bool(changes),
        failed=bool(log.failed),
        microseconds=microseconds,
        before=_disclosed(messages) if differs else UNSET,
        after=_disclosed(filtered) if differs else UNSET,
        fields=changes,
    )
    return step, filtered, new_fields


def message_dict(message: Message) -> dict[str, Any]:
    """A message in the form that a client sends."""
    fields = {name: value for name in _FIELDS if (value := getattr(message, name)) is not UNSET}
    return {**fields, **message.others}


def _disclosed(messages: Messages) -> list[dict[str, Any]]:
    return [disclosure.shown_message(message_dict(message)) for message in messages]


# --- requests in files


def request_from_file(data: bytes, headers: Mapping[str, str], tenant: str = "default") -> RawRequest:
    """Reads a request from a file's content: a body alone, or a body with headers and path.

    ``headers``, in lower case, replace those of the file. Raises RequestError.
    """
    try:
        fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        fields = {}  # reading the body reports the error
    if "body" not in fields or "messages" in fields:
        return RawRequest(headers=headers, query={}, body=data, tenant=tenant)
    wrapper: dict[str, Any] = {}
    for name, raw in fields.items():
        try:
            wrapper[name] = raw if name == "body" else msgspec.json.decode(raw)
        except (msgspec.DecodeError, RecursionError):
            raise RequestError(f"'{name}' cannot be read; {_FORM}.") from None
    own, path = wrapper.get("headers", {}), wrapper.get("path", "/")
    if not isinstance(own, dict) or not all(isinstance(value, str) for value in own.values()):
        raise RequestError(f"'headers' must be names and texts; {_FORM}.", param="headers")
    try:
        query = urlsplit(path).query if isinstance(path, str) else None
    except ValueError:
        query = None
    if query is None:
        raise RequestError(f"'path' must be a path; {_FORM}.", param="path")
    return RawRequest(
        headers={**{name.lower(): value for name, value in own.items()}, **headers},
        query=dict(parse_qsl(query)),
        body=bytes(wrapper["body"]),
        tenant=tenant,
    )


def parse_header(text: str) -> tuple[str, str]:
    """Parses a header in the form ``Name: value``. Raises RequestError."""
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise RequestError("Write a header as 'Name: value'.")
    return name.strip().lower(), value.strip()


class Edit(msgspec.Struct, frozen=True):
    """One edit between two conversations; ``before`` and ``after`` are positions."""

    kind: Literal["same", "removed", "added", "changed"]
    before: int
    after: int
    count: int = 1


def edits(before: Sequence[MessageDict], after: Sequence[MessageDict]) -> Iterator[Edit]:
    """Yields the edits from ``before`` to ``after``, in order; together they cover both."""
    old, new = ([msgspec.json.encode(each, order="sorted") for each in side] for side in (before, after))
    for tag, start, end, new_start, new_end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            yield Edit("same", start, new_start, end - start)
            continue
        # Messages that are similar count as one that changed; pairs never cross.
        for i in range(start, end):
            pair = next((j for j in range(new_start, new_end) if _is_similar(before[i], after[j])), None)
            if pair is None:
                yield Edit("removed", i, new_start)
                continue
            yield from (Edit("added", i, j) for j in range(new_start, pair))
            yield Edit("changed", i, pair)
            new_start = pair + 1  # noqa: PLW2901
        yield from (Edit("added", end, j) for j in range(new_start, new_end))


def _is_similar(before: MessageDict, after: MessageDict) -> bool:
    if before.get("role") != after.get("role"):
        return False
    old, new = value_text(before.get("content"))[1:-1], value_text(after.get("content"))[1:-1]
    if old in new or new in old:
        return True
    matcher = SequenceMatcher(None, old[:_MAX_WORDS], new[:_MAX_WORDS], autojunk=False)
    return matcher.real_quick_ratio() > _SIMILAR and matcher.quick_ratio() > _SIMILAR


def pieces(before: str, after: str, max_words: int = _MAX_WORDS) -> Sequence[Piece] | None:
    """The edits between two texts, by words; ``None`` where one of them has more than ``max_words``."""
    old, new = _WORD.findall(before), _WORD.findall(after)
    if max(len(old), len(new)) > max_words:
        return None
    result: list[Piece] = []
    for tag, a, b, c, d in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        removed, added = "".join(old[a:b]), "".join(new[c:d])
        same: list[Piece] = [("same", removed)]
        changed: list[Piece] = [("removed", removed), ("added", added)]
        result += [step for step in (same if tag == "equal" else changed) if step[1]]
    return result


def value_text(value: object) -> str:
    """A value as JSON without ASCII escapes; empty for ``UNSET``."""
    if value is msgspec.UNSET:
        return ""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return msgspec.json.encode(value).decode()
