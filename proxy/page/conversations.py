"""Pages of conversations: stored ones to read, correct and delete, archived ones to read and delete."""

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from math import ceil
from operator import attrgetter
from typing import Any, Final

import msgspec
from starlette.responses import Response

from proxy.errors import Conflict, NotFound
from proxy.memory.archive.archive import Archive
from proxy.memory.archive.recall import Searcher
from proxy.memory.archive.records import Query, SearchResult
from proxy.memory.errors import Unreadable
from proxy.memory.session import Entry, Segment, Session
from proxy.memory.stores.session_store import SessionWrite, StoredSession
from proxy.memory.stores.store import KEEP_EXPIRY, Key, ListedSession, Owner
from proxy.page.request import PageRequest, redirect
from proxy.page.timeline import (
    SAME_TURN,
    TranscriptLine,
    TurnMark,
    call_timeline,
    lines_of,
    reworded,
    turn_number,
    turns_of_lines,
)
from proxy.rest.sessions import delete_session
from proxy.trace import Trace

_HERE: Final = "conversations"
_PAGE: Final = 50
_CARDS: Final = 30
_LINES: Final = 200
_LISTED: Final = 10_000
_SEARCHED: Final = 50
_RESULTS: Final = 20
_LAST_PAGE: Final = 10_000
_BEFORE: Final = 10
_LONGEST_SEARCH: Final = 200
_FIRST_WORDS: Final = 160
# In seconds: how long a call counts as active after its last turn.
_LIVE: Final = 60.0
_LAST_POSITION: Final = 10**9


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation as a row of the list. ``seconds`` is its duration so far; ``words`` are its first words.

    ``turns`` and ``barge_ins`` are counted in the window; ``is_cut`` is whether there are earlier turns.
    """

    id: str
    updated: float
    user: str | None = None
    words: str = ""
    turns: int = 0
    barge_ins: int = 0
    is_cut: bool = False
    seconds: float = 0.0
    state: str = "ended"


async def _list(request: PageRequest) -> Response:
    if name := request.query.get("id", "").strip():
        return redirect(_HERE, name)
    text = request.query.get("q", "").strip()[:_LONGEST_SEARCH]
    page = _position(request.query.get("page"), _LAST_PAGE) if "page" in request.query else 1
    await request.memory.wait_written(request.tenant)
    listed = await request.memory.store.list(request.tenant, limit=_LISTED + 1)
    newest = sorted(listed[:_LISTED], key=attrgetter("updated"), reverse=True)
    stored = len(newest)
    archiving, search = request.memory.archiving, request.memory.search
    hits: Sequence[Hit] = ()
    is_common = False
    if text and archiving and search:
        hits = hits_of(await _search(request, search, newest, text), archiving.archive, text)
        is_common = not hits and not archiving.archive.has_words(text)
    if text:
        newest = [each for each in newest if text.casefold() in each.session.casefold()]
    start = _CARDS * (max(1, page) - 1)
    cards = [await _card(request, each) for each in newest[start : start + _CARDS]]
    return await request.page(
        "conversations.html",
        _HERE,
        # Background work also saves sessions, which changes their order in the store's list.
        cards=sorted(cards, key=attrgetter("updated"), reverse=True),
        count=stored,
        more=len(listed) > _LISTED,
        page=max(1, page),
        pages=ceil(len(newest) / _CARDS),
        query=text,
        hits=hits,
        is_common=is_common,
        archived=archiving is not None,
    )


async def _card(request: PageRequest, listed: ListedSession) -> Card:
    """The card of a session; only its name if the session cannot be read, or was removed meanwhile."""
    try:
        session = await request.memory.store.session(Key(request.tenant, listed.session))
    except Unreadable:
        session = None
    if session is None:
        return Card(id=listed.session, updated=listed.updated)
    spoken = [entry for entry in session.entries if entry.role == "user" and entry.text.strip()]
    turns = {entry.turn_ref for entry in session.entries if entry.role == "user"}
    started = session.created or min((entry.at for entry in session.entries), default=listed.updated)
    is_live = time.time() - session.updated < _LIVE
    return Card(
        id=listed.session,
        updated=session.updated,
        user=session.user,
        words=spoken[0].text[:_FIRST_WORDS] if spoken else "",
        turns=len(turns),
        barge_ins=sum(entry.interrupted for entry in session.entries),
        is_cut=session.cold_count > 0,
        seconds=max(0.0, session.updated - started),
        state="live" if is_live else "ended",
    )


async def _search(
    request: PageRequest, search: Searcher, newest: Sequence[ListedSession], text: str
) -> Sequence[SearchResult]:
    """Searches the turns of the newest conversations' users."""
    users = []
    for listed in newest[:_SEARCHED]:
        card = await _card(request, listed)
        if card.user is not None and card.user not in users:
            users.append(card.user)
    query = Query(text=text, now=time.time(), limit=_RESULTS, zone=request.runtime.zone)
    results = [
        each
        for user in users
        for each in await search.search(Owner(request.tenant, user), query)
        if each.kind == "turn"
    ]
    return sorted(results, key=lambda each: -each.score)[:_RESULTS]


