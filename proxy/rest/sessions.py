"""Sessions over HTTP, with their state, their summaries and their archived turns."""

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Sequence
from typing import Annotated, Final

import msgspec
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from filters.message import Message
from proxy.clock import wall_time
from proxy.errors import Conflict, NotFound, UpstreamBroken
from proxy.memory.compaction import fit
from proxy.memory.errors import StoreError, SummaryFailed, WriteConflict
from proxy.memory.interchange import contents, summaries
from proxy.memory.memory import Memory
from proxy.memory.session import UNREADABLE, Entry, Session
from proxy.memory.stores.session_store import SessionWrite
from proxy.memory.stores.store import Key
from proxy.rest.endpoint import (
    LARGEST_PAGE,
    PAGE,
    Methods,
    admit,
    archiving_of,
    body_of,
    json_response,
    key_of,
    long_response,
    memory_of,
    page_of,
    page_response,
    runtime_of,
    session_not_found,
)
from proxy.rest.session_body import (
    LARGEST,
    State,
    check_keys,
    check_state,
    export_fields,
    id_field,
    non_null,
    session_fields,
    session_from,
    state_from,
)
from proxy.rest.validation import at_most, validated, validated_query
from proxy.traces import Traces
from proxy.turn.request import raw_fields, read_messages

ROOT: Final = "/v1/memory/"
PATH: Final = f"{ROOT}sessions"
_EXAMPLE: Final = '{"contents": [{"role": "user", "content": "..."}]}'
_ATTEMPTS: Final = 10


class SummaryOptions(BaseModel):
    """The options of a summary that is made at once."""

    model_config = ConfigDict(extra="forbid")

    messages: list[dict[str, object]] | None = None
    fallback_model: str = ""


