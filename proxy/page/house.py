"""All pages, who may see them, and what a visitor gets where one is missing."""

from collections.abc import Mapping
from urllib.parse import parse_qsl

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from proxy.edge import body
from proxy.errors import MemoryUnavailable, MethodNotAllowed, NotFound, RequestError, TurnkeeperError
from proxy.memory.errors import StoreError
from proxy.page import archived, conversations, entrance, health, live, people, playground, turns
from proxy.page.door import PageServer
from proxy.page.paper import Paper
from proxy.page.room import Path, Room, redirect
from proxy.page.turnstile import Turnstile
from proxy.page.visitor import VISIT, Visitor, check, is_secure, set_cookie, visitor
from proxy.parts import Parts

_OPEN = ("/login", "/assets/")
_PATIENCE = 5.0
_MOST_FORM, _MOST_FIELDS = 1_000_000, 40


class House:
    """The web page as one application behind the door."""

    def __init__(self, server: PageServer) -> None:
        self._server = server
        self._paper = Paper(server.place)
        # What is looked at must not cost a call its time: one thing at a time, however many people look.
        self._turnstile = Turnstile(_PATIENCE)
        rooms = (entrance, live, conversations, archived, turns, playground, people, health)
        self._paths = [Path(*route) for room in rooms for route in room.ROUTES]

    async def answer(
        self, scope: Scope, parts: Parts, headers: Mapping[str, str], receive: Receive, send: Send
    ) -> None:
        """One request for a page."""
        who = visitor(headers, parts.gate.keys)
        response = await self._response(scope, parts, headers, receive, who)
        if who.nonce and not scope["path"].startswith("/assets/"):
            given = set_cookie(VISIT, who.nonce, secure=is_secure(scope["scheme"], headers))
            response.headers.append("set-cookie", given)
        await response(scope, receive, send)

    async def _response(
        self, scope: Scope, parts: Parts, headers: Mapping[str, str], receive: Receive, who: Visitor
    ) -> Response:
        try:
            if not parts.gate.keys:
                parts.gate.refuse_strangers(headers)
            if who.tenant is None and not scope["path"].startswith(_OPEN):
                return redirect("login")
            path, params = self._path(scope)
            form = await _form(scope, headers, receive, who)
            room = Room(
                server=self._server,
                parts=parts,
                paper=self._paper,
                visitor=who,
                headers=headers,
                query=_fields(scope["query_string"]),
                params=params,
                form=form,
                turnstile=self._turnstile,
            )
            return await path.show(room)
        except StoreError:
            return self._failure(MemoryUnavailable("Memory does not answer now; try again soon."), who)
        except TimeoutError:
            return self._failure(TurnkeeperError("This takes too long to be shown; try again."), who)
        except TurnkeeperError as error:
            return self._failure(error, who)

    def _path(self, scope: Scope) -> tuple[Path, Mapping[str, str]]:
        """The page at a path, which is matched undecoded: an id may have a slash in it."""
        raw = scope["raw_path"].decode("latin-1")
        found = [(path, params) for path in self._paths if (params := path.match(raw)) is not None]
        if not found:
            raise NotFound("There is no such page.")
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        for path, params in found:
            if path.method == method:
                return path, params
        allow = ", ".join(path.method for path, _ in found)
        raise MethodNotAllowed(f"This page takes {allow}.", allow=allow)

    def _failure(self, error: TurnkeeperError, who: Visitor) -> Response:
        return self._paper.page("failure.html", who, status=error.status, error=error, here="")


async def _form(
    scope: Scope, headers: Mapping[str, str], receive: Receive, who: Visitor
) -> Mapping[str, str]:
    """The fields of a form that was sent from a page of ours. Raises Forbidden for any other."""
    if scope["method"] != "POST":
        return {}
    form = _fields(await body.read(receive, headers, _MOST_FORM))
    check(who, headers, form.get("token", ""))
    return form


def _fields(encoded: bytes) -> Mapping[str, str]:
    try:
        text = encoded.decode("latin-1")
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS, errors="replace"))
    except ValueError:
        raise RequestError(f"A form has at most {_MOST_FIELDS} fields.") from None
