"""One path and its methods."""

from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from proxy.errors import MethodNotAllowed

Endpoint = Callable[[Request], Awaitable[Response]]


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
