"""One path and its methods."""

from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from proxy.errors import MemoryUnavailable, MethodNotAllowed, NotFound, RequestError
from proxy.http import body
from proxy.memory.errors import StoreError
from proxy.memory.memory import Archiving, Memory
from proxy.memory.privacy import PrivacyRegistry
from proxy.memory.session import UNREADABLE
from proxy.memory.stores.store import Key, Owner
from proxy.runtime import Runtime
from proxy.turn.identity import identifier

Endpoint = Callable[[Request], Awaitable[Response]]
ID: Final = "a text of 1 to 256 characters without control characters, but not . or .."


class Methods:
    """An endpoint for each method of a path; any other, HEAD included, raises MethodNotAllowed."""

    def __init__(self, endpoints: Mapping[str, Endpoint]) -> None:
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, as ASGI has it."""
        endpoint = self._endpoints.get(scope["method"])
        if endpoint is None:
            allow = ", ".join(self._endpoints)
            raise MethodNotAllowed(f"This path takes {allow}.", allow=allow)
        response = await endpoint(Request(scope, receive))
        await response(scope, receive, send)


def by_method(endpoints: Mapping[str, Endpoint]) -> Methods:
    """A path's methods; where the store fails, or nobody can read it, MemoryUnavailable."""
    return Methods({method: _reported(endpoint) for method, endpoint in endpoints.items()})


def memory_of(request: Request) -> Memory:
    """What is remembered with; raises NotFound where nothing is."""
    runtime: Runtime = request.scope["runtime"]
    if runtime.memory is None:
        raise NotFound("Nothing is remembered here; set 'memory:' in the configuration.", code="memory_off")
    return runtime.memory


def people_of(request: Request) -> PrivacyRegistry:
    """All that is held of persons; without memory there is what is kept of turns to be looked at."""
    runtime: Runtime = request.scope["runtime"]
    return runtime.privacy


def archiving_of(request: Request) -> Archiving:
    """Where turns are kept for good; raises NotFound where they are not."""
    archiving = memory_of(request).archiving
    if archiving is None:
        advice = "keep sessions in SQL, or set ARCHIVE_URL"
        raise NotFound(f"There is no archive; {advice}.", code="archive_off")
    return archiving


def key_of(request: Request) -> Key:
    """The session, or the agent, that the path names, under the caller's tenant; raises RequestError."""
    return Key(request.scope["tenant"], path_id(request))


def user_of(request: Request) -> Owner:
    """The person whom the path names, under the caller's tenant; raises RequestError."""
    return Owner(request.scope["tenant"], path_id(request))


def session_not_found(key: Key) -> NotFound:
    """What is said of a session that is not held."""
    return NotFound(f"There is no session '{key.session}'.", param="id", code="session_not_found")


def path_id(request: Request, name: str = "id") -> str:
    """The id that stands in the path, decoded once; raises RequestError for what is none."""
    try:
        found = identifier(unquote_to_bytes(request.path_params[name]).decode("utf-8", "strict"))
    except UnicodeDecodeError:
        raise RequestError("The id in the path is not UTF-8.", param=name) from None
    if found is None:
        raise RequestError(f"'{name}' must be {ID}.", param=name)
    return found


async def body_of(request: Request) -> bytes:
    """The body, whatever its type is said to be: forms of other sites have been refused by then."""
    runtime: Runtime = request.scope["runtime"]
    return await body.read_body(request.receive, request.headers, runtime.max_body)


def json_response(found: Any, status: int = 200) -> Response:
    """A value as JSON."""
    return Response(msgspec.json.encode(found), status, media_type="application/json")


def _reported(endpoint: Callable[[Request], Awaitable[Response]]) -> Endpoint:
    @wraps(endpoint)
    async def reporting(request: Request) -> Response:
        try:
            return await endpoint(request)
        except (StoreError, *UNREADABLE):
            raise MemoryUnavailable("Memory does not answer now; try again later.") from None

    return reporting