class Hit(msgspec.Struct, frozen=True):
    """A result, and in order the neighbouring turns that are results only because of it."""

    result: SearchResult
    near: Sequence[SearchResult] = ()


def hits_of(results: Sequence[SearchResult], archive: Archive, text: str) -> Sequence[Hit]:
    """The hits of a search, best first; results without a word of the query are added to a neighbour."""
    near: dict[int, list[SearchResult]] = {}
    with_words = [i for i, each in enumerate(results) if archive.shares_words(text, each.text)]
    for i, each in enumerate(results):
        beside = (j for j in with_words if _are_neighbours(results[j], each))
        near.setdefault(i if i in with_words else next(beside, i), []).append(each)
    hits = []
    for i, group in near.items():
        others = [each for each in group if each is not results[i]]
        hits.append(Hit(results[i], sorted(others, key=lambda each: each.timestamp or 0.0)))
    return sorted(hits, key=lambda hit: -hit.result.score)


def _are_neighbours(one: SearchResult, other: SearchResult) -> bool:
    is_same = one.kind == other.kind == "turn" and one.session_id == other.session_id
    return is_same and abs((one.turn_id or 0) - (other.turn_id or 0)) <= 1


async def _show(request: PageRequest) -> Response:
    key, store = request.session_key, request.memory.store
    await request.memory.wait_written(*key)
    if "at" in request.query:
        return await _find(request, key)
    if request.memory.archiving and await store.read(key, background=True) is None:
        return await _show_archived(request, key)
    session, *_ = await _read(request, key)
    end = _position(request.query.get("before"), session.cold_count + len(session.entries))
    start = max(0, end - _LINES)
    cold: Sequence[Entry] = ()
    if start < session.cold_count:
        cold = await store.cold_entries(key, start=start, limit=min(end, session.cold_count) - start)
    hot = session.entries[max(0, start - session.cold_count) : max(0, end - session.cold_count)]
    await request.server.traces.fetch(request.tenant)
    marks = [*map(_mark, request.server.traces.newest(*key))]
    values: dict[str, Any] = {
        "id": key.session,
        "session": session,
        "start": start,
        "end": end,
        # Only the newest answer is shown as not confirmed: some clients never confirm any.
        "newest_answer": max(
            (i for i, each in enumerate(session.entries, session.cold_count) if each.role == "assistant"),
            default=None,
        ),
        "is_newest": end == session.cold_count + len(session.entries),
        **await asyncio.to_thread(_lines_and_timeline, cold, hot, start, session.summaries, marks),
    }
    if request.headers.get("x-part"):
        return await request.fragment("call.html", **values)
    return await request.page("conversation.html", _HERE, **values)


