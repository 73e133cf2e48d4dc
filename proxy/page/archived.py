"""Conversations in the permanent log: to be read, and deleted once no session of their name is held."""

from collections.abc import Sequence
from typing import Final

import msgspec
from starlette.responses import Response

from proxy.errors import Conflict, NotFound
from proxy.memory.archive.archive import Archive
from proxy.memory.stores.store import Key
from proxy.page.hearing import HeardLine, lines
from proxy.page.room import Room, redirect
from proxy.turn.identity import identifier

_HERE: Final = "conversations"
_ON_A_PAGE: Final = 50
_LINES: Final = 200


async def _listed(room: Room) -> Response:
    archive, after = archive_of(room), room.query.get("after", "")
    found = [*(await archive.talks(room.tenant, after=after, limit=_ON_A_PAGE + 1)).items()]
    shown = found[:_ON_A_PAGE]
    more = shown[-1][0] if len(found) > len(shown) else None
    return await room.page("archive.html", _HERE, sessions=shown, after=after, more=more)


async def page(room: Room, key: Key, start: int) -> Response:
    """What was said in a session, from the line at ``start`` on; raises NotFound where nothing is kept."""
    found = await archive_of(room).turns_of(key, start=start, limit=_LINES + 1)
    if not found:
        raise NotFound("There is no such conversation, neither held nor in the archive.")
    heard = lines([], [turn.entry for turn in found[:_LINES]], start)
    return await room.page(
        "archived.html",
        _HERE,
        id=key.session,
        lines=_read_only(heard),
        start=start,
        more=start + _LINES if len(found) > _LINES else None,
        began=found[0].at,
    )


async def _asked_to_delete(room: Room) -> Response:
    key = await _alone(room)
    if not await archive_of(room).turns_of(key, start=0, limit=1):
        raise NotFound("There is no such conversation in the archive.")
    return await room.page("delete.html", _HERE, id=key.session, archived=True)


async def _deleted(room: Room) -> Response:
    key = await _alone(room)
    await room.parts.people.forget_session(key.tenant, key.session)
    return redirect(_HERE, "archive", "all")


async def _alone(room: Room) -> Key:
    """A session that is in the archive alone; raises Conflict where one of its name is held."""
    key = key_of(room)
    archive_of(room)
    if await room.memory.store.read(key, leisure=True) is not None:
        raise Conflict("A conversation of this name is held, and may be going on: delete that first.")
    return key


def key_of(room: Room) -> Key:
    """The session that a page's path names; raises NotFound for what can be no name."""
    session = identifier(room.params["id"])
    if session is None:
        raise NotFound("There is no such conversation.")
    return Key(room.tenant, session)


def archive_of(room: Room) -> Archive:
    """Where turns are kept for good; raises NotFound where they are not."""
    archiving = room.memory.archiving
    if archiving is None:
        raise NotFound("There is no such conversation; it may have expired, and there is no archive.")
    return archiving.archive


def _read_only(heard: Sequence[HeardLine]) -> Sequence[HeardLine]:
    return [msgspec.structs.replace(line, editable=False) for line in heard]


ROUTES: Final = (
    ("GET", "/conversations/archive/all", _listed),
    ("GET", "/conversations/{id}/archive/delete", _asked_to_delete),
    ("POST", "/conversations/{id}/archive/delete", _deleted),
)
