"""The pages of users and agents: search, export and erasure of a user's data, and episodes of agents."""

import contextlib
import time
from collections.abc import Sequence
from typing import Final

from starlette.responses import Response

from filters.inject_last_call import InjectLastCall, profile_block
from proxy.errors import NotFound
from proxy.memory.archive.records import Fact, Query
from proxy.memory.errors import CANNOT_BE_READ, Unreadable
from proxy.memory.memory import Memory
from proxy.memory.session import Session
from proxy.memory.stores.store import Key, Owner
from proxy.memory.view import RequestView
from proxy.observe.observation import TurnReport
from proxy.page.conversations import Hit, hits_of
from proxy.page.renderer import HEADERS
from proxy.page.request import PageRequest, redirect
from proxy.rest.endpoint import long_response
from proxy.rest.users import forget_user, list_users

_HERE: Final = "users"
_RESULTS: Final = 20
_TURNS: Final = 20
_PAGE: Final = 50
_LATEST: Final = 12
_CALLS: Final = 50
_EPISODES: Final = 100
_DAY: Final = 86_400.0
_LONGEST_QUERY: Final = 2000
_NO_USER: Final = "This cannot be a user's id."


async def _list(request: PageRequest) -> Response:
    if name := request.query.get("id", "").strip():
        return redirect(_HERE, name)
    memory, after = request.runtime.memory, request.query.get("after", "")
    users: Sequence[str] = ()
    if memory:
        users, _ = await list_users(memory, request.tenant, after=after, limit=_PAGE + 1)
    latest: dict[str, TurnReport] = {}
    for report in request.server.feed.newest(request.tenant):
        if report.user:
            latest.setdefault(report.user, report)
    return await request.page(
        "users.html",
        _HERE,
        latest=list(latest.values())[:_LATEST] if not after else [],
        users=users[:_PAGE],
        after=after,
        more=users[_PAGE - 1] if len(users) > _PAGE else None,
        remembered=memory is not None,
    )


async def _show(request: PageRequest) -> Response:
    owner, memory = _owner(request), request.runtime.memory
    text = request.query.get("query", "").strip()[:_LONGEST_QUERY]
    facts: list[Fact] | None = []
    results, sessions, next_call = [], [], None
    archive = memory.archiving.archive if memory and memory.archiving else None
    if memory and memory.facts:
        try:
            facts = await memory.facts.users.current(owner)
        except Unreadable:
            facts = None
    if memory and memory.search and text:
        query = Query(text=text, now=time.time(), limit=_RESULTS, zone=request.runtime.zone)
        results = await memory.search.search(owner, query)
    if archive:
        sessions = await archive.user_sessions(owner, limit=_CALLS)
    with contextlib.suppress(Unreadable):
        next_call = await _next_call(request, memory, owner) if memory else None
    await request.server.traces.fetch(request.tenant)
    reports = (trace.report for trace in request.server.traces.newest(request.tenant))
    return await request.page(
        "user.html",
        _HERE,
        id=owner.user,
        facts=facts,
        cannot_be_read=CANNOT_BE_READ,
        next_call=next_call,
        query=text,
        hits=hits_of(results, archive, text) if archive else [Hit(each) for each in results],
        is_common=archive is not None and not archive.has_words(text),
        sessions=sessions,
        turns=[report for report in reports if report.user == owner.user][:_TURNS],
        archived=archive is not None,
        searchable=memory is not None and memory.search is not None,
    )


async def _next_call(request: PageRequest, memory: Memory, owner: Owner) -> str | None:
    """The text that InjectLastCall would add to a new call; ``None`` where no pipeline has that step."""
    steps = (step for pipeline in request.runtime.pipelines.values() for step in pipeline.filters)
    step = next((step for step in steps if isinstance(step, InjectLastCall)), None)
    if step is None:
        return None
    new_session = RequestView((), at=time.time()).view_of(Session())
    call = await memory.calls.shown_call(owner, new_session, "", remembers=False)
    blocks = [profile_block(call.profile)]
    if call.last_call:
        blocks.append(call.last_call.as_block(step.introduction, step.timezone))
    return "\n\n".join(filter(None, blocks))


async def _remove_fact(request: PageRequest) -> Response:
    owner, memory = _owner(request), request.runtime.memory
    facts = memory.facts if memory else None
    if facts is None or not await facts.users.remove(owner, request.params["fact"]):
        raise NotFound("This fact is no longer stored.")
    return redirect(_HERE, owner.user)


async def _export(request: PageRequest) -> Response:
    export = await request.runtime.privacy.export(_owner(request))
    response = long_response(export)
    response.headers.update({**HEADERS, "content-disposition": 'attachment; filename="user.json"'})
    return response


async def _confirm_erasure(request: PageRequest) -> Response:
    return await request.page("forget.html", _HERE, id=_owner(request).user)


async def _erase(request: PageRequest) -> Response:
    await forget_user(request.runtime, _owner(request))
    return redirect(_HERE)


async def _find_agent(request: PageRequest) -> Response:
    if name := request.query.get("id", "").strip():
        return redirect("agents", name)
    return redirect(_HERE)


async def _show_agent(request: PageRequest) -> Response:
    key = Key(request.tenant, request.id(_NO_USER))
    since = time.time() - _DAY
    try:
        episodes = await request.memory.episodes.recent(key, since=since, limit=_EPISODES, background=True)
    except ValueError:
        raise NotFound("This agent's episodes cannot be read.") from None
    return await request.page("agent.html", _HERE, id=key.session, episodes=episodes)


def _owner(request: PageRequest) -> Owner:
    return Owner(request.tenant, request.id(_NO_USER))


ROUTES: Final = (
    ("GET", "/users", _list),
    ("GET", "/users/{id}", _show),
    ("GET", "/users/{id}/export", _export),
    ("GET", "/users/{id}/forget", _confirm_erasure),
    ("POST", "/users/{id}/forget", _erase),
    ("POST", "/users/{id}/facts/{fact}", _remove_fact),
    ("GET", "/agents", _find_agent),
    ("GET", "/agents/{id}", _show_agent),
)
