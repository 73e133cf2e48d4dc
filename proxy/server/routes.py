"""Everything under the server's root that is not a completion."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, Final, Protocol

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from proxy.answer.response import read_all
from proxy.errors import MethodNotAllowed, NotFound, UpstreamError
from proxy.http.reply import EventStream
from proxy.observe.feed import Event, Feed
from proxy.observe.metrics import CONTENT_TYPE, Metrics
from proxy.rest import agents, agora, sessions, users
from proxy.runtime import Runtime
from proxy.traces import Traces
from proxy.turn.pipeline import Pipeline
from proxy.upstream.target import Target

TURNS: Final = "/v1/turns"
"""Where turns are shown as they happen: an answer without an end."""
_CHAT: Final = "/chat/completions"
_ELSEWHERE: Final = frozenset(("audio", "embeddings", "files", "images", "moderations", "realtime"))
_ANSWERING: Final = ("ready", "degraded")
_UNBUFFERED: Final = {"x-accel-buffering": "no", "cache-control": "no-cache"}
_LONGEST_LIST = 4_000_000


class RoutesServer(Protocol):
    """What the site needs to know of the server around it."""

    phase: str

    @property
    def metrics(self) -> Metrics:
        """The server's numbers."""
        ...

    @property
    def feed(self) -> Feed:
        """Turns as they happen."""
        ...

    @property
    def traces(self) -> Traces:
        """The newest turns."""
        ...


class Routes:
    """The models, the server's health and what is remembered.

    Raises NotFound and MethodNotAllowed for what is not there.
    """

    def __init__(self, server: RoutesServer) -> None:
        self._server = server
        self._router = Router(
            [
                Route("/healthz", self._alive),
                Route("/readyz", self._ready),
                Route("/metrics", self._metrics),
                Route(TURNS, self._turns),
                *self._catalogues(),
                *sessions.routes(),
                *sessions.summary_routes(sessions.PATH),
                *sessions.state_routes(sessions.PATH),
                *sessions.turn_routes(sessions.PATH),
                *agents.routes(),
                *users.routes(),
                *users.fact_routes(),
                *agora.routes(),
                *users.system_message_routes(),
            ],
            redirect_slashes=False,
            default=_missing,
        )

    async def answer(self, scope: Scope, runtime: Runtime, tenant: str, receive: Receive, send: Send) -> None:
        """One request that is no completion."""
        known = {"app": self, "runtime": runtime, "tenant": tenant, "path": _path(scope)}
        known |= {"traces": self._server.traces}
        try:
            await self._router({**scope, **known}, receive, send)
        except HTTPException as error:
            raise _method_missing(scope, error) from None

    def _catalogues(self) -> Iterator[Route]:
        """The models, wherever completions are: clients look for them under the same base."""
        for base in ("", "/v1", "/pipelines/{pipeline}", "/pipelines/{pipeline}/v1"):
            yield Route(f"{base}/models", self._models)
            yield Route(f"{base}/models/{{model:path}}", self._model)

    async def _alive(self, _: Request) -> Response:
        return _json({"status": "alive"})

    async def _ready(self, request: Request) -> Response:
        runtime: Runtime = request.scope["runtime"]
        standing = runtime.status(self._server.phase)
        answered = {"status": standing, "degraded": list(runtime.degraded)}
        return _json(answered, status=200 if standing in _ANSWERING else 503)

    async def _metrics(self, _: Request) -> Response:
        return Response(self._server.metrics.exposition(), media_type=CONTENT_TYPE)

    async def _turns(self, request: Request) -> Response:
        events = self._server.feed.subscribe(request.scope["tenant"])
        return EventStream(_framed(events), _UNBUFFERED)

    async def _models(self, request: Request) -> Response:
        return _json({"object": "list", "data": await list_models(_pipelines(request))})

    async def _model(self, request: Request) -> Response:
        wanted = request.path_params["model"]
        for model in await list_models(_pipelines(request)):
            if model["id"] == wanted:
                return _json(model)
        raise NotFound(f"No pipeline offers the model '{wanted}'.", param="model", code="model_not_found")


async def _framed(events: AsyncIterator[Event]) -> AsyncIterator[bytes]:
    yield b": turns\n\n"
    async for event in events:
        yield b"event: turn\ndata: " + msgspec.json.encode(event) + b"\n\n"


def _path(scope: Scope) -> str:
    """The path to route by: under memory as it was sent, or an id with a slash would be two steps."""
    path: str = scope["path"]
    return scope["raw_path"].decode("latin-1") if path.startswith(sessions.ROOT) else path


def _pipelines(request: Request) -> Iterable[Pipeline]:
    """The one that the path names, else all of them."""
    runtime: Runtime = request.scope["runtime"]
    name = request.path_params.get("pipeline")
    return runtime.pipelines.values() if name is None else [runtime.pipeline(name)]


async def _missing(scope: Scope, _receive: Receive, _send: Send) -> None:
    raise NotFound(f"There is nothing at {scope['path']}{_way_out(scope['path'])}")


def _way_out(path: str) -> str:
    """What a client that asked there can do: its library shows it this sentence, and often nothing else."""
    if path.endswith(_CHAT):
        return f": a base URL ends in /v1, and clients add {_CHAT} to it."
    if path.endswith("/responses"):
        return f": the Responses API is not served. Let the client use chat completions, at /v1{_CHAT}."
    if any(part in _ELSEWHERE for part in path.split("/")):
        return f": chat completions alone are served, at /v1{_CHAT}. Ask the model's vendor for the rest."
    return f"; completions are at /v1{_CHAT}."


def _method_missing(scope: Scope, error: HTTPException) -> MethodNotAllowed:
    allow = (error.headers or {}).get("Allow", "GET")
    return MethodNotAllowed(f"{scope['path']} takes {allow}.", allow=allow)


def _json(content: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status, media_type="application/json")


async def list_models(pipelines: Iterable[Pipeline]) -> list[dict[str, Any]]:
    """Models in OpenAI's shape: those that the settings name, else what the upstream itself lists."""
    named, asked = {}, []
    for pipeline in pipelines:
        for target in pipeline.targets:
            if model := pipeline.model or target.model:
                named[model] = _model(model, target.name)
            else:
                asked.append(target)
    for found in await asyncio.gather(
        *map(_upstream_models, {target.name: target for target in asked}.values())
    ):
        named.update({model["id"]: model for model in found if model["id"] not in named})
    return list(named.values())


async def _upstream_models(target: Target) -> list[dict[str, Any]]:
    due = asyncio.get_running_loop().time() + target.first_token
    try:
        response = await target.upstream.open("GET", "/models", target.headers, b"", due=due)
        try:
            body = await read_all(response, _LONGEST_LIST)
        finally:
            response.close()
    except UpstreamError:
        return []
    return _parse_models(body, target.name) if response.status == 200 else []  # noqa: PLR2004


def _parse_models(body: bytes, owner: str) -> list[dict[str, Any]]:
    try:
        data = msgspec.json.decode(body, type=dict[str, Any]).get("data")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []
    models = data if isinstance(data, list) else []
    return [
        {**_model(model["id"], owner), **model}
        for model in models
        if isinstance(model, dict) and isinstance(model.get("id"), str)
    ]


def _model(name: str, owner: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": owner}
