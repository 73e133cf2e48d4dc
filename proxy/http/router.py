"""Handlers, found by method and path."""

from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

from starlette.routing import compile_path

from proxy.errors import MethodNotAllowed

Handler = TypeVar("Handler")


class Router(Generic[Handler]):
    """Handlers by method and path, such as ``GET`` and ``/users/{id}``; ``what`` is for error messages."""

    def __init__(self, routes: Iterable[tuple[str, str, Handler]], what: str = "path") -> None:
        self._routes = [(method, compile_path(path)[0], handler) for method, path, handler in routes]
        self._what = what

    def find(self, method: str, path: str) -> tuple[Handler, Mapping[str, str]] | None:
        """Finds the handler and the path's parameters, undecoded; ``None`` where no route has this path.

        Raises MethodNotAllowed where only other methods have it.
        """
        allowed = []
        for route_method, pattern, handler in self._routes:
            if match := pattern.fullmatch(path):
                if route_method == method:
                    return handler, match.groupdict()
                allowed.append(route_method)
        if not allowed:
            return None
        allow = ", ".join(allowed)
        raise MethodNotAllowed(f"This {self._what} takes {allow}.", allow=allow)
