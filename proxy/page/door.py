"""Where the web page begins; what is behind it is imported when somebody first knocks."""

import asyncio
from collections.abc import Mapping
from importlib import import_module
from typing import Final, Protocol

from starlette.types import Receive, Scope, Send

from proxy.observe.feed import Feed
from proxy.observe.metrics import GaugeValues
from proxy.parts import Parts
from proxy.traces import Traces

_HOUSE: Final = "proxy.page.house"
_ROOMS: Final = frozenset(
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
    """What the page needs to know of the server around it."""

    phase: str
    place: str

    @property
    def feed(self) -> Feed:
        """Turns as they happen."""
        ...

    @property
    def traces(self) -> Traces:
        """The newest turns."""
        ...

    def standing(self) -> GaugeValues:
        """What is true of the server now."""
        ...

    @property
    def parts(self) -> Parts:
        """What calls are answered with now."""
        ...


class Visits(Protocol):
    """Whatever answers requests for pages."""

    async def answer(
        self, scope: Scope, parts: Parts, headers: Mapping[str, str], receive: Receive, send: Send
    ) -> None:
        """One request for a page."""
        ...


class Door:
    """The page's paths. A call never waits for a template engine that nobody needs."""

    def __init__(self, server: PageServer) -> None:
        self._server = server
        self._house: Visits | None = None

    @staticmethod
    def owns(path: str) -> bool:
        """Whether a path leads to a page."""
        return path.split("/", 2)[1] in _ROOMS if path.startswith("/") else False

    async def answer(
        self, scope: Scope, parts: Parts, headers: Mapping[str, str], receive: Receive, send: Send
    ) -> None:
        """One request for a page."""
        if self._house is None:
            # In a thread: importing takes a while, and callers wait on the loop.
            house = await asyncio.to_thread(lambda: import_module(_HOUSE).House(self._server))
            self._house = self._house or house
        await self._house.answer(scope, parts, headers, receive, send)
