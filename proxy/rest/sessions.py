"""Sessions over HTTP: state, summaries, archived turns, and a session as JSON for import and export."""

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
from pydantic import Field
from starlette.responses import Response

from filters.message import Message, weight
from proxy.answer.sse import decode_raw
from proxy.clock import wall_time
from proxy.errors import Conflict, NotFound, RequestError, TooLarge, UpstreamBroken
from proxy.http.request import BodyLimit, structure_size
from proxy.memory.compaction import fit
from proxy.memory.errors import StoreError, SummaryFailed, Unreadable, WriteConflict
from proxy.memory.interchange import (
    NotBlank,
    Summary,
    contents,
    remainder_fields,
    restore_session,
    session_from_messages,
    summaries,
    with_summaries,
)
from proxy.memory.memory import Memory
from proxy.memory.redacted_view import WindowRedaction
from proxy.memory.session import Entry, Session, decode, encode
from proxy.memory.speech import MAX_SPEECH
from proxy.memory.stores.session_store import SessionWrite
from proxy.memory.stores.store import Key
from proxy.rest.endpoint import (
    LARGEST_PAGE,
    PAGE,
    ApiModel,
    ApiRequest,
    Routes,
    at_most,
    checked_id,
    json_response,
    long_response,
    page_response,
    session_not_found,
    validated,
)
from proxy.traces import Traces
from proxy.turn.request import check_count, mend_json, raw_fields, read_messages

Fields = Mapping[str, msgspec.Raw]
State = dict[str, Any]

ROOT: Final = "/v1/memory/"
_ALL: Final = f"{ROOT}sessions"
_PATH: Final = f"{_ALL}/{{id}}"
_EXAMPLE: Final = '{"contents": [{"role": "user", "content": "..."}]}'
_ATTEMPTS: Final = 10
_NULL: Final = msgspec.Raw(b"null")
_REMAINDER: Final = "turnkeeper"
"""The key of an export for data beyond Agora's form, with which an import restores the same session."""
_KEYS: Final = ("id", "user", "contents", "summaries", "state", _REMAINDER)
_MAX_MESSAGES: Final = 10_000
# In characters: the heard part of an answer, and its whole text.
_LARGEST_MESSAGE: Final = 2 * MAX_SPEECH
LARGEST: Final = BodyLimit(16_000_000, structure=1_500_000, setting=None)
"""The limits of an import."""
_LARGEST_STATE: Final = 8_000
"""The largest state as JSON, in bytes: it is read with each turn."""


class SummaryOptions(ApiModel):
    """The options of a request to summarise now."""

    messages: list[dict[str, object]] | None = None
    fallback_model: str = ""


class TurnsQuery(ApiModel):
    """The archived turns after the ``after``-th."""

    after: Annotated[int, Field(ge=0, le=2**31)] = 0
    limit: Annotated[int, Field(ge=1), at_most(LARGEST_PAGE)] = PAGE


async def delete_session(memory: Memory | None, traces: Traces, key: Key) -> bool:
    """Removes a session, its archived turns that belong to no user, and its traces.

    Returns whether any of it was stored; true without memory, since other processes may have traces that this
    one does not know of. Raises StoreError.
    """
    await traces.erase(key.tenant, session=key.session)
    if memory is None:
        return True
    await memory.wait_written(*key)
    if memory.archiving:
        with contextlib.suppress(StoreError):  # the deletion matters more
            as_of = wall_time()
            # Turns of users are archived now: after the deletion the background process cannot read them.
            if (session := await memory.store.session(key)) is not None:
                await memory.archiving.archive.save_sessions([(key, session, as_of)])
    deleted = await memory.store.delete(key)
    if memory.archiving:
        deleted = bool(await memory.archiving.archive.forget_anonymous(key, at=wall_time())) or deleted
    return deleted


async def _list(request: ApiRequest) -> Response:
    tenant = request.tenant
    after, limit = request.page
    if request.query.get("archived") == "true":
        archived = await request.archiving.archive.list_sessions(tenant, after=after, limit=limit + 1)
        sessions = list(archived.items())
    else:
        memory = request.memory
        await memory.wait_written(tenant)
        stored = await memory.store.list(tenant, after=after, limit=limit + 1)
        sessions = [(each.session, each.updated) for each in stored]
    data = [{"id": name, "updated": updated} for name, updated in sessions[:limit]]
    return page_response(data, has_more=len(sessions) > limit)


