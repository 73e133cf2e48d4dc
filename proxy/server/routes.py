"""The routes beside chat completions: health, metrics, models, feed, REST and pages."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.responses import Response

from proxy.answer.response import read_all
from proxy.errors import (
    Conflict,
    MemoryUnavailable,
    MethodNotAllowed,
    NotFound,
    TurnkeeperError,
    UpstreamError,
)
from proxy.http.reply import EventStream
from proxy.http.request import Request
from proxy.http.router import Router
from proxy.memory.errors import CANNOT_BE_READ, StoreError, Unreadable, WriteConflict
from proxy.observe.feed import Event
from proxy.observe.metrics import CONTENT_TYPE
from proxy.rest import agents, agora, sessions, users
from proxy.rest.endpoint import ApiRequest, json_response
from proxy.runtime import Runtime, ServerState
from proxy.turn.pipeline import Pipeline
from proxy.upstream.target import Target

if TYPE_CHECKING:
    from proxy.page.app import PageApp

FEED: Final = "/v1/turns"
"""The path of the feed, which is an endless response."""
_PAGES: Final = frozenset(
    {
        "live",
        "conversations",
        "turns",
        "playground",
        "users",
        "agents",
        "health",
        "login",
        "logout",
        "assets",
    }
)
_CHAT: Final = "/chat/completions"
_NOT_SERVED: Final = frozenset(("audio", "embeddings", "files", "images", "moderations", "realtime"))
_LARGEST_LIST: Final = 4_000_000


class Routes:
    """Answers the paths that are neither completions nor pages."""

    def __init__(self, server: ServerState) -> None:
        self._server = server
        own = [
            ("/healthz", self._alive),
            ("/readyz", self._ready),
            ("/metrics", self._metrics),
            (FEED, self._feed),
        ]
        # Clients request models under the same base URL as completions.
        for base in ("", "/v1", "/pipelines/{pipeline}", "/pipelines/{pipeline}/v1"):
            own += [(f"{base}/models", self._models), (f"{base}/models/{{model:path}}", self._model)]
        self.table = [
            *((method, path, handler) for path, handler in own for method in ("GET", "HEAD")),
            *(route for module in (sessions, agents, users, agora) for route in module.ROUTES),
        ]
        self._router = Router(self.table)

    async def answer(self, request: Request, runtime: Runtime, tenant: str) -> None:
        """Answers one request.

        Raises NotFound and MethodNotAllowed for unknown routes, Conflict if other writers of a session win
        every time, and MemoryUnavailable if the store fails or has data that cannot be read.
        """
        path = request.path
        if path.startswith(sessions.ROOT):  # not decoded, so that an id with a slash is one segment
            path = request.raw_path.decode("latin-1")
        match = self._router.find(request.method, path)
        if match is None:
            raise _not_found(path)
        endpoint, params = match
        async with AsyncExitStack() as admission:
            api_request = ApiRequest(
                http=request,
                runtime=runtime,
                traces=self._server.traces,
                tenant=tenant,
                params=params,
                admission=admission,
            )
            try:
                response = await endpoint(api_request)
            except WriteConflict:
                raise Conflict("Other requests are writing this session; try again.") from None
            except Unreadable:
                raise MemoryUnavailable(CANNOT_BE_READ) from None
            except StoreError:
                raise MemoryUnavailable("Memory does not answer now; try again later.") from None
            await response(request.scope, request.receive, request.reply.send)

    async def _alive(self, _: ApiRequest) -> Response:
        return json_response({"status": "alive"})

    async def _ready(self, request: ApiRequest) -> Response:
        status, degraded = self._server.status, self._server.degraded
        required = request.query.get("require", "").split(",")
        accepted = {"ready"} if request.query.get("strict") in {"1", "true"} else {"ready", "degraded"}
        is_ready = status in accepted and not set(required) & set(degraded)
        return json_response({"status": status, "degraded": degraded}, status=200 if is_ready else 503)

    async def _metrics(self, _: ApiRequest) -> Response:
        return Response(self._server.metrics.exposition(), media_type=CONTENT_TYPE)

    async def _feed(self, request: ApiRequest) -> Response:
        return EventStream(_events(self._server.feed.subscribe(request.tenant)))

    async def _models(self, request: ApiRequest) -> Response:
        return json_response({"object": "list", "data": await list_models(_pipelines(request))})

    async def _model(self, request: ApiRequest) -> Response:
        name = request.params["model"]
        for model in await list_models(_pipelines(request)):
            if model["id"] == name:
                return json_response(model)
        raise NotFound(f"No pipeline offers the model '{name}'.", param="model", code="model_not_found")


class LazyPage:
    """Answers the page's paths; imports the page and its template engine at the first request."""

    def __init__(self, server: ServerState) -> None:
        self._server = server
        self._app: PageApp | None = None
        self._closed = False

    def close(self) -> None:
        """Stops drafts that are being tried, now and later; pages are still answered."""
        self._closed = True
        if self._app:
            self._app.close()

    @staticmethod
    def owns(path: str, method: str) -> bool:
        """Whether a request is for a page; a POST to the root is a misdirected completion."""
        if path == "/":
            return method != "POST"
        return path.startswith("/") and path.split("/", 2)[1] in _PAGES

    async def answer(self, request: Request, runtime: Runtime) -> None:
        """Answers one request for a page."""
        if self._app is None:
            # In a thread, since calls wait for the loop and importing takes a while.
            module = await asyncio.to_thread(import_module, "proxy.page.app")
            self._app = self._app or module.PageApp(self._server)
        if self._closed:
            self._app.close()
        await self._app.answer(request, runtime)


