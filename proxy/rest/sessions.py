"""Sessions over HTTP: listed, made, carried out and in, and deleted, each under the caller's tenant."""

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from proxy.errors import Conflict, NotFound, RequestError, UpstreamBroken
from proxy.memory.archive.records import Turn
from proxy.memory.compaction import fit
from proxy.memory.errors import SummaryFailed, WriteConflict
from proxy.memory.interchange import contents, summaries
from proxy.memory.memory import Memory
from proxy.memory.remainder import remainder
from proxy.memory.session import Entry, Session, ordered
from proxy.memory.stores.session_store import SessionWrite
from proxy.memory.stores.store import KEEP_EXPIRY, Key
from proxy.rest import validation
from proxy.rest.endpoint import (
    archiving_of,
    body_of,
    by_method,
    json_response,
    key_of,
    memory_of,
    session_not_found,
)
from proxy.rest.session_body import (
    OWN,
    State,
    check_keys,
    check_state,
    checked_id,
    id_field,
    non_null,
    session_from,
    state_from,
)
from proxy.traces import Traces
from proxy.turn.request import raw_fields, read_messages

ROOT: Final = "/v1/memory/"
_EXAMPLE = '{"contents": [{"role": "user", "content": "..."}]}'
_LARGEST_PAGE, _PAGE = 100, 50
_DIGITS: Final = len(str(_LARGEST_PAGE))
"""So many are enough to tell that a number is larger."""
_ATTEMPTS = 10
_LARGEST_TURN_PAGE: Final = 100


PATH: Final = f"{ROOT}sessions"


def routes() -> list[Route]:
    """The paths; they are matched undecoded, and the request's scope holds ``runtime`` and ``tenant``."""
    own = f"{PATH}/{{id}}"
    summaries = {"GET": _list_summaries, "POST": _create_summary, "DELETE": _clear_summaries}
    return [
        Route(PATH, by_method({"GET": _list_sessions, "POST": _create_session})),
        Route(own, by_method({"GET": _export_session, "PUT": _import_session, "DELETE": _delete_session})),
        Route(f"{own}/summaries", by_method(summaries)),
        Route(f"{own}/context", by_method({"GET": _get_context})),
        Route(f"{own}/state", by_method({"GET": _get_state, "PUT": _put_state, "PATCH": _patch_state})),
        Route(f"{own}/turns", by_method({"GET": _list_turns})),
    ]


async def _list_sessions(request: Request) -> Response:
    after = request.query_params.get("after", "")
    limit = _page_limit(request.query_params.get("limit"))
    behind = checked_id(after, "after") if after else ""
    archived = request.query_params.get("archived") == "true"
    found = await (_archived_sessions if archived else _stored_sessions)(request, behind, limit + 1)
    data = [{"id": name, "updated": updated} for name, updated in found[:limit]]
    last = data[-1]["id"] if data else None
    return json_response({"object": "list", "data": data, "has_more": len(found) > limit, "last_id": last})


async def _stored_sessions(request: Request, after: str, limit: int) -> list[tuple[str, float]]:
    found = await memory_of(request).store.list(request.scope["tenant"], after=after, limit=limit)
    return [(line.session, line.updated) for line in found]


async def _archived_sessions(request: Request, after: str, limit: int) -> list[tuple[str, float]]:
    """Those of which turns are kept for good, whether or not they are still held."""
    archive = archiving_of(request).archive
    return [*(await archive.list_sessions(request.scope["tenant"], after=after, limit=limit)).items()]


async def _create_session(request: Request) -> Response:
    memory = memory_of(request)
    fields = raw_fields(await body_of(request) or b"{}", '{"id": "...", "user": "..."}')
    name = id_field(fields, "id") or f"session_{secrets.token_hex(12)}"
    whole = {"contents": msgspec.Raw(b"[]"), **non_null(check_keys(fields))}
    session = await asyncio.to_thread(session_from, whole, memory.veil)
    if not await _insert(memory, Key(request.scope["tenant"], name), session):
        raise Conflict(f"There is a session '{name}' already.", param="id")
    return await asyncio.to_thread(
        lambda: json_response({"id": name, **_session_fields(session)}, status=201)
    )