# Work that grows with a session runs in a thread, since it would block the event loop.


async def _create(request: ApiRequest) -> Response:
    memory = request.memory
    body = await request.body(LARGEST) or b"{}"
    await request.admit(len(body))

    def read() -> tuple[str, Session]:
        fields = raw_fields(body, '{"id": "...", "user": "..."}')
        name = id_field(fields, "id") or f"session_{secrets.token_hex(12)}"
        check_keys(fields)
        whole = {"contents": msgspec.Raw(b"[]"), **non_null(fields)}
        return name, session_from(whole, memory.redaction)

    name, session = await asyncio.to_thread(read)
    key = Key(request.tenant, name)
    hot, cold = await _split(memory, session)
    write = SessionWrite(hot, 0, memory.writer.limits.ttl, cold, background=True)
    if not await memory.store.save(key, write):
        raise Conflict(f"The session '{name}' already exists.", param="id")
    memory.writer.notify(key, hot)
    return long_response({"id": name, **await asyncio.to_thread(session_fields, session)}, status=201)


async def _export(request: ApiRequest) -> Response:
    memory, key = request.memory, request.key
    await request.admit()
    session = await _read_or_404(memory, key)
    entries = await memory.store.entries(key, session)
    return long_response(await asyncio.to_thread(export_fields, session, entries))


async def _import(request: ApiRequest) -> Response:
    memory, key = request.memory, request.key
    body = await request.body(LARGEST)
    await request.admit(len(body))
    session = await asyncio.to_thread(
        lambda: session_from(non_null(raw_fields(body, _EXAMPLE)), memory.redaction)
    )
    hot, cold = await _split(memory, session)
    await memory.wait_written(*key)
    for _ in range(_ATTEMPTS):
        stored = await memory.store.read(key, background=True)
        version = stored.version if stored else 0
        write = SessionWrite(hot, version, memory.writer.limits.ttl, cold)
        if await memory.store.overwrite(key, write):
            memory.writer.notify(key, hot)
            return long_response(await asyncio.to_thread(session_fields, session))
    raise WriteConflict


async def _split(memory: Memory, session: Session) -> tuple[Session, Sequence[Entry]]:
    """The session reduced to the window, and its cold part."""
    return await asyncio.to_thread(fit, session, session, memory.writer.limits, now=wall_time())


async def _delete(request: ApiRequest) -> Response:
    key = request.key
    if not await delete_session(request.runtime.memory, request.traces, key):
        raise session_not_found(key)
    return Response(status_code=204)


async def _get_state(request: ApiRequest) -> Response:
    return json_response((await _read_or_404(request.memory, request.key)).state)


async def _put_state(request: ApiRequest) -> Response:
    state = state_from(await request.body())
    return await _update_state(request, lambda _: state)


async def _patch_state(request: ApiRequest) -> Response:
    """Merges at the top level; ``null`` removes a name."""
    patch = state_from(await request.body())
    return await _update_state(
        request,
        lambda state: {name: value for name, value in {**state, **patch}.items() if value is not None},
    )


async def _update_state(request: ApiRequest, change: Callable[[State], State]) -> Response:
    memory, key = request.memory, request.key
    await memory.wait_written(*key)

    def changed(session: Session) -> Session:
        state = memory.redaction.rules.value(change(session.state))
        check_state(state)
        return msgspec.structs.replace(session, state=state)

    session = await memory.store.change(key, changed)
    if session is None:
        raise session_not_found(key)
    return json_response(session.state)


async def _list_summaries(request: ApiRequest) -> Response:
    memory, key = request.memory, request.key
    return await _summaries_response(memory, key, await _read_or_404(memory, key))


