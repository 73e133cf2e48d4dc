"""Coming in with a key, going out again, and the files that every page refers to."""

import asyncio
import time
from typing import Final

from starlette.responses import Response

from proxy.errors import NotFound
from proxy.page.room import Room, redirect
from proxy.page.visitor import LASTS, SIGNED, is_secure, set_cookie, signed

_GUESSES_COST: Final = 0.5


async def _form(room: Room) -> Response:
    if room.visitor.tenant is not None:
        return redirect("")
    return await room.page("login.html", "", wrong=None)


async def _entered(room: Room) -> Response:
    key = room.parts.gate.keys.find(room.form.get("key", "").strip())
    if key is None or key.scope != "all":
        await asyncio.sleep(_GUESSES_COST)
        wrong = "This key may chat, and nothing else." if key else "This key is not known here."
        return await room.page("login.html", "", status=403 if key else 401, wrong=wrong)
    response = redirect("")
    secure = is_secure("", room.headers)
    response.headers["set-cookie"] = set_cookie(
        SIGNED, signed(key, now=time.time()), secure=secure, lasts=LASTS
    )
    return response


async def _left(room: Room) -> Response:
    response = redirect("")
    response.headers["set-cookie"] = set_cookie(SIGNED, "", secure=is_secure("", room.headers), lasts=0)
    return response


async def _asset(room: Room) -> Response:
    found = room.paper.asset(room.params["name"])
    if found is None:
        raise NotFound("There is no such file.")
    return found


ROUTES: Final = (
    ("GET", "/login", _form),
    ("POST", "/login", _entered),
    ("POST", "/logout", _left),
    ("GET", "/assets/{name}", _asset),
)