def _lines_and_timeline(
    cold: Sequence[Entry],
    hot: Sequence[Entry],
    start: int,
    summaries: Sequence[Segment],
    marks: Sequence[TurnMark],
) -> Mapping[str, Any]:
    """The lines of entries and their time line; to be run in a thread, since it may take long."""
    lines = lines_of(cold, hot, start, summaries)
    turns = turns_of_lines(lines, marks)
    return {
        "lines": lines,
        "turns": turns,
        "failed": [mark for mark in marks if mark not in turns.values()][:_LINES],
        "timeline": call_timeline(lines, turns),
    }


async def _find(request: PageRequest, key: Key) -> Response:
    """Redirects to the line of a turn at the time ``at``, in the stored or in the archived conversation.

    For a result of a search the query also has the role and the turn, and ``at`` is when it was said.
    """
    text = request.query["at"]
    at = float(text) if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,6})?", text, re.ASCII) else -1.0
    role, turn = request.query.get("role"), request.query.get("turn")
    session = await request.memory.store.session(key)
    if session is not None:
        entries = await request.memory.store.entries(key, session)
        position = _position_at(entries, at, role, turn)
        if position is not None:
            end = min(len(entries), position + _LINES // 2)
            return redirect(_HERE, key.session, query=f"?before={end}#m{position}")
    elif request.memory.archiving:
        turns = await request.memory.archiving.archive.session_turns(key)
        position = _position_at([each.entry for each in turns], at, role, turn)
        if position is not None:
            return redirect(_HERE, key.session, query=f"?from={max(0, position - _BEFORE)}#m{position}")
    if role is not None:
        return redirect(_HERE, key.session)
    raise NotFound("This turn is not kept any more, and its words are not stored.")


def _position_at(entries: Sequence[Entry], at: float, role: str | None, turn: str | None) -> int | None:
    """The index of the newest user entry recorded at a time; with a ``role``, of its entry said then."""
    if role is None:
        near = [i for i, e in enumerate(entries) if e.role == "user" and abs(e.recorded_at - at) < SAME_TURN]
        return max(near, default=None)
    near = [i for i, e in enumerate(entries) if e.role == role and abs(e.at - at) < SAME_TURN]
    return max(near, key=lambda i: (str(turn_number(entries[i])) == turn, i), default=None)


def _mark(trace: Trace) -> TurnMark:
    report, written = trace.report, trace.written_at
    return TurnMark(
        id=report.id,
        at=report.at,
        state=report.state,
        first_token=report.first_token,
        overhead=report.overhead,
        written_at=None if written is None else report.at + written - trace.start,
    )


async def _confirm_deletion(request: PageRequest) -> Response:
    key = request.session_key
    session, *_ = await _read(request, key)
    user = session.user if request.memory.archiving else None
    count = session.cold_count + len(session.entries)
    return await request.page("delete.html", _HERE, id=key.session, count=count, user=user, archived=False)


async def _delete(request: PageRequest) -> Response:
    await delete_session(request.memory, request.server.traces, request.session_key)
    return redirect(_HERE)


async def _edit_form(request: PageRequest) -> Response:
    key = request.session_key
    session, *_ = await _read(request, key)
    return await _edit_page(request, key, _editable_line(request, session))


async def _edit(request: PageRequest) -> Response:
    key = request.session_key
    session, version, _ = await _read(request, key)
    line = _editable_line(request, session)
    if request.form.get("shown") != line.fingerprint:
        raise Conflict("This turn has changed since you opened it; go back, reload and try again.")
    text = request.form.get("text", "")
    if not (text.strip() or line.calls):  # models refuse a message without words, unless it calls a tool
        return await _edit_page(request, key, line, wordless=True)
    changed = reworded(session, line.position, text)
    write = SessionWrite(changed, version, KEEP_EXPIRY, background=True)
    if not await request.memory.store.save(key, write):
        raise Conflict("A call wrote this conversation at the same moment; try again.")
    request.memory.writer.notify(key, changed)
    await request.server.traces.erase(key.tenant, session=key.session)
    return redirect(_HERE, key.session)


async def _edit_page(
    request: PageRequest, key: Key, line: TranscriptLine, *, wordless: bool = False
) -> Response:
    status = 400 if wordless else 200
    return await request.page("edit.html", _HERE, status=status, id=key.session, line=line, wordless=wordless)


def _editable_line(request: PageRequest, session: Session) -> TranscriptLine:
    """The line at the path's position; raises NotFound in the cold part, which cannot be edited."""
    position = _position(request.params["position"], -1)
    index = position - session.cold_count
    if not 0 <= index < len(session.entries):
        raise NotFound("This turn does not exist, or is too old to be edited.")
    (line,) = lines_of([], [session.entries[index]], position)
    if not line.editable:
        raise NotFound("This turn has no words of its own that could be edited.")
    return line


async def _list_archived(request: PageRequest) -> Response:
    archive, after = _archive_of(request), request.query.get("after", "")
    sessions = list((await archive.list_sessions(request.tenant, after=after, limit=_PAGE + 1)).items())
    more = sessions[_PAGE - 1][0] if len(sessions) > _PAGE else None
    return await request.page("archive.html", _HERE, sessions=sessions[:_PAGE], after=after, more=more)


async def _show_archived(request: PageRequest, key: Key) -> Response:
    start = _position(request.query.get("from", "0"), _LAST_POSITION)
    turns = await _archive_of(request).session_turns(key, start=start, limit=_LINES + 1)
    if not turns:
        raise NotFound("There is no such conversation, neither stored nor in the archive.")
    lines = lines_of([], [turn.entry for turn in turns[:_LINES]], start)
    return await request.page(
        "archived.html",
        _HERE,
        id=key.session,
        lines=[msgspec.structs.replace(line, editable=False) for line in lines],
        turns={},
        newest_answer=None,
        start=start,
        more=start + _LINES if len(turns) > _LINES else None,
        began=turns[0].at,
    )


async def _confirm_archive_deletion(request: PageRequest) -> Response:
    key = await _archived_key(request)
    if not await _archive_of(request).session_turns(key, start=0, limit=1):
        raise NotFound("There is no such conversation in the archive.")
    return await request.page("delete.html", _HERE, id=key.session, archived=True)


async def _delete_archived(request: PageRequest) -> Response:
    key = await _archived_key(request)
    await request.runtime.privacy.forget_session(key.tenant, key.session)
    return redirect(_HERE, "archive", "all")


async def _archived_key(request: PageRequest) -> Key:
    """The key of the path's session; raises Conflict if it is still stored, not only archived."""
    key = request.session_key
    _archive_of(request)
    if await request.memory.store.read(key, background=True) is not None:
        raise Conflict("A conversation of this name is stored, and may be going on: delete that first.")
    return key


def _archive_of(request: PageRequest) -> Archive:
    """The archive; raises NotFound where there is none."""
    archiving = request.memory.archiving
    if archiving is None:
        raise NotFound("There is no such conversation; it may have expired, and there is no archive.")
    return archiving.archive


async def _read(request: PageRequest, key: Key) -> StoredSession:
    stored = await request.memory.store.load(key, background=True)
    if stored is None:
        raise NotFound("There is no such conversation; it may have expired.")
    return stored


def _position(text: str | None, default: int) -> int:
    """Parses a position, at most ``default`` unless that is -1; returns ``default`` for invalid text."""
    if text is None or not re.fullmatch(r"[0-9]{1,9}", text):
        return default
    return min(int(text), default) if default >= 0 else int(text)


ROUTES: Final = (
    ("GET", "/conversations", _list),
    ("GET", "/conversations/{id}", _show),
    ("GET", "/conversations/{id}/delete", _confirm_deletion),
    ("POST", "/conversations/{id}/delete", _delete),
    ("GET", "/conversations/{id}/edit/{position}", _edit_form),
    ("POST", "/conversations/{id}/edit/{position}", _edit),
    ("GET", "/conversations/archive/all", _list_archived),
    ("GET", "/conversations/{id}/archive/delete", _confirm_archive_deletion),
    ("POST", "/conversations/{id}/archive/delete", _delete_archived),
)
