"""The application, which answers requests."""

import asyncio
import gc
import itertools
import logging
import os
import re
import secrets
import traceback
from collections.abc import Mapping
from typing import Final

from starlette.types import Receive, Scope, Send

from proxy.clock import wall_time
from proxy.errors import MethodNotAllowed, ShuttingDown, TurnkeeperError
from proxy.http.reply import Reply, json_slices
from proxy.http.request import SMALL_BODY, BodyLimit, ClientDisconnected, Request, parse_query, read_body
from proxy.memory.recorder import WriteListener
from proxy.observe.metrics import Metrics
from proxy.observe.observation import TRACEPARENT, Observation, TraceContext, TurnReport
from proxy.runtime import Generation, Runtime, ServerState
from proxy.server.reporter import TurnReporter
from proxy.server.routes import FEED, LazyPage, Routes
from proxy.settings.build import build_runtime
from proxy.settings.settings import Settings
from proxy.traces import Traces
from proxy.trial import explain
from proxy.turn import turn
from proxy.turn.active import ActiveTurns
from proxy.turn.pipeline import Pipeline

_CHAT: Final = re.compile(r"(?:/pipelines/(?P<pipeline>[^/]+))?(?:/v1)?/chat/completions")
_EXPLAIN: Final = "/v1/explain"
_ENCODING: Final = "content-encoding"
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
_log = logging.getLogger("turnkeeper")


def build_app(
    settings: Settings,
    environ: Mapping[str, str] = os.environ,
    *,
    metrics: Metrics | None = None,
    notify: WriteListener | None = None,
) -> "App":
    """Builds the application of a configuration; ``environ`` names proxies to upstreams.

    ``notify`` is called with sessions that were written, for the background process if there is one.
    """
    metrics, traces = metrics or Metrics(), Traces()
    return App(build_runtime(settings, environ, metrics, traces, notify=notify), metrics, traces)


