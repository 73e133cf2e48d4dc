"""Sessions over HTTP: listed, made, carried out and in, and deleted, each under the caller's tenant."""

import asyncio
import secrets
import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from proxy import rest
from proxy.errors import Conflict, RequestError
from proxy.memory.cold import cold_part
from proxy.memory.interchange import contents, summaries
from proxy.memory.memory import Memory
from proxy.memory.remainder import remainder
from proxy.memory.session import Entry, Session, decode, encode, ordered
from proxy.memory.stores.store import Key, Put
from proxy.memory.summaries.compaction import fitted
from proxy.rest.carried import OWN, carried, given, identified, known, named
from proxy.traces import Traces
from proxy.turn.request import top_level

ROOT: Final = "/v1/memory/"
PATH: Final = f"{ROOT}sessions"
_EXAMPLE = '{"contents": [{"role": "user", "content": "..."}]}'
_MOST, _USUAL = 100, 50
_DIGITS: Final = len(str(_MOST))
"""So many are enough to tell that a number is larger."""
_ATTEMPTS = 10


def routes() -> list[Route]:
    """The paths; they are matched undecoded, and the request's scope holds ``parts`` and ``tenant``."""
    listed = {"GET": _listed, "POST": _made}
    one = {"GET": _exported, "PUT": _imported, "DELETE": _deleted}
    return [Route(PATH, rest.answering(listed)), Route(f"{PATH}/{{id}}", rest.answering(one))]


async def _listed(request: Request) -> Response:
    after = request.query_params.get("after", "")
    limit = _limit(request.query_params.get("limit"))
    behind = identified(after, "after") if after else ""
    archived = request.query_params.get("archived") == "true"
    found = await (_archived if archived else _held)(request, behind, limit + 1)
    data = [{"id": name, "updated": updated} for name, updated in found[:limit]]
    last = data[-1]["id"] if data else None
    return rest.answer({"object": "list", "data": data, "has_more": len(found) > limit, "last_id": last})


async def _held(request: Request, after: str, limit: int) -> list[tuple[str, float]]:
    found = await rest.memory_of(request).store.list(request.scope["tenant"], after=after, limit=limit)
    return [(line.session, line.updated) for line in found]


async def _archived(request: Request, after: str, limit: int) -> list[tuple[str, float]]:
    """Those of which turns are kept for good, whether or not they are still held."""
    archive = rest.archiving_of(request).archive
    return [*(await archive.talks(request.scope["tenant"], after=after, limit=limit)).items()]


async def _made(request: Request) -> Response:
    memory = rest.memory_of(request)
    fields = top_level(await rest.content(request) or b"{}", '{"id": "...", "user": "..."}')
    name = named(fields, "id") or f"session_{secrets.token_hex(12)}"
    whole = {"contents": msgspec.Raw(b"[]"), **given(known(fields))}
    session = await asyncio.to_thread(carried, whole, memory.veil)
    if not await _add(memory, Key(request.scope["tenant"], name), session):
        raise Conflict(f"There is a session '{name}' already.", param="id")
    return await asyncio.to_thread(lambda: rest.answer({"id": name, **_told(session)}, status=201))


async def _exported(request: Request) -> Response:
    store, key = rest.memory_of(request).store, rest.key_of(request)
    held = await store.read(key, leisure=True)
    if held is None:
        raise rest.unheld(key)
    session = decode(held.blob)
    moved = await cold_part(store, key, session.moved)
    # In a thread, as everything here that grows with a session: callers wait on the loop.
    return await asyncio.to_thread(_export, session, moved)


async def _imported(request: Request) -> Response:
    memory, key = rest.memory_of(request), rest.key_of(request)
    content = await rest.content(request)
    session = await asyncio.to_thread(lambda: carried(given(top_level(content, _EXAMPLE)), memory.veil))
    await _replace(memory, key, session)
    return await asyncio.to_thread(lambda: rest.answer(_told(session)))


async def _deleted(request: Request) -> Response:
    parts, key = request.scope["parts"], rest.key_of(request)
    if not await delete(parts.memory, request.scope["traces"], key):
        raise rest.unheld(key)
    return Response(status_code=204)


async def delete(memory: Memory | None, traces: Traces, key: Key) -> bool:
    """Removes a session, what is archived of it that belongs to no person, and what is kept of its turns.

    Whether there was anything that was remembered; true without memory, where other processes may have kept
    turns that this one knows nothing of. Raises StoreError.
    """
    traces.forget(key.tenant, session=key.session)
    if memory is None:
        return True
    there = await memory.store.delete(key)
    if memory.archiving:
        there = bool(await memory.archiving.archive.forget_strangers(key, at=time.time())) or there
    return there


async def _add(memory: Memory, key: Key, session: Session) -> bool:
    """Whether the session is held now; not where there is one already."""
    kept, cold = await _fitted(memory, session)
    ttl = memory.writer.window.ttl
    put = Put(encode(kept), version=0, ttl=ttl, cold=cold, leisure=True)
    if not await memory.store.write(key, put):
        return False
    memory.writer.tell(key, kept)
    return True


async def _replace(memory: Memory, key: Key, session: Session) -> None:
    kept, cold = await _fitted(memory, session)
    blob, ttl = encode(kept), memory.writer.window.ttl
    for _ in range(_ATTEMPTS):
        held = await memory.store.read(key, leisure=True)
        version = held.version if held else 0
        if await memory.store.replace(key, Put(blob, version=version, ttl=ttl, cold=cold)):
            memory.writer.tell(key, kept)
            return
    raise Conflict("Others are writing this session; try again.")


async def _fitted(memory: Memory, session: Session) -> tuple[Session, list[bytes]]:
    """The session as it is held, and its cold part."""
    window = memory.writer.window
    kept, moved = await asyncio.to_thread(fitted, session, session, window, now=time.time())
    return kept, [msgspec.msgpack.encode(entry) for entry in moved]


def _export(hot: Session, cold: Sequence[bytes]) -> Response:
    moved = (msgspec.msgpack.decode(entry, type=Entry) for entry in cold)
    session = ordered(msgspec.structs.replace(hot, entries=(*moved, *hot.entries), moved=0))
    return rest.answer({**_told(session), OWN: remainder(session)})


def _told(session: Session) -> dict[str, Any]:
    return {"contents": contents(session.entries), "summaries": summaries(session, session.entries)}


def _limit(given: str | None) -> int:
    """How many are wanted; no more than a page holds."""
    if given is None:
        return _USUAL
    digits = given.lstrip("0")
    if not (digits and given.isascii() and given.isdigit()):
        raise RequestError("'limit' must be a number from 1 on.", param="limit")
    return min(int(digits[:_DIGITS]), _MOST)
