"""What a page is made from: who asks, what for, and what there is to show."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes

import msgspec
from starlette.responses import Response

from proxy.errors import NotFound
from proxy.memory.memory import Memory
from proxy.page.door import PageServer
from proxy.page.paper import GUARDED, Paper, is_step
from proxy.page.turnstile import Turnstile
from proxy.page.visitor import Visitor
from proxy.parts import Parts


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """One request for a page by a visitor who may see it. ``params`` are the path's, decoded."""

    server: PageServer
    parts: Parts
    paper: Paper
    visitor: Visitor
    headers: Mapping[str, str]
    query: Mapping[str, str]
    params: Mapping[str, str]
    form: Mapping[str, str]
    turnstile: Turnstile

    @property
    def tenant(self) -> str:
        """Whose memory and turns may be seen."""
        return self.visitor.tenant or ""

    @property
    def alone(self) -> bool:
        """Whether there is no other tenant whose calls the server's own figures would tell of."""
        return all(key.tenant == self.tenant for key in self.parts.gate.keys.entries)

    @property
    def memory(self) -> Memory:
        """What is remembered with; raises NotFound where nothing is."""
        if self.parts.memory is None:
            raise NotFound("Nothing is remembered here: the configuration has no 'memory:'.")
        return self.parts.memory

    # Pages are written in threads: a long one takes longer than a turn, and callers wait on the loop.

    async def page(self, template: str, here: str, *, status: int = 200, **values: Any) -> Response:
        """A page; ``here`` is the entry of the menu that it belongs to."""
        write = partial(self.paper.page, template, self.visitor, status=status, here=here, **values)
        return await asyncio.to_thread(write)

    async def fragment(self, template: str, **values: Any) -> Response:
        """A part of a page, to be put into one that is open."""
        text = await asyncio.to_thread(self.paper.text, template, visitor=self.visitor, **values)
        return Response(text.encode("utf-8", "replace"), 200, GUARDED, "text/html")


Show = Callable[[Room], Awaitable[Response]]


class Path:
    """A method and a path with names in braces; each stands for one step as it was sent."""

    def __init__(self, method: str, path: str, show: Show) -> None:
        self.method = method
        self.show: Final = show
        self._pattern = re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path))

    def match(self, path: str) -> Mapping[str, str] | None:
        """The path's names, decoded; ``None`` for another path. Raises NotFound for what is no text."""
        found = self._pattern.fullmatch(path)
        return None if found is None else {name: _decoded(step) for name, step in found.groupdict().items()}


def redirect(*steps: str, query: str = "") -> Response:
    """To another page, after a form too: the browser asks for it with GET. The steps are ids as they are.

    Raises NotFound where one of them can be no step.
    """
    if not all(map(is_step, steps)):
        raise NotFound("No page can have this name.")
    path = "/" + "/".join(quote(step, safe="", errors="surrogatepass") for step in steps)
    return Response(status_code=303, headers={**GUARDED, "location": path + query})


def _decoded(step: str) -> str:
    try:
        return unquote_to_bytes(step).decode()
    except UnicodeDecodeError:
        raise NotFound("There is no such page.") from None
