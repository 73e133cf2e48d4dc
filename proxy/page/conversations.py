"""What callers said and heard: a list of sessions, and each of them to read, mend and delete."""

from collections.abc import Sequence
from typing import Final

import msgspec
from starlette.responses import Response

from proxy.errors import Conflict, NotFound, TurnkeeperError
from proxy.memory.session import Session, decode, encode
from proxy.memory.stores.store import UNRENEWED, Key, Put
from proxy.observe.observation import TurnReport
from proxy.page import archived
from proxy.page.archived import key_of
from proxy.page.hearing import HeardLine, is_as_shown, lines, reworded
from proxy.page.room import Room, redirect
from proxy.rest.sessions import delete
from proxy.traces import Trace

_HERE: Final = "conversations"
_ON_A_PAGE: Final = 50
_LINES: Final = 200
_LATEST: Final = 8
_FURTHEST: Final = 10**9


async def _listed(room: Room) -> Response:
    wanted = room.query.get("id", "").strip()
    if wanted:
        return redirect(_HERE, wanted)
    after = room.query.get("after", "")
    found = await room.memory.store.list(room.tenant, after=after, limit=_ON_A_PAGE + 1)
    shown = found[:_ON_A_PAGE]
    return await room.page(
        "conversations.html",
        _HERE,
        sessions=shown,
        after=after,
        more=shown[-1].session if len(found) > len(shown) else None,
        latest=_latest(room),
        archived=room.memory.archiving is not None,
    )


def _latest(room: Room) -> Sequence[TurnReport]:
    """The newest turn of each session that spoke last."""
    seen: dict[str, Trace] = {}
    for trace in room.server.traces.newest(room.tenant):
        session = trace.account.session
        if session is not None and len(seen) < _LATEST:
            seen.setdefault(session, trace)
    return [trace.account for trace in seen.values()]


async def _shown(room: Room) -> Response:
    key = key_of(room)
    if await room.memory.store.read(key, leisure=True) is None and room.memory.archiving:
        return await archived.page(room, key, _position(room.query.get("from", "0"), _FURTHEST))
    session, _ = await _read(room, key)
    end = _position(room.query.get("before"), session.moved + len(session.entries))
    start = max(0, end - _LINES)
    heard = await _lines(room, key, session, start, end)
    return await room.page(
        "conversation.html",
        _HERE,
        id=key.session,
        session=session,
        lines=heard,
        start=start,
        end=end,
        turns=[trace.account for trace in room.server.traces.newest(room.tenant, key.session)][:_LINES],
    )


async def _lines(room: Room, key: Key, session: Session, start: int, end: int) -> Sequence[HeardLine]:
    cold = []
    if start < session.moved:
        moved = min(end, session.moved)
        cold = await room.memory.store.cold(key, start=start, limit=moved - start)
    hot = session.entries[max(0, start - session.moved) : max(0, end - session.moved)]
    return lines(cold, hot, start, session.summaries)


async def _asked_to_delete(room: Room) -> Response:
    key = key_of(room)
    session, _ = await _read(room, key)
    person = session.user if room.memory.archiving else None
    count = session.moved + len(session.entries)
    return await room.page("delete.html", _HERE, id=key.session, count=count, person=person, archived=False)


async def _deleted(room: Room) -> Response:
    key = key_of(room)
    await delete(room.memory, room.server.traces, key)
    return redirect(_HERE)


async def _asked_to_edit(room: Room) -> Response:
    key = key_of(room)
    session, _ = await _read(room, key)
    line = _line(session, room.params["position"])
    return await _edit(room, key, line)


async def _edit(room: Room, key: Key, line: HeardLine, *, wordless: bool = False) -> Response:
    status = 400 if wordless else 200
    return await room.page("edit.html", _HERE, status=status, id=key.session, line=line, wordless=wordless)


async def _edited(room: Room) -> Response:
    key = key_of(room)
    session, version = await _read(room, key)
    line = _line(session, room.params["position"])
    if not is_as_shown(line, room.form.get("shown", "")):
        raise Conflict("This turn has changed since you opened it; go back, reload and try again.")
    text = room.form.get("text", "")
    if not _says_something(text, line):
        return await _edit(room, key, line, wordless=True)
    changed = reworded(session, line.position, text)
    put = Put(encode(changed), version=version, ttl=UNRENEWED, leisure=True)
    if not await room.memory.store.write(key, put):
        raise Conflict("A call wrote this conversation at the same moment; try again.")
    room.memory.writer.tell(key, changed)
    room.server.traces.forget(key.tenant, session=key.session)
    return redirect(_HERE, key.session)


def _says_something(text: str, line: HeardLine) -> bool:
    """Models refuse a message without words, unless it calls a tool."""
    return bool(text.strip() or line.calls)


async def _read(room: Room, key: Key) -> tuple[Session, int]:
    held = await room.memory.store.read(key, leisure=True)
    if held is None:
        raise NotFound("There is no such conversation; it may have expired.")
    try:
        return decode(held.blob), held.version
    except msgspec.DecodeError:
        raise TurnkeeperError("What is held of this conversation cannot be read.") from None


def _line(session: Session, position: str) -> HeardLine:
    """One that may be edited: older ones are in the cold part, which only grows."""
    place = _position(position, -1) - session.moved
    if not 0 <= place < len(session.entries):
        raise NotFound("This turn is not there, or too old to be edited.")
    (line,) = lines([], session.entries[place : place + 1], session.moved + place)
    if not line.editable:
        raise NotFound("This turn has no words of its own that could be edited.")
    return line


def _position(given: str | None, otherwise: int) -> int:
    sound = given is not None and given.isascii() and given.isdigit() and len(given) < 10  # noqa: PLR2004
    position = int(given or 0) if sound else otherwise
    return min(position, otherwise) if otherwise >= 0 else position


ROUTES: Final = (
    ("GET", "/conversations", _listed),
    ("GET", "/conversations/{id}", _shown),
    ("GET", "/conversations/{id}/delete", _asked_to_delete),
    ("POST", "/conversations/{id}/delete", _deleted),
    ("GET", "/conversations/{id}/edit/{position}", _asked_to_edit),
    ("POST", "/conversations/{id}/edit/{position}", _edited),
)
