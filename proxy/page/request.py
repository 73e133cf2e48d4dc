"""One request for a page, and what a handler needs to answer it."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec
from markupsafe import Markup
from starlette.responses import Response

from proxy.errors import NotFound, TurnkeeperError
from proxy.http.reply import Reply
from proxy.memory.memory import Memory
from proxy.memory.stores.store import Key
from proxy.page.draft_process import DraftProcesses
from proxy.page.renderer import HEADERS, Renderer, is_step
from proxy.page.trials import Trial
from proxy.page.viewer import Viewer
from proxy.runtime import Runtime, ServerState
from proxy.trace import Trace
from proxy.turn.identity import identifier

T = TypeVar("T")


class SerialExecutor:
    """Runs one piece of work at a time in a thread; the next one starts when the last has truly ended."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._thread = ThreadPoolExecutor(1, "page")

    async def run(self, work: Callable[[], T]) -> T:
        """Returns the result of ``work``; raises TimeoutError after ``timeout`` seconds, waiting included."""
        async with asyncio.timeout(self._timeout):
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)


class TrialResult(msgspec.Struct, frozen=True):
    """What a trial shows, or the error in its place: HTML that our templates have escaped."""

    html: Markup
    status: int = 200
    headers: Mapping[str, str] = {}


class PageRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request for a page that its viewer may see; ``params`` are the path's, decoded."""

    server: ServerState
    runtime: Runtime
    renderer: Renderer
    reply: Reply
    viewer: Viewer
    headers: Mapping[str, str]
    query: Mapping[str, str]
    params: Mapping[str, str]
    form: Mapping[str, str]
    executor: SerialExecutor
    drafts: DraftProcesses

    @property
    def tenant(self) -> str:
        """The viewer's tenant."""
        return self.viewer.tenant or ""

    async def with_content(self, traces: Sequence[Trace]) -> Sequence[Trace]:
        """Traces with what was said and with a pipeline, wherever they are kept."""
        pipelines = self.runtime.pipelines
        return [
            msgspec.structs.replace(
                trace, pipeline=pipelines.get(trace.report.pipeline, pipelines["default"])
            )
            if trace.content and trace.pipeline is None
            else trace
            for trace in await self.server.traces.with_content(traces)
        ]

    async def run_trial(self, trial: Trial, size: int) -> TrialResult:
        """Runs a trial, which counts within the limits as a request of ``size`` bytes."""
        try:
            async with self.runtime.admit_by_size(self.tenant, size, self.reply):
                return TrialResult(Markup((await self.drafts.run(trial)).decode()))  # noqa: S704 - escaped by our templates
        except TurnkeeperError as error:
            html = self.renderer.text("errors.html", error=error.message)
            return TrialResult(Markup(html), error.status, error.headers())  # noqa: S704 - escaped by our templates

    @property
    def is_only_tenant(self) -> bool:
        """Whether the server's own figures are of no other tenant's calls."""
        return all(key.tenant == self.tenant for key in self.runtime.keys.entries)

    @property
    def memory(self) -> Memory:
        """The memory; raises NotFound where there is none."""
        if self.runtime.memory is None:
            raise NotFound("Nothing is remembered here: the configuration has no 'memory:'.")
        return self.runtime.memory

    @property
    def session_key(self) -> Key:
        """The session that the path names; raises NotFound for what cannot be a name."""
        return Key(self.tenant, self.id("There is no such conversation."))

    def id(self, missing: str) -> str:
        """The id in the path; raises NotFound, with this message, for what cannot be one."""
        id_ = identifier(self.params["id"])
        if id_ is None:
            raise NotFound(missing)
        return id_

    # Templates are rendered in threads: a long page takes longer than a turn, and calls wait on the loop.

    async def page(self, template: str, here: str, *, status: int = 200, **values: Any) -> Response:
        """Renders a page; ``here`` is its entry of the menu."""
        render = partial(self.renderer.page, template, self.viewer, status=status, here=here, **values)
        return await asyncio.to_thread(render)

    async def fragment(self, template: str, **values: Any) -> Response:
        """Renders a part of a page, which a script puts into one that is open."""
        text = await asyncio.to_thread(self.renderer.text, template, viewer=self.viewer, **values)
        return Response(text.encode("utf-8", "replace"), 200, HEADERS, "text/html")


def redirect(*steps: str, query: str = "") -> Response:
    """Redirects to another page, which the browser then asks for with GET; ``steps`` are ids, unquoted.

    Raises NotFound where one of them cannot be a step of a path.
    """
    if not all(map(is_step, steps)):
        raise NotFound("No page can have this name.")
    path = "/" + "/".join(quote(step, safe="", errors="surrogatepass") for step in steps)
    return Response(status_code=303, headers={**HEADERS, "location": path + query})