async def _summarize(request: ApiRequest) -> Response:
    """Summarises the session, or the messages in the body, which need no session, and waits for it."""
    memory, key = request.memory, request.key
    if not memory.writer.limits.summaries:
        raise NotFound("There are no summaries here; set 'memory.summaries'.", code="summaries_off")
    options, messages = await asyncio.to_thread(_summary_options, await request.body())
    if messages is None:
        await _read_or_404(memory, key)
    try:
        await memory.summaries.summarize(key, messages, options.fallback_model)
    except SummaryFailed as error:
        raise UpstreamBroken(f"No summary was made: {error}") from None
    return await _summaries_response(memory, key, await memory.store.session(key) or Session())


def _summary_options(body: bytes) -> tuple[SummaryOptions, Sequence[Message] | None]:
    """The options of a body, and the messages in it; raises RequestError."""
    options = validated(SummaryOptions, body or b"{}")
    if options.messages is None:
        return options, None
    messages, _ = read_messages(msgspec.Raw(msgspec.json.encode(options.messages)))
    return options, messages


async def _clear_summaries(request: ApiRequest) -> Response:
    """Removes the summaries; the prompt has the turns that they covered again."""
    memory, key = request.memory, request.key
    await _read_or_404(memory, key)
    await memory.summaries.clear(key)
    return Response(status_code=204)


async def _get_context(request: ApiRequest) -> Response:
    memory, key = request.memory, request.key
    await _read_or_404(memory, key)
    return json_response({"context": await memory.summaries.get_context_string(key)})


async def _summaries_response(memory: Memory, key: Key, session: Session) -> Response:
    entries = await memory.store.entries(key, session)
    data = await asyncio.to_thread(summaries, session, entries)
    return long_response({"object": "list", "data": data})


async def _list_turns(request: ApiRequest) -> Response:
    archive, key = request.archiving.archive, request.key
    query = request.query_as(TurnsQuery)
    turns = await archive.session_turns(key, start=query.after, limit=query.limit + 1)
    if not turns and not query.after:
        message = f"Nothing is archived of a session '{key.session}'."
        raise NotFound(message, param="id", code="session_not_found")
    data = [
        {"number": number, "timestamp": turn.at, "message": contents([turn.entry])[0]}
        for number, turn in enumerate(turns[: query.limit], query.after + 1)
    ]
    last = data[-1]["number"] if data else None
    more = len(turns) > query.limit
    return long_response({"object": "list", "data": data, "has_more": more, "last": last})


async def _read_or_404(memory: Memory, key: Key) -> Session:
    await memory.wait_written(*key)
    session = await memory.store.session(key)
    if session is None:
        raise session_not_found(key)
    return session


def non_null(fields: Fields) -> dict[str, msgspec.Raw]:
    """The fields that are not null."""
    return {name: raw for name, raw in fields.items() if raw != _NULL}


def check_keys(fields: Fields) -> None:
    """Raises RequestError for an unknown key."""
    for name in fields:
        if name not in _KEYS:
            raise RequestError(f"'{name}': unknown key; available: {', '.join(_KEYS)}.", param=name)


def id_field(fields: Fields, name: str) -> str | None:
    """The id under a key, or ``None``; raises RequestError for an invalid one."""
    raw = fields.get(name)
    return None if raw is None or raw == _NULL else checked_id(decode_raw(raw), name)


def session_from(fields: Fields, redaction: WindowRedaction) -> Session:
    """Reads the session in a body, redacted; raises RequestError and TooLarge, which name the key."""
    if "contents" not in fields:
        raise RequestError("'contents' is missing; send an array of messages.", param="contents")
    check_count(fields["contents"], "contents", _MAX_MESSAGES, "a session of at most {limit} can be imported")
    _check_structure(fields["contents"])
    messages, _ = read_messages(fields["contents"], "contents")
    for i, each in enumerate(messages):
        if weight(each) > _LARGEST_MESSAGE:
            path = f"contents[{i}]"
            raise TooLarge(f"'{path}' has more than {_LARGEST_MESSAGE} characters of speech.", param=path)
    session = _session(redaction.window(messages), fields)
    try:
        session = decode(encode(session))  # makes sure that the stored session can be read
    except (OverflowError, RecursionError, ValueError, Unreadable):
        message = "'contents' holds a number too large, or is nested too deeply."
        raise RequestError(message, param="contents") from None
    user, state = id_field(fields, "user"), fields.get("state")
    session = msgspec.structs.replace(
        session,
        user=session.user if user is None else user,
        state=session.state if state is None else state_from(bytes(state), "state"),
    )
    return redaction.rules.session(session)


