"""What is remembered of a person, and of what an agent did: to read, search, carry away and forget."""

import asyncio
import time
from typing import Final

import msgspec
from starlette.responses import Response

from proxy.errors import NotFound
from proxy.memory.archive.records import Query
from proxy.memory.memory import Archiving
from proxy.memory.stores.store import Key, Owner
from proxy.observe.observation import TurnReport
from proxy.page.renderer import HEADERS
from proxy.page.request import PageRequest, redirect
from proxy.rest import users
from proxy.turn.identity import identifier

_HERE: Final = "people"
_FOUND: Final = 20
_TURNS: Final = 20
_EPISODES: Final = 100
_A_DAY: Final = 86_400.0


async def _listed(request: PageRequest) -> Response:
    if wanted := request.query.get("id", "").strip():
        return redirect(_HERE, wanted)
    seen: dict[str, TurnReport] = {}
    for trace in request.server.traces.newest(request.tenant):
        if trace.report.user:
            seen.setdefault(trace.report.user, trace.report)
    return await request.page("people.html", _HERE, callers=list(seen.values()))


async def _shown(request: PageRequest) -> Response:
    person, archiving = _person(request), _archiving(request)
    asked = request.query.get("query", "").strip()[:2000]
    facts, found = [], []
    if archiving:
        facts = await archiving.facts.current(person)
        if asked:
            query = Query(text=asked, now=time.time(), limit=_FOUND, zone=request.runtime.zone)
            found = await archiving.retriever.search(person, query)
    recent = [t.report for t in request.server.traces.newest(request.tenant) if t.report.user == person.user]
    return await request.page(
        "person.html",
        _HERE,
        id=person.user,
        facts=facts,
        asked=asked,
        found=found,
        turns=recent[:_TURNS],
        archived=archiving is not None,
    )


async def _fact_removed(request: PageRequest) -> Response:
    person, archiving = _person(request), _archiving(request)
    if archiving is None or not await archiving.facts.remove(person, request.params["fact"]):
        raise NotFound("This fact is not there any more.")
    return redirect(_HERE, person.user)


async def _exported(request: PageRequest) -> Response:
    person = _person(request)
    found = await request.runtime.privacy.exported(person)
    # In a thread: it may be long, and callers wait on the loop.
    text = await asyncio.to_thread(lambda: msgspec.json.format(msgspec.json.encode(found), indent=2))
    headers = {**HEADERS, "content-disposition": 'attachment; filename="person.json"'}
    return Response(text, 200, headers, "application/json")


async def _asked_to_forget(request: PageRequest) -> Response:
    return await request.page("forget.html", _HERE, id=_person(request).user)


async def _forgotten(request: PageRequest) -> Response:
    await users.forget_user(request.runtime.privacy, _person(request))
    return redirect(_HERE)


async def _agent(request: PageRequest) -> Response:
    if wanted := request.query.get("id", "").strip():
        return redirect("agents", wanted)
    return redirect(_HERE)


async def _episodes(request: PageRequest) -> Response:
    agent = _identifier(request)
    since = time.time() - _A_DAY
    key = Key(request.tenant, agent)
    try:
        found = await request.memory.episodes.recent(key, since=since, limit=_EPISODES, background=True)
    except ValueError:
        raise NotFound("What is kept of this agent cannot be read.") from None
    return await request.page("agent.html", _HERE, id=agent, episodes=found)


def _person(request: PageRequest) -> Owner:
    return Owner(request.tenant, _identifier(request))


def _identifier(request: PageRequest) -> str:
    found = identifier(request.params["id"])
    if found is None:
        raise NotFound("Nobody can have this name.")
    return found


def _archiving(request: PageRequest) -> Archiving | None:
    return request.runtime.memory.archiving if request.runtime.memory else None


ROUTES: Final = (
    ("GET", "/people", _listed),
    ("GET", "/people/{id}", _shown),
    ("GET", "/people/{id}/export", _exported),
    ("GET", "/people/{id}/forget", _asked_to_forget),
    ("POST", "/people/{id}/forget", _forgotten),
    ("POST", "/people/{id}/facts/{fact}", _fact_removed),
    ("GET", "/agents", _agent),
    ("GET", "/agents/{id}", _episodes),
)
