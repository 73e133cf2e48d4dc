"""A request for a page, with all that its handler needs."""

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
    """Runs one function at a time in a thread; one that has timed out still blocks the next until it ends."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._thread = ThreadPoolExecutor(1, "page")

    async def run(self, work: Callable[[], T]) -> T:
        """Returns the result of ``work``; raises TimeoutError after ``timeout`` seconds, waiting included."""
        async with asyncio.timeout(self._timeout):
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)


class TrialResult(msgspec.Struct, frozen=True):
    """The result of a trial, or its error, as HTML that our templates have escaped."""

    html: Markup
    status: int = 200
    headers: Mapping[str, str] = {}


class PageRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a page that its viewer may see; ``params`` are the decoded parameters of the path."""

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
        """Returns the traces with content, also from other processes; those with content get a pipeline."""
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
        """Runs a trial, which counts towards the limits as a request of ``size`` bytes."""
        try:
            async with self.runtime.admit_by_size(self.tenant, size, self.reply):
                return TrialResult(Markup((await self.drafts.run(trial)).decode()))  # noqa: S704 - escaped by our templates
        except TurnkeeperError as error:
            html = self.renderer.text("errors.html", error=error.message)
            return TrialResult(Markup(html), error.status, error.headers())  # noqa: S704 - escaped by our templates

    @property
    def is_only_tenant(self) -> bool:
        """Whether there is no other tenant, whose calls the server's own metrics would include."""
        return all(key.tenant == self.tenant for key in self.runtime.keys.entries)

    @property
    def memory(self) -> Memory:
        """The memory; raises NotFound where there is none."""
        if self.runtime.memory is None:
            raise NotFound("There is no memory here: the configuration has no 'memory:'.")
        return self.runtime.memory

    @property
    def session_key(self) -> Key:
        """The key of the session in the path; raises NotFound for an invalid id."""
        return Key(self.tenant, self.id("There is no such conversation."))

    def id(self, missing: str) -> str:
        """The id in the path; raises NotFound, with the message ``missing``, for an invalid one."""
        id_ = identifier(self.params["id"])
        if id_ is None:
            raise NotFound(missing)
        return id_

    # Templates are rendered in threads, as a long page would block the event loop for longer than a turn.

    async def page(self, template: str, here: str, *, status: int = 200, **values: Any) -> Response:
        """Renders a page; ``here`` is its entry in the menu."""
        render = partial(self.renderer.page, template, self.viewer, status=status, here=here, **values)
        return await asyncio.to_thread(render)

    async def fragment(self, template: str, **values: Any) -> Response:
        """Renders a part of a page, with which a script updates an open page."""
        text = await asyncio.to_thread(self.renderer.text, template, viewer=self.viewer, **values)
        return Response(text.encode("utf-8", "replace"), 200, HEADERS, "text/html")


def redirect(*steps: str, query: str = "") -> Response:
    """Redirects to another page, which the browser requests with GET; ``steps`` of its path are unquoted.

    Raises NotFound where one of them cannot be a step of a path.
    """
    if not all(map(is_step, steps)):
        raise NotFound("No page can have this name.")
    path = "/" + "/".join(quote(step, safe="", errors="surrogatepass") for step in steps)
    return Response(status_code=303, headers={**HEADERS, "location": path + query})
