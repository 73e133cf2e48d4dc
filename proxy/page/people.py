"""What is remembered of a person, and of what an agent did: to read, search, carry away and forget."""

import asyncio
import time
from typing import Final

import msgspec
from starlette.responses import Response

from proxy.errors import NotFound
from proxy.memory.archive.archive import Query
from proxy.memory.memory import Archiving
from proxy.memory.stores.store import Key, Owner
from proxy.observe.observation import TurnReport
from proxy.page.paper import GUARDED
from proxy.page.room import Room, redirect
from proxy.rest import persons
from proxy.turn.identity import identifier

_HERE: Final = "people"
_FOUND: Final = 20
_TURNS: Final = 20
_EPISODES: Final = 100
_A_DAY: Final = 86_400.0


async def _listed(room: Room) -> Response:
    if wanted := room.query.get("id", "").strip():
        return redirect(_HERE, wanted)
    seen: dict[str, TurnReport] = {}
    for trace in room.server.traces.newest(room.tenant):
        if trace.account.user:
            seen.setdefault(trace.account.user, trace.account)
    return await room.page("people.html", _HERE, callers=list(seen.values()))


async def _shown(room: Room) -> Response:
    person, archiving = _person(room), _archiving(room)
    asked = room.query.get("query", "").strip()[:2000]
    facts, found = [], []
    if archiving:
        facts = await archiving.knowledge.of(person)
        if asked:
            query = Query(text=asked, now=time.time(), limit=_FOUND, zone=room.parts.zone)
            found = await archiving.finder.search(person, query)
    recent = [t.account for t in room.server.traces.newest(room.tenant) if t.account.user == person.person]
    return await room.page(
        "person.html",
        _HERE,
        id=person.person,
        facts=facts,
        asked=asked,
        found=found,
        turns=recent[:_TURNS],
        archived=archiving is not None,
    )


async def _fact_removed(room: Room) -> Response:
    person, archiving = _person(room), _archiving(room)
    if archiving is None or not await archiving.knowledge.drop(person, room.params["fact"]):
        raise NotFound("This fact is not there any more.")
    return redirect(_HERE, person.person)


async def _exported(room: Room) -> Response:
    person = _person(room)
    found = await room.parts.people.exported(person)
    # In a thread: it may be long, and callers wait on the loop.
    text = await asyncio.to_thread(lambda: msgspec.json.format(msgspec.json.encode(found), indent=2))
    headers = {**GUARDED, "content-disposition": 'attachment; filename="person.json"'}
    return Response(text, 200, headers, "application/json")


async def _asked_to_forget(room: Room) -> Response:
    return await room.page("forget.html", _HERE, id=_person(room).person)


async def _forgotten(room: Room) -> Response:
    await persons.forget(room.parts.people, _person(room))
    return redirect(_HERE)


async def _agent(room: Room) -> Response:
    if wanted := room.query.get("id", "").strip():
        return redirect("agents", wanted)
    return redirect(_HERE)


async def _episodes(room: Room) -> Response:
    agent = _identifier(room)
    since = time.time() - _A_DAY
    key = Key(room.tenant, agent)
    try:
        found = await room.memory.episodes.recent(key, since=since, limit=_EPISODES, leisure=True)
    except ValueError:
        raise NotFound("What is kept of this agent cannot be read.") from None
    return await room.page("agent.html", _HERE, id=agent, episodes=found)


def _person(room: Room) -> Owner:
    return Owner(room.tenant, _identifier(room))


def _identifier(room: Room) -> str:
    found = identifier(room.params["id"])
    if found is None:
        raise NotFound("Nobody can have this name.")
    return found


def _archiving(room: Room) -> Archiving | None:
    return room.parts.memory.archiving if room.parts.memory else None


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