def _check_structure(raw: msgspec.Raw) -> None:
    """Raises TooLarge for a message with more bytes outside of its strings than a turn may have."""
    limit = BodyLimit(LARGEST.size)
    try:
        items = msgspec.json.decode(raw, type=list[msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):  # read_messages reports the error
        return
    for item in map(bytes, items):
        if len(item) > limit.structure and structure_size(item) > limit.structure:
            raise limit.structure_error()


def _session(messages: Sequence[Message], fields: Fields) -> Session:
    """The session as it was exported, if the body has all its data; else one made from the messages.

    Raises RequestError.
    """
    remainder = fields.get(_REMAINDER)
    if remainder is not None:
        try:
            return restore_session(messages, msgspec.json.decode(remainder, type=dict[str, msgspec.Raw]))
        except (ValueError, RecursionError) as error:
            message = f"'{_REMAINDER}' does not belong to these 'contents' ({error})"
            raise RequestError(f"{message}; leave it out to import them alone.", param=_REMAINDER) from None
    session = session_from_messages(messages, now=wall_time())
    try:
        carried = msgspec.json.decode(fields.get("summaries", b"[]"), type=list[Summary | NotBlank])
        return with_summaries(
            session, [Summary(text=one, messages=0) if isinstance(one, str) else one for one in carried]
        )
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        message = (
            "'summaries' must be an array of {text, messages} for no more messages than 'contents' has, or of"
            " texts on what was said before these; none of them blank."
        )
        raise RequestError(message, param="summaries") from None


def export_fields(session: Session, entries: tuple[Entry, ...]) -> dict[str, Any]:
    """The body of an export of a session with all its entries."""
    session = msgspec.structs.replace(session, entries=entries, cold_count=0)
    return {**session_fields(session), _REMAINDER: remainder_fields(session)}


def session_fields(session: Session) -> dict[str, Any]:
    """A session in Agora's form."""
    return {"contents": contents(session.entries), "summaries": summaries(session, session.entries)}


def state_from(body: bytes, param: str | None = None) -> State:
    """Reads a session's state from JSON; raises RequestError and TooLarge, which name ``param``."""
    try:
        state = _state(body)
        check_state(state, param)  # first, since the rest would block the event loop for a large state
        msgspec.msgpack.encode(state)
        decode(encode(Session(state=state)))  # makes sure that the stored state can be read
    except (ValueError, OverflowError, RecursionError, Unreadable):  # msgspec's errors are ValueErrors
        name = f"'{param}'" if param else "The state"
        message = f"{name} must be a JSON object, with no number beyond 64 bits."
        raise RequestError(message, param=param) from None
    return state


def _state(body: bytes) -> State:
    """Decodes a JSON object; half a character is no error, as in a chat request. Raises ValueError."""
    try:
        return msgspec.json.decode(body, type=State)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        return msgspec.json.decode(mend_json(body), type=State)


def check_state(state: State, param: str | None = None) -> None:
    """Raises TooLarge, which names ``param``, for a state that is too large."""
    if len(msgspec.json.encode(state)) > _LARGEST_STATE:
        name = f"'{param}'" if param else "A state"
        raise TooLarge(f"{name} has at most {_LARGEST_STATE} bytes.", param=param)


ROUTES: Final[Routes] = (
    ("GET", _ALL, _list),
    ("POST", _ALL, _create),
    ("GET", _PATH, _export),
    ("PUT", _PATH, _import),
    ("DELETE", _PATH, _delete),
    ("GET", f"{_PATH}/state", _get_state),
    ("PUT", f"{_PATH}/state", _put_state),
    ("PATCH", f"{_PATH}/state", _patch_state),
    ("GET", f"{_PATH}/summaries", _list_summaries),
    ("POST", f"{_PATH}/summaries", _summarize),
    ("DELETE", f"{_PATH}/summaries", _clear_summaries),
    ("GET", f"{_PATH}/context", _get_context),
    ("GET", f"{_PATH}/turns", _list_turns),
)