async def list_models(pipelines: Iterable[Pipeline]) -> list[dict[str, Any]]:
    """Returns models in OpenAI's shape: those named in the settings, else those that the upstream lists."""
    models, unnamed = {}, {}
    for pipeline in pipelines:
        for target in pipeline.targets:
            if name := pipeline.model or target.model:
                models[name] = _model_object(name, target.name)
            else:
                unnamed[target.name] = target
    for listed in await asyncio.gather(*map(_upstream_models, unnamed.values())):
        models.update({model["id"]: model for model in listed if model["id"] not in models})
    return list(models.values())


async def _upstream_models(target: Target) -> list[dict[str, Any]]:
    """Returns the models that an upstream lists; none if it fails or answers with something else."""
    due = asyncio.get_running_loop().time() + target.first_token
    try:
        response = await target.upstream.open("GET", "/models", target.headers, b"", due=due)
        try:
            body = await read_all(response, _LARGEST_LIST)
        finally:
            response.close()
        models = msgspec.json.decode(body, type=dict[str, Any]).get("data")
    except (UpstreamError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []
    if response.status != 200 or not isinstance(models, list):  # noqa: PLR2004
        return []
    return [
        {**_model_object(model["id"], target.name), **model}
        for model in models
        if isinstance(model, dict) and isinstance(model.get("id"), str)
    ]


def _model_object(name: str, owner: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": owner}


def _pipelines(request: ApiRequest) -> Iterable[Pipeline]:
    """Returns the pipeline in the path, or all pipelines without one."""
    name, runtime = request.params.get("pipeline"), request.runtime
    return runtime.pipelines.values() if name is None else [runtime.pipeline(name)]


async def _events(turns: AsyncIterator[Event]) -> AsyncIterator[bytes]:
    yield b": turns\n\n"
    async for event in turns:
        yield b"event: turn\ndata: " + msgspec.json.encode(event) + b"\n\n"


def _not_found(path: str) -> TurnkeeperError:
    # Client libraries often show their users only this sentence.
    if path == "/":
        return MethodNotAllowed(f"/ takes HEAD, GET; completions are at /v1{_CHAT}.", allow="HEAD, GET")
    if path.endswith(_CHAT):
        advice = f": a base URL ends in /v1, and clients add {_CHAT} to it."
    elif path.endswith("/responses"):
        advice = f": the Responses API is not served. Let the client use chat completions, at /v1{_CHAT}."
    elif any(step in _NOT_SERVED for step in path.split("/")):
        advice = f": chat completions alone are served, at /v1{_CHAT}. Ask the model's vendor for the rest."
    else:
        advice = f"; completions are at /v1{_CHAT}."
    return NotFound(f"There is nothing at {path}{advice}")
