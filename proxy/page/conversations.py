"""What callers said and heard: a list of sessions, and each of them to read, mend and delete."""

from collections.abc import Sequence
from typing import Final

import msgspec
from starlette.responses import Response

from proxy.errors import Conflict, NotFound, TurnkeeperError
from proxy.memory.archive.archive import Archive
from proxy.memory.session import Entry, Session
from proxy.memory.stores.session_store import SessionWrite, StoredSession
from proxy.memory.stores.store import KEEP_EXPIRY, Key
from proxy.observe.observation import TurnReport
from proxy.page.lines import Line, is_as_shown, lines_of, reworded
from proxy.page.request import PageRequest, redirect
from proxy.rest.sessions import delete_session
from proxy.traces import Trace
from proxy.turn.identity import identifier

_HERE: Final = "conversations"
_ON_A_PAGE: Final = 50
_LINES: Final = 200
_LATEST: Final = 8
_FURTHEST: Final = 10**9


async def _list(request: PageRequest) -> Response:
    wanted = request.query.get("id", "").strip()
    if wanted:
        return redirect(_HERE, wanted)
    after = request.query.get("after", "")
    found = await request.memory.store.list(request.tenant, after=after, limit=_ON_A_PAGE + 1)
    shown = found[:_ON_A_PAGE]
    return await request.page(
        "conversations.html",
        _HERE,
        sessions=shown,
        after=after,
        more=shown[-1].session if len(found) > len(shown) else None,
        latest=_latest(request),
        archived=request.memory.archiving is not None,
    )


def _latest(request: PageRequest) -> Sequence[TurnReport]:
    """The newest turn of each session that spoke last."""
    seen: dict[str, Trace] = {}
    for trace in request.server.traces.newest(request.tenant):
        session = trace.report.session
        if session is not None and len(seen) < _LATEST:
            seen.setdefault(session, trace)
    return [trace.report for trace in seen.values()]


async def _show(request: PageRequest) -> Response:
    key = _key_of(request)
    if await request.memory.store.read(key, background=True) is None and request.memory.archiving:
        return await _archived_page(request, key, _position(request.query.get("from", "0"), _FURTHEST))
    session, _ = await _read(request, key)
    end = _position(request.query.get("before"), session.cold_count + len(session.entries))
    start = max(0, end - _LINES)
    heard = await _lines(request, key, session, start, end)
    return await request.page(
        "conversation.html",
        _HERE,
        id=key.session,
        session=session,
        lines=heard,
        start=start,
        end=end,
        turns=[trace.report for trace in request.server.traces.newest(request.tenant, key.session)][:_LINES],
    )


async def _lines(request: PageRequest, key: Key, session: Session, start: int, end: int) -> Sequence[Line]:
    cold: Sequence[Entry] = ()
    if start < session.cold_count:
        moved = min(end, session.cold_count)
        cold = await request.memory.store.cold_entries(key, start=start, limit=moved - start)
    hot = session.entries[max(0, start - session.cold_count) : max(0, end - session.cold_count)]
    return lines_of(cold, hot, start, session.summaries)


async def _confirm_deletion(request: PageRequest) -> Response:
    key = _key_of(request)
    session, _ = await _read(request, key)
    person = session.user if request.memory.archiving else None
    count = session.cold_count + len(session.entries)
    return await request.page(
        "delete.html", _HERE, id=key.session, count=count, person=person, archived=False
    )


async def _delete(request: PageRequest) -> Response:
    key = _key_of(request)
    await delete_session(request.memory, request.server.traces, key)
    return redirect(_HERE)


async def _edit_form(request: PageRequest) -> Response:
    key = _key_of(request)
    session, _ = await _read(request, key)
    line = _line(session, request.params["position"])
    return await _edit_page(request, key, line)


async def _edit_page(request: PageRequest, key: Key, line: Line, *, wordless: bool = False) -> Response:
    status = 400 if wordless else 200
    return await request.page("edit.html", _HERE, status=status, id=key.session, line=line, wordless=wordless)