class App(ServerState):
    """The application; ASGI's lifespan starts and ends it.

    A body of up to ``small_body`` bytes is read before the request is answered. ``orphaned`` is whether the
    process that started this one is dead.
    """

    def __init__(self, runtime: Runtime, metrics: Metrics, traces: Traces) -> None:
        super().__init__(runtime, metrics, traces)
        self.orphaned = False
        self.active_turns = ActiveTurns()
        self.reporter = TurnReporter(metrics, traces, runtime)
        self.small_body = min(SMALL_BODY, runtime.max_body)
        # A random id for each request would cost more than the filters of a turn.
        self._id_prefix, self._ids = secrets.token_hex(8), itertools.count(0x1000)
        self._page = LazyPage(self)
        self._routes = Routes(self)

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Runs ASGI's lifespan: starts the application, and closes it at the end."""
        await receive()
        if self.memory:
            await self.memory.open()
        if self.runtime.clock:
            self.runtime.clock.warns = self.counts_background
            await self.runtime.clock.start()
        self.phase = "ready"
        self._generation.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self._page.close()
        self.reporter.close()
        await asyncio.gather(self._generation.close(), *self._closing)
        await send({"type": "lifespan.shutdown.complete"})

    async def answer(self, request: Request) -> None:
        """Answers one request."""
        reply, headers, path = request.reply, request.headers, request.path
        number = f"{self._id_prefix}{next(self._ids):x}"
        request_id = headers.get("x-request-id", "")
        if not _REQUEST_ID.fullmatch(request_id):
            request_id = f"req_{number}"
        reply.headers.append((b"x-request-id", request_id.encode()))
        report = TurnReport(id=f"turn_{number}", request=request_id)
        reply.observation = observation = Observation(report, self.reporter.observe)
        generation = self._generation
        keeps_generation = path != FEED  # a feed may stay open for days
        generation.calls += keeps_generation
        try:
            if (chat := _CHAT.fullmatch(path)) or path == _EXPLAIN:
                await self._answer_call(request, generation.runtime, chat)
            elif self._page.owns(path, request.method):
                await self._page.answer(request, generation.runtime)
            else:
                tenant = generation.runtime.keys.admit(headers, path)
                await self._routes.answer(request, generation.runtime, tenant)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001
            await self._fail(request, error)
        finally:
            generation.calls -= keeps_generation
            if generation.closing is not None:
                generation.closing.set()
            observation.end("done" if reply.ending else "hangup")
            if not (reply.is_complete or reply.disconnected):
                reply.client.transport.close()

    async def _fail(self, request: Request, error: Exception | asyncio.CancelledError) -> None:
        reply, task = request.reply, request.task
        reply.watcher = None
        if isinstance(error, TurnkeeperError):
            error.drop_traceback()
            self.reporter.report_error(error)
            await reply.fail(error)
        elif isinstance(error, asyncio.CancelledError):
            if reply.disconnected and task and not task.uncancel():
                reply.observation.report.outcome = "hangup"
            elif self.phase == "draining":
                await reply.fail(ShuttingDown("Turnkeeper is shutting down; try again."))
            else:
                raise error
        elif isinstance(error, ClientDisconnected):
            reply.observation.report.outcome = "hangup"
        else:
            # An unexpected exception may quote the caller, so only its traceback is logged.
            where = "".join(traceback.format_tb(error.__traceback__))
            _log.error("%s in a request:\n%s", type(error).__name__, where)
            await reply.fail(TurnkeeperError("Turnkeeper failed; its log says where."))

    @property
    def metrics(self) -> Metrics:
        """The metrics, with all turns that have ended so far."""
        self.reporter.flush()
        return self._metrics

    def swap(self, runtime: Runtime) -> None:
        """Answers new calls with ``runtime``; active turns keep the former one until they end.

        Records that are not written yet are transferred to the new memory, if there is one.
        """
        if self.memory and runtime.memory:
            self.memory.recorder.transfer(runtime.memory.recorder)
        closing = asyncio.create_task(self._generation.close())
        self._closing[closing] = self._generation
        closing.add_done_callback(self._closed)
        self._generation = Generation(runtime)
        self.small_body = min(SMALL_BODY, runtime.max_body)
        self.reporter.runtime = runtime
        if runtime.clock:
            runtime.clock.warns = self.counts_background
        self._generation.start()
        self.traces.set_retention(runtime.trace_retention)
        self.traces.shared = runtime.shared_traces
        self.background_failures = {}

    def _closed(self, closing: asyncio.Task[None]) -> None:
        self._lost_turns += self._closing.pop(closing).lost_turns
        # A runtime contains reference cycles, and the collector rarely visits old objects.
        asyncio.get_running_loop().call_soon(gc.collect)

    def drain(self) -> None:
        """Begins draining: ends the feed, and the drafts that the page tries."""
        self.phase = "draining"
        self.feed.close()
        self._page.close()

    async def _answer_call(self, request: Request, runtime: Runtime, chat: re.Match[str] | None) -> None:
        """Answers a request for a completion, or for an explanation of one."""
        reply, headers = request.reply, request.headers
        tenant = runtime.keys.admit(headers, request.path)
        if request.method != "POST":
            raise MethodNotAllowed(f"{request.path} takes POST.", allow="POST")
        query = parse_query(request.query_string) if request.query_string else {}
        name = (chat and chat["pipeline"]) or query.get("pipeline") or "default"
        pipeline = runtime.pipelines.get(name) or runtime.pipeline(name)
        if chat:
            observation = reply.observation
            observation.report.tenant, observation.report.pipeline = tenant, pipeline.name
            if runtime.tracing:  # continues the client's trace, with the upstream's span as a child of ours
                observation.trace_context = context = TraceContext.of(headers.get(TRACEPARENT))
                headers[TRACEPARENT] = context.traceparent
        body = request.body
        if request.is_whole and len(body) <= self.small_body and _ENCODING not in headers:
            body, request.body = bytes(body), b""
        else:
            body = await read_body(request.receive, headers, BodyLimit(runtime.max_body))
        raw = turn.RawRequest(headers=headers, query=query, body=body, tenant=tenant)
        if reply.disconnected:
            raise ClientDisconnected
        reply.watcher = request.task
        if chat is None:
            await _explain(runtime, raw, pipeline, reply)
            return
        self._turns += 1
        try:
            if runtime.quota is None:
                await turn.answer_turn(raw, pipeline, reply, self.active_turns)
            else:
                async with runtime.quota.admit(tenant, len(body), reply):
                    await turn.answer_turn(raw, pipeline, reply, self.active_turns)
        finally:
            self._turns -= 1


async def _explain(runtime: Runtime, request: turn.RawRequest, pipeline: Pipeline, reply: Reply) -> None:
    async with runtime.admit_by_size(request.tenant, len(request.body), reply):
        explanation = await explain.explain_with_memory(request, pipeline, wall_time())
        for name in explanation.degraded:
            reply.add_degraded(name)
        if explanation.error:
            reply.add_header("x-turnkeeper-error", "turnkeeper")
        await reply.begin(400 if explanation.error else 200, [(b"content-type", b"application/json")])
        async for slice_ in json_slices(explanation):
            await reply.write(slice_)
        await reply.write(b"", ends=True)