async def _export_session(request: Request) -> Response:
    store, key = memory_of(request).store, key_of(request)
    stored = await store.load(key, background=True)
    if stored is None:
        raise session_not_found(key)
    entries = await store.entries(key, stored.session)
    # In a thread, as everything here that grows with a session: callers wait on the loop.
    return await asyncio.to_thread(_export_body, stored.session, entries)


async def _import_session(request: Request) -> Response:
    memory, key = memory_of(request), key_of(request)
    content = await body_of(request)
    session = await asyncio.to_thread(
        lambda: session_from(non_null(raw_fields(content, _EXAMPLE)), memory.veil)
    )
    await _replace(memory, key, session)
    return await asyncio.to_thread(lambda: json_response(_session_fields(session)))


async def _delete_session(request: Request) -> Response:
    runtime, key = request.scope["runtime"], key_of(request)
    if not await delete_session(runtime.memory, request.scope["traces"], key):
        raise session_not_found(key)
    return Response(status_code=204)


async def delete_session(memory: Memory | None, traces: Traces, key: Key) -> bool:
    """Removes a session, what is archived of it that belongs to no person, and what is kept of its turns.

    Whether there was anything that was remembered; true without memory, where other processes may have kept
    turns that this one knows nothing of. Raises StoreError.
    """
    traces.erase(key.tenant, session=key.session)
    if memory is None:
        return True
    there = await memory.store.delete(key)
    if memory.archiving:
        there = bool(await memory.archiving.archive.forget_anonymous(key, at=time.time())) or there
    return there


async def _insert(memory: Memory, key: Key, session: Session) -> bool:
    """Whether the session is held now; not where there is one already."""
    kept, cold = await _fitted(memory, session)
    put = SessionWrite(kept, 0, memory.writer.window.ttl, cold, background=True)
    if not await memory.store.save(key, put):
        return False
    memory.writer.notify(key, kept)
    return True


async def _replace(memory: Memory, key: Key, session: Session) -> None:
    kept, cold = await _fitted(memory, session)
    for _ in range(_ATTEMPTS):
        stored = await memory.store.read(key, background=True)
        version = stored.version if stored else 0
        put = SessionWrite(kept, version, memory.writer.window.ttl, cold)
        if await memory.store.overwrite(key, put):
            memory.writer.notify(key, kept)
            return
    raise Conflict("Others are writing this session; try again.")


async def _fitted(memory: Memory, session: Session) -> tuple[Session, Sequence[Entry]]:
    """The session as it is held, and its cold part."""
    window = memory.writer.window
    return await asyncio.to_thread(fit, session, session, window, now=time.time())


def _export_body(hot: Session, entries: tuple[Entry, ...]) -> Response:
    session = ordered(msgspec.structs.replace(hot, entries=entries, cold_count=0))
    return json_response({**_session_fields(session), OWN: remainder(session)})


def _session_fields(session: Session) -> dict[str, Any]:
    return {"contents": contents(session.entries), "summaries": summaries(session, session.entries)}


def _page_limit(given: str | None) -> int:
    """How many are wanted; no more than a page holds."""
    if given is None:
        return _PAGE
    digits = given.lstrip("0")
    if not (digits and given.isascii() and given.isdigit()):
        raise RequestError("'limit' must be a number from 1 on.", param="limit")
    return min(int(digits[:_DIGITS]), _LARGEST_PAGE)


_STATE_ATTEMPTS: Final = 10


async def _get_state(request: Request) -> Response:
    memory, key = memory_of(request), key_of(request)
    return json_response((await _read_or_404(memory, key)).state)


async def _put_state(request: Request) -> Response:
    given = state_from(await body_of(request))
    return await _update_state(request, lambda _: given)


async def _patch_state(request: Request) -> Response:
    """Merges at the top level; ``null`` takes a name out."""
    given = state_from(await body_of(request))
    return await _update_state(request, lambda state: _merge_patch(state, given))


def _merge_patch(state: Mapping[str, Any], patch: Mapping[str, Any]) -> State:
    return {name: value for name, value in {**state, **patch}.items() if value is not None}


