"""The page's paths; everything behind them is imported at the first request for one."""

import asyncio
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Final, Protocol

from starlette.types import Receive, Scope, Send

from proxy.observe.feed import Feed
from proxy.observe.metrics import GaugeValues
from proxy.runtime import Runtime
from proxy.traces import Traces

if TYPE_CHECKING:
    from proxy.page.app import PageApp

_PATHS: Final = frozenset(
    {
        "",
        "live",
        "conversations",
        "turns",
        "playground",
        "people",
        "agents",
        "health",
        "login",
        "logout",
        "assets",
    }
)


class PageServer(Protocol):
    """The parts of the server that pages show."""

    phase: str
    process_name: str

    @property
    def feed(self) -> Feed:
        """Turns as they happen."""
        ...

    @property
    def traces(self) -> Traces:
        """The newest turns."""
        ...

    def gauges(self) -> GaugeValues:
        """The state of the server now."""
        ...

    @property
    def runtime(self) -> Runtime:
        """What calls are answered with now."""
        ...


class LazyPage:
    """Answers the page's paths; importing its template engine costs calls nothing until it is needed."""

    def __init__(self, server: PageServer) -> None:
        self._server = server
        self._app: PageApp | None = None

    @staticmethod
    def owns(path: str) -> bool:
        """Whether a path leads to a page."""
        return path.split("/", 2)[1] in _PATHS if path.startswith("/") else False

    async def answer(
        self, scope: Scope, runtime: Runtime, headers: Mapping[str, str], receive: Receive, send: Send
    ) -> None:
        """Answers one request for a page."""
        if self._app is None:
            # In a thread: importing takes a while, and calls wait on the loop.
            module = await asyncio.to_thread(import_module, "proxy.page.app")
            self._app = self._app or module.PageApp(self._server)
        await self._app.answer(scope, runtime, headers, receive, send)