async def _edit(request: PageRequest) -> Response:
    key = _key_of(request)
    session, version = await _read(request, key)
    line = _line(session, request.params["position"])
    if not is_as_shown(line, request.form.get("shown", "")):
        raise Conflict("This turn has changed since you opened it; go back, reload and try again.")
    text = request.form.get("text", "")
    if not _says_something(text, line):
        return await _edit_page(request, key, line, wordless=True)
    changed = reworded(session, line.position, text)
    put = SessionWrite(changed, version, KEEP_EXPIRY, background=True)
    if not await request.memory.store.save(key, put):
        raise Conflict("A call wrote this conversation at the same moment; try again.")
    request.memory.writer.notify(key, changed)
    request.server.traces.erase(key.tenant, session=key.session)
    return redirect(_HERE, key.session)


def _says_something(text: str, line: Line) -> bool:
    """Models refuse a message without words, unless it calls a tool."""
    return bool(text.strip() or line.calls)


async def _read(request: PageRequest, key: Key) -> StoredSession:
    try:
        stored = await request.memory.store.load(key, background=True)
    except msgspec.DecodeError:
        raise TurnkeeperError("What is held of this conversation cannot be read.") from None
    if stored is None:
        raise NotFound("There is no such conversation; it may have expired.")
    return stored


def _line(session: Session, position: str) -> Line:
    """One that may be edited: older ones are in the cold part, which only grows."""
    place = _position(position, -1) - session.cold_count
    if not 0 <= place < len(session.entries):
        raise NotFound("This turn is not there, or too old to be edited.")
    (line,) = lines_of([], session.entries[place : place + 1], session.cold_count + place)
    if not line.editable:
        raise NotFound("This turn has no words of its own that could be edited.")
    return line


def _position(given: str | None, otherwise: int) -> int:
    sound = given is not None and given.isascii() and given.isdigit() and len(given) < 10  # noqa: PLR2004
    position = int(given or 0) if sound else otherwise
    return min(position, otherwise) if otherwise >= 0 else position


async def _list_archived(request: PageRequest) -> Response:
    archive, after = _archive_of(request), request.query.get("after", "")
    found = [*(await archive.list_sessions(request.tenant, after=after, limit=_ON_A_PAGE + 1)).items()]
    shown = found[:_ON_A_PAGE]
    more = shown[-1][0] if len(found) > len(shown) else None
    return await request.page("archive.html", _HERE, sessions=shown, after=after, more=more)


async def _archived_page(request: PageRequest, key: Key, start: int) -> Response:
    """What was said in a session, from the line at ``start`` on; raises NotFound where nothing is kept."""
    found = await _archive_of(request).session_turns(key, start=start, limit=_LINES + 1)
    if not found:
        raise NotFound("There is no such conversation, neither held nor in the archive.")
    heard = lines_of([], [turn.entry for turn in found[:_LINES]], start)
    return await request.page(
        "archived.html",
        _HERE,
        id=key.session,
        lines=_read_only(heard),
        start=start,
        more=start + _LINES if len(found) > _LINES else None,
        began=found[0].at,
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
    """A session that is in the archive alone; raises Conflict where one of its name is held."""
    key = _key_of(request)
    _archive_of(request)
    if await request.memory.store.read(key, background=True) is not None:
        raise Conflict("A conversation of this name is held, and may be going on: delete that first.")
    return key


def _key_of(request: PageRequest) -> Key:
    """The session that a page's path names; raises NotFound for what can be no name."""
    session = identifier(request.params["id"])
    if session is None:
        raise NotFound("There is no such conversation.")
    return Key(request.tenant, session)


def _archive_of(request: PageRequest) -> Archive:
    """Where turns are kept for good; raises NotFound where they are not."""
    archiving = request.memory.archiving
    if archiving is None:
        raise NotFound("There is no such conversation; it may have expired, and there is no archive.")
    return archiving.archive


def _read_only(heard: Sequence[Line]) -> Sequence[Line]:
    return [msgspec.structs.replace(line, editable=False) for line in heard]


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
