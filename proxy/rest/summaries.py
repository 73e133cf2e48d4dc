"""Summaries of a session over HTTP: listed, made now, cleared, and as one text."""

import msgspec
from pydantic import BaseModel, ConfigDict
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from proxy import rest
from proxy.errors import Conflict, NotFound, UpstreamBroken
from proxy.memory.cold import all_of
from proxy.memory.errors import Contended, Unmade
from proxy.memory.interchange import summaries
from proxy.memory.memory import Memory
from proxy.memory.session import Session, decode
from proxy.memory.stores.store import Key
from proxy.turn.request import read_messages


class SummaryAsked(BaseModel):
    """What a client may say when it wants a summary now."""

    model_config = ConfigDict(extra="forbid")

    messages: list[dict[str, object]] | None = None
    fallback_model: str = ""


def routes(root: str) -> list[Route]:
    """The paths under a session's own."""
    own = {"GET": _listed, "POST": _made, "DELETE": _cleared}
    return [
        Route(f"{root}/{{id}}/summaries", rest.answering(own)),
        Route(f"{root}/{{id}}/context", rest.answering({"GET": _context})),
    ]


async def _listed(request: Request) -> Response:
    memory, key = rest.memory_of(request), rest.key_of(request)
    return await _list(memory, key, await _held(memory, key))


async def _made(request: Request) -> Response:
    """Summarises what can be summarised, and waits for it; messages that are given need no session."""
    memory, key = rest.memory_of(request), rest.key_of(request)
    if not memory.writer.window.summaries:
        raise NotFound("Nothing is summarised here; set 'memory.summaries'.", code="summaries_off")
    asked = rest.checked(SummaryAsked, await rest.content(request) or b"{}")
    messages = None
    if asked.messages is None:
        await _held(memory, key)
    else:
        messages, _ = read_messages(msgspec.Raw(msgspec.json.encode(asked.messages)))
    try:
        await memory.summaries.summarize(key, messages, asked.fallback_model)
    except Unmade as error:
        raise UpstreamBroken(f"No summary was made: {error}") from None
    except Contended:
        raise _contended() from None
    return await _list(memory, key, await _read(memory, key) or Session())


async def _cleared(request: Request) -> Response:
    """The turns that summaries stood for are held ready again."""
    memory, key = rest.memory_of(request), rest.key_of(request)
    await _held(memory, key)
    try:
        await memory.summaries.clear(key)
    except Contended:
        raise _contended() from None
    return Response(status_code=204)


async def _context(request: Request) -> Response:
    memory, key = rest.memory_of(request), rest.key_of(request)
    await _held(memory, key)
    return rest.answer({"context": await memory.summaries.get_context_string(key)})


async def _list(memory: Memory, key: Key, session: Session) -> Response:
    found = summaries(session, await all_of(memory.store, key, session))
    return rest.answer({"object": "list", "data": found})


async def _held(memory: Memory, key: Key) -> Session:
    session = await _read(memory, key)
    if session is None:
        raise rest.unheld(key)
    return session


async def _read(memory: Memory, key: Key) -> Session | None:
    held = await memory.store.read(key, leisure=True)
    return decode(held.blob) if held else None


def _contended() -> Conflict:
    return Conflict("Others are writing this session; try again.")