async def _update_state(request: Request, change: Callable[[State], State]) -> Response:
    memory, key = memory_of(request), key_of(request)
    for _ in range(_STATE_ATTEMPTS):
        stored = await memory.store.load(key, background=True)
        if stored is None:
            raise session_not_found(key)
        state = check_state(memory.veil.redaction.value(change(stored.session.state)))
        changed = msgspec.structs.replace(stored.session, state=state)
        put = SessionWrite(changed, stored.version, KEEP_EXPIRY, background=True)
        if await memory.store.save(key, put):
            return json_response(state)
    raise Conflict("Others are writing this session; try again.")


class SummaryOptions(BaseModel):
    """What a client may say when it wants a summary now."""

    model_config = ConfigDict(extra="forbid")

    messages: list[dict[str, object]] | None = None
    fallback_model: str = ""


async def _list_summaries(request: Request) -> Response:
    memory, key = memory_of(request), key_of(request)
    return await _summary_list(memory, key, await _read_or_404(memory, key))


async def _create_summary(request: Request) -> Response:
    """Summarises what can be summarised, and waits for it; messages that are given need no session."""
    memory, key = memory_of(request), key_of(request)
    if not memory.writer.window.summaries:
        raise NotFound("Nothing is summarised here; set 'memory.summaries'.", code="summaries_off")
    asked = validation.validated(SummaryOptions, await body_of(request) or b"{}")
    messages = None
    if asked.messages is None:
        await _read_or_404(memory, key)
    else:
        messages, _ = read_messages(msgspec.Raw(msgspec.json.encode(asked.messages)))
    try:
        await memory.summaries.summarize(key, messages, asked.fallback_model)
    except SummaryFailed as error:
        raise UpstreamBroken(f"No summary was made: {error}") from None
    except WriteConflict:
        raise _contended() from None
    return await _summary_list(memory, key, await _read_session(memory, key) or Session())


async def _clear_summaries(request: Request) -> Response:
    """The turns that summaries stood for are held ready again."""
    memory, key = memory_of(request), key_of(request)
    await _read_or_404(memory, key)
    try:
        await memory.summaries.clear(key)
    except WriteConflict:
        raise _contended() from None
    return Response(status_code=204)


async def _get_context(request: Request) -> Response:
    memory, key = memory_of(request), key_of(request)
    await _read_or_404(memory, key)
    return json_response({"context": await memory.summaries.get_context_string(key)})


async def _summary_list(memory: Memory, key: Key, session: Session) -> Response:
    found = summaries(session, await memory.store.entries(key, session))
    return json_response({"object": "list", "data": found})


async def _read_or_404(memory: Memory, key: Key) -> Session:
    session = await _read_session(memory, key)
    if session is None:
        raise session_not_found(key)
    return session


async def _read_session(memory: Memory, key: Key) -> Session | None:
    stored = await memory.store.load(key, background=True)
    return stored.session if stored else None


def _contended() -> Conflict:
    return Conflict("Others are writing this session; try again.")


class _TurnPage(BaseModel):
    """Which turns are wanted: those behind the ``after``th."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    after: Annotated[int, Field(ge=0, le=2**31)] = 0
    limit: Annotated[int, Field(ge=1), validation.at_most(_LARGEST_TURN_PAGE)] = 50


async def _list_turns(request: Request) -> Response:
    archive = archiving_of(request).archive
    key = key_of(request)
    page = validation.validated_query(_TurnPage, request)
    found = await archive.session_turns(key, start=page.after, limit=page.limit + 1)
    if not found and not page.after:
        fault = f"Nothing is archived of a session '{key.session}'."
        raise NotFound(fault, param="id", code="session_not_found")
    shown = found[: page.limit]
    data = [_turn_fields(number, turn) for number, turn in enumerate(shown, page.after + 1)]
    last = data[-1]["number"] if data else None
    return json_response({"object": "list", "data": data, "has_more": len(found) > len(shown), "last": last})


def _turn_fields(number: int, turn: Turn) -> dict[str, Any]:
    return {"number": number, "timestamp": turn.at, "message": contents([turn.entry])[0]}