class TurnsQuery(BaseModel):
    """The archived turns after the ``after``-th."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    after: Annotated[int, Field(ge=0, le=2**31)] = 0
    limit: Annotated[int, Field(ge=1), at_most(LARGEST_PAGE)] = PAGE


def routes() -> list[Route]:
    """The routes; paths are matched undecoded, and the scope holds ``runtime``, ``tenant`` and ``traces``."""
    own = f"{PATH}/{{id}}"
    return [
        Route(PATH, Methods(GET=_list, POST=_create)),
        Route(own, Methods(GET=_export, PUT=_import, DELETE=_delete)),
        Route(f"{own}/state", Methods(GET=_get_state, PUT=_put_state, PATCH=_patch_state)),
        Route(f"{own}/summaries", Methods(GET=_list_summaries, POST=_summarize, DELETE=_clear_summaries)),
        Route(f"{own}/context", Methods(GET=_get_context)),
        Route(f"{own}/turns", Methods(GET=_list_turns)),
    ]


async def delete_session(memory: Memory | None, traces: Traces, key: Key) -> bool:
    """Removes a session, what is archived of it that belongs to no user, and the traces of its turns.

    Returns whether any of it was remembered; true without memory, where other processes may have traces that
    this one does not know of. Raises StoreError.
    """
    await traces.erase(key.tenant, session=key.session)
    if memory is None:
        return True
    await memory.written(*key)
    if memory.archiving:
        with contextlib.suppress(StoreError, *UNREADABLE):  # to delete it matters more
            as_of = wall_time()
            # A background process would not find later what a call reads of it now.
            if (session := await memory.store.session(key)) is not None:
                await memory.archiving.archive.save_sessions([(key, session, as_of)])
    deleted = await memory.store.delete(key)
    if memory.archiving:
        deleted = bool(await memory.archiving.archive.forget_anonymous(key, at=wall_time())) or deleted
    return deleted


async def _list(request: Request) -> Response:
    tenant = request.scope["tenant"]
    after, limit = page_of(request)
    if request.query_params.get("archived") == "true":
        archived = await archiving_of(request).archive.list_sessions(tenant, after=after, limit=limit + 1)
        sessions = list(archived.items())
    else:
        memory = memory_of(request)
        await memory.written(tenant)
        stored = await memory.store.list(tenant, after=after, limit=limit + 1)
        sessions = [(each.session, each.updated) for each in stored]
    data = [{"id": name, "updated": updated} for name, updated in sessions[:limit]]
    return page_response(data, has_more=len(sessions) > limit)


# What grows with a session is done in a thread: calls wait on the loop.


async def _create(request: Request) -> Response:
    memory = memory_of(request)
    body = await body_of(request, LARGEST) or b"{}"
    await admit(request, len(body))

    def read() -> tuple[str, Session]:
        fields = raw_fields(body, '{"id": "...", "user": "..."}')
        name = id_field(fields, "id") or f"session_{secrets.token_hex(12)}"
        check_keys(fields)
        whole = {"contents": msgspec.Raw(b"[]"), **non_null(fields)}
        return name, session_from(whole, memory.redaction)

    name, session = await asyncio.to_thread(read)
    key = Key(request.scope["tenant"], name)
    hot, cold = await _split(memory, session)
    write = SessionWrite(hot, 0, memory.writer.window.ttl, cold, background=True)
    if not await memory.store.save(key, write):
        raise Conflict(f"There is a session '{name}' already.", param="id")
    memory.writer.notify(key, hot)
    return long_response({"id": name, **await asyncio.to_thread(session_fields, session)}, status=201)


async def _export(request: Request) -> Response:
    memory, key = memory_of(request), key_of(request)
    await admit(request)
    session = await _read_or_404(memory, key)
    entries = await memory.store.entries(key, session)
    return long_response(await asyncio.to_thread(export_fields, session, entries))


async def _import(request: Request) -> Response:
    memory, key = memory_of(request), key_of(request)
    body = await body_of(request, LARGEST)
    await admit(request, len(body))
    session = await asyncio.to_thread(
        lambda: session_from(non_null(raw_fields(body, _EXAMPLE)), memory.redaction)
    )
    hot, cold = await _split(memory, session)
    await memory.written(*key)
    for _ in range(_ATTEMPTS):
        stored = await memory.store.read(key, background=True)
        version = stored.version if stored else 0
        write = SessionWrite(hot, version, memory.writer.window.ttl, cold)
        if await memory.store.overwrite(key, write):
            memory.writer.notify(key, hot)
            return long_response(await asyncio.to_thread(session_fields, session))
    raise _conflict()


async def _split(memory: Memory, session: Session) -> tuple[Session, Sequence[Entry]]:
    """The session as it fits the window, and its cold part."""
    return await asyncio.to_thread(fit, session, session, memory.writer.window, now=wall_time())


async def _delete(request: Request) -> Response:
    key = key_of(request)
    if not await delete_session(runtime_of(request).memory, request.scope["traces"], key):
        raise session_not_found(key)
    return Response(status_code=204)


async def _get_state(request: Request) -> Response:
    return json_response((await _read_or_404(memory_of(request), key_of(request))).state)


async def _put_state(request: Request) -> Response:
    state = state_from(await body_of(request))
    return await _update_state(request, lambda _: state)


async def _patch_state(request: Request) -> Response:
    """Merges at the top level; ``null`` removes a name."""
    patch = state_from(await body_of(request))
    return await _update_state(
        request,
        lambda state: {name: value for name, value in {**state, **patch}.items() if value is not None},
    )


async def _update_state(request: Request, change: Callable[[State], State]) -> Response:
    memory, key = memory_of(request), key_of(request)
    await memory.written(*key)

    def changed(session: Session) -> Session:
        state = memory.redaction.rules.value(change(session.state))
        check_state(state)
        return msgspec.structs.replace(session, state=state)

    try:
        session = await memory.store.change(key, changed)
    except WriteConflict:
        raise _conflict() from None
    if session is None:
        raise session_not_found(key)
    return json_response(session.state)


async def _list_summaries(request: Request) -> Response:
    memory, key = memory_of(request), key_of(request)
    return await _summaries_response(memory, key, await _read_or_404(memory, key))


async def _summarize(request: Request) -> Response:
    """Summarises what can be summarised, and waits for it; messages in the body need no session."""
    memory, key = memory_of(request), key_of(request)
    if not memory.writer.window.summaries:
        raise NotFound("Nothing is summarised here; set 'memory.summaries'.", code="summaries_off")
    options, messages = await asyncio.to_thread(_summary_options, await body_of(request))
    if messages is None:
        await _read_or_404(memory, key)
    try:
        await memory.summaries.summarize(key, messages, options.fallback_model)
    except SummaryFailed as error:
        raise UpstreamBroken(f"No summary was made: {error}") from None
    except WriteConflict:
        raise _conflict() from None
    return await _summaries_response(memory, key, await memory.store.session(key) or Session())


def _summary_options(body: bytes) -> tuple[SummaryOptions, Sequence[Message] | None]:
    """The options of a body, and the messages in it; raises RequestError."""
    options = validated(SummaryOptions, body or b"{}")
    if options.messages is None:
        return options, None
    messages, _ = read_messages(msgspec.Raw(msgspec.json.encode(options.messages)))
    return options, messages


async def _clear_summaries(request: Request) -> Response:
    """Removes the summaries; the window holds the turns that they stood for again."""
    memory, key = memory_of(request), key_of(request)
    await _read_or_404(memory, key)
    try:
        await memory.summaries.clear(key)
    except WriteConflict:
        raise _conflict() from None
    return Response(status_code=204)


async def _get_context(request: Request) -> Response:
    memory, key = memory_of(request), key_of(request)
    await _read_or_404(memory, key)
    return json_response({"context": await memory.summaries.get_context_string(key)})


async def _summaries_response(memory: Memory, key: Key, session: Session) -> Response:
    entries = await memory.store.entries(key, session)
    data = await asyncio.to_thread(summaries, session, entries)
    return long_response({"object": "list", "data": data})


async def _list_turns(request: Request) -> Response:
    archive, key = archiving_of(request).archive, key_of(request)
    query = validated_query(TurnsQuery, request)
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
    await memory.written(*key)
    session = await memory.store.session(key)
    if session is None:
        raise session_not_found(key)
    return session


def _conflict() -> Conflict:
    return Conflict("Others are writing this session; try again.")
