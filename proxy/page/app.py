"""The application of the web page: routes, login, and the error page."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final
from urllib.parse import parse_qsl, unquote_to_bytes

from starlette.responses import Response

from proxy.admission.gate import check_host
from proxy.errors import MemoryUnavailable, NotFound, RequestError, TurnkeeperError
from proxy.http.request import BodyLimit, Request, read_body
from proxy.http.router import Router
from proxy.memory.errors import CANNOT_BE_READ, StoreError, Unreadable
from proxy.page import conversations, health, live, playground, turns, users
from proxy.page.draft_process import DraftProcesses
from proxy.page.renderer import Renderer
from proxy.page.request import PageRequest, SerialExecutor, redirect
from proxy.page.viewer import LASTS, SIGNED, VISIT, Viewer, check_form, identify_viewer, set_cookie, sign
from proxy.runtime import Runtime, ServerState

_WITHOUT_KEY: Final = ("/login", "/assets/")
_TIMEOUT: Final = 5.0
_MOST_FIELDS: Final = 40
_FORM_LIMIT: Final = BodyLimit(1_000_000, structure=1_000_000, setting=None)
_WRONG_KEY_DELAY: Final = 0.5

Handler = Callable[[PageRequest], Awaitable[Response]]


class PageApp:
    """Answers requests for all pages; long computations run one at a time, so that they delay no call."""

    def __init__(self, server: ServerState) -> None:
        self._server = server
        self._renderer = Renderer(server.process_name)
        self._executor = SerialExecutor(_TIMEOUT)
        self._drafts = DraftProcesses()
        modules = (live, conversations, turns, playground, users, health)
        routes = (*_ROUTES, *(route for module in modules for route in module.ROUTES))
        self._router: Router[Handler] = Router(routes, "page")

    async def answer(self, request: Request, runtime: Runtime) -> None:
        """Sends the page that a request asks for, or an error page."""
        viewer = identify_viewer(request.headers, runtime.keys)
        try:
            response = await self._response(request, runtime, viewer)
        except Unreadable:
            response = self._failure(MemoryUnavailable(CANNOT_BE_READ), viewer)
        except StoreError:
            response = self._failure(MemoryUnavailable("Memory is unavailable; try again soon."), viewer)
        except TimeoutError:
            response = self._failure(TurnkeeperError("This takes too long to be shown; try again."), viewer)
        except TurnkeeperError as error:
            response = self._failure(error, viewer)
        if viewer.nonce and not request.path.startswith("/assets/"):
            set_cookie(response, VISIT, viewer.nonce, request.headers)
        await response(request.scope, request.receive, request.reply.send)

    def close(self) -> None:
        """Kills the processes in which drafts are tried."""
        self._drafts.close()

    async def _response(self, request: Request, runtime: Runtime, viewer: Viewer) -> Response:
        headers = request.headers
        if not runtime.keys:
            check_host(headers)
        if viewer.tenant is None and not request.path.startswith(_WITHOUT_KEY):
            return redirect("login")
        method = "GET" if request.method == "HEAD" else request.method
        # The path is matched undecoded, as an id may contain a slash.
        match = self._router.find(method, request.raw_path.decode("latin-1"))
        if match is None:
            raise NotFound("There is no such page.")
        handler, params = match
        form: Mapping[str, str] = {}
        if request.method == "POST":
            form = _fields(await read_body(request.receive, headers, _FORM_LIMIT))
            check_form(viewer, headers, form.get("token", ""))
        page_request = PageRequest(
            server=self._server,
            runtime=runtime,
            renderer=self._renderer,
            reply=request.reply,
            viewer=viewer,
            headers=headers,
            query=_fields(request.query_string),
            params={name: _decoded(step) for name, step in params.items()},
            form=form,
            executor=self._executor,
            drafts=self._drafts,
        )
        return await handler(page_request)

    def _failure(self, error: TurnkeeperError, viewer: Viewer) -> Response:
        return self._renderer.page("failure.html", viewer, status=error.status, error=error, here="")


def _decoded(step: str) -> str:
    try:
        return unquote_to_bytes(step).decode()
    except UnicodeDecodeError:
        raise NotFound("There is no such page.") from None


def _fields(encoded: bytes) -> Mapping[str, str]:
    try:
        text = encoded.decode("latin-1")
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS, errors="replace"))
    except ValueError:
        raise RequestError(f"A form has at most {_MOST_FIELDS} fields.") from None


async def _login_form(request: PageRequest) -> Response:
    if request.viewer.tenant is not None:
        return redirect("")
    return await request.page("login.html", "", wrong=None)


async def _log_in(request: PageRequest) -> Response:
    key = request.runtime.keys.find(request.form.get("key", "").strip())
    if key is None or key.scope != "all":
        await asyncio.sleep(_WRONG_KEY_DELAY)
        wrong = "This key is for chat completions only: use one without ':chat'." if key else "Unknown key."
        return await request.page("login.html", "", status=403 if key else 401, wrong=wrong)
    response = redirect("")
    set_cookie(response, SIGNED, sign(key, now=time.time()), request.headers, LASTS)
    return response


async def _log_out(request: PageRequest) -> Response:
    response = redirect("")
    set_cookie(response, SIGNED, "", request.headers, 0)
    return response


async def _asset(request: PageRequest) -> Response:
    asset = request.renderer.asset(request.params["name"])
    if asset is None:
        raise NotFound("There is no such file.")
    return asset


_ROUTES: Final = (
    ("GET", "/login", _login_form),
    ("POST", "/login", _log_in),
    ("POST", "/logout", _log_out),
    ("GET", "/assets/{name}", _asset),
)
