"""Conversations in the permanent log: to be read, whether or not a session of their name is still held."""

from collections.abc import Sequence
from typing import Final

import msgspec
from starlette.responses import Response

from proxy.errors import NotFound
from proxy.memory.archive.archive import Archive
from proxy.memory.store import Key
from proxy.page.hearing import HeardLine, lines
from proxy.page.room import Room

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


def archive_of(room: Room) -> Archive:
    """Where turns are kept for good; raises NotFound where they are not."""
    archiving = room.memory.archiving
    if archiving is None:
        raise NotFound("There is no such conversation; it may have expired, and there is no archive.")
    return archiving.archive


def _read_only(heard: Sequence[HeardLine]) -> Sequence[HeardLine]:
    return [msgspec.structs.replace(line, editable=False) for line in heard]


ROUTES: Final = (("GET", "/conversations/archive/all", _listed),)
