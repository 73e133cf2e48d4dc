"""What is remembered of a person."""

from typing import Final

from starlette.responses import Response

from proxy.page.room import Room

_HERE: Final = "people"


async def _shown(room: Room) -> Response:
    accounts = [trace.account for trace in room.server.traces.newest(room.tenant)]
    seen = {account.user: account for account in reversed(accounts)}
    callers = sorted((account for user, account in seen.items() if user), key=lambda each: -each.at)
    return await room.page("people.html", _HERE, callers=callers)


ROUTES: Final = (("GET", "/people", _shown),)
