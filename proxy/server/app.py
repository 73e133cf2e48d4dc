"""The server's inside: what answers under which path."""

import asyncio
import itertools
import logging
import os
import re
import secrets
import time
import traceback
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import msgspec
from starlette.types import Receive, Scope, Send

from proxy.admission.quota import Quota
from proxy.errors import MethodNotAllowed, ShuttingDown, TurnkeeperError
from proxy.http import body
from proxy.http.body import parse_query
from proxy.http.disconnect import ClientDisconnected, run_until_disconnect
from proxy.http.reply import OUTLET, Reply
from proxy.memory.memory import Memory
from proxy.observe.feed import Feed
from proxy.observe.metrics import GaugeValues, Metrics
from proxy.observe.observation import Observation
from proxy.observe.tracing import HEADER as TRACEPARENT
from proxy.observe.tracing import TraceContext
from proxy.page.lazy import LazyPage
from proxy.runtime import Generation, Runtime
from proxy.server.reporter import TurnReporter
from proxy.server.routes import TURNS, Routes
from proxy.settings.build import build_runtime
from proxy.settings.settings import Settings
from proxy.traces import Traces
from proxy.trial import explain
from proxy.turn import turn
from proxy.turn.active import ActiveTurns
from proxy.turn.pipeline import Pipeline

_CHAT = re.compile(r"(?:/pipelines/(?P<pipeline>[^/]+))?(?:/v1)?/chat/completions")
_EXPLAIN = "/v1/explain"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
_log = logging.getLogger("turnkeeper")


class App:
    """Turnkeeper as an ASGI application. Its ``phase`` is starting, ready or draining.

    Other processes of the same port are told of turns, and tell of theirs, at ``in_flight`` and ``audience``;
    ``place`` says which of them this is.
    """

    def __init__(self, runtime: Runtime, metrics: Metrics, traces: Traces) -> None:
        self._era = Generation(runtime)
        self._site = Routes(self)
        self._page = LazyPage(self)
        self.active_turns = ActiveTurns()
        self._ending: dict[asyncio.Task[None], Generation] = {}
        self._lost = 0
        self._turns = 0
        # To draw each id by itself costs a turn more than to filter it.
        self._mark, self._count = secrets.token_hex(8), itertools.count(0x1000)
        self.phase = "starting"
        self.process_name = ""
        self._metrics = metrics
        self.traces = traces
        self.reporter = TurnReporter(metrics, traces, lambda: self._era.runtime)
        metrics.add_gauges(self.gauges)
        traces.set_retention(runtime.trace_retention)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, or the server's whole life (ASGI's lifespan)."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)

    def swap(self, runtime: Runtime) -> None:
        """Answers from new runtime from now on; turns in flight end on those that they began with.

        What waits to be written is the new memory's to write, if there is one.
        """
        if self.memory and runtime.memory:
            self.memory.recorder.transfer(runtime.memory.recorder)
        ending = asyncio.create_task(self._era.close())
        self._ending[ending] = self._era
        ending.add_done_callback(self._ended)
        self._era = Generation(runtime)
        self._begin()
        self.traces.set_retention(runtime.trace_retention)
        if runtime.memory:
            runtime.memory.start()

    @property
    def metrics(self) -> Metrics:
        """The server's numbers, of all turns that have ended by now."""
        self.reporter.flush()
        return self._metrics

    @property
    def feed(self) -> Feed:
        """Turns as they happen."""
        return self.traces.feed

    @property
    def runtime(self) -> Runtime:
        """What calls are answered with now."""
        return self._era.runtime

    @property
    def memory(self) -> Memory | None:
        """What is remembered with, if anything."""
        return self._era.runtime.memory

    def drain(self) -> None:
        """From now on the server says that it is going away."""
        self.phase = "draining"
        self.feed.close()

    def _begin(self) -> None:
        self._era.start_loading()
        if self._era.runtime.runs_worker:
            self._era.start_worker()

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        if self.memory:
            await self.memory.open()
            self.memory.start()
        self.phase = "ready"
        self._begin()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self.reporter.close()
        await asyncio.gather(self._era.close(), *self._ending)
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        mark = f"{self._mark}{next(self._count):x}"
        watch = Observation(_request_id(headers, mark), self.reporter.observe, f"turn_{mark}")
        # What stayed in the scope would hold the request that holds the scope, until a collector came.
        outlet = scope.get("extensions", {}).pop(OUTLET, None)
        reply = Reply(send, [(b"x-request-id", watch.request.encode())], watch, outlet)
        try:
            with self._held(scope["path"]) as runtime:
                await self._route(runtime, scope, headers, receive, reply)
        except TurnkeeperError as error:
            error.let_go()
            self.reporter.report_error(error)
            await reply.fail(error)
        except ClientDisconnected:
            watch.outcome = "hangup"
        except asyncio.CancelledError:
            if self.phase != "draining":
                raise
            await reply.fail(ShuttingDown("Turnkeeper is going away; ask again."))
        except Exception as error:  # noqa: BLE001
            # The message of a stray exception may quote the caller: the log gets only where it came from.
            where = "".join(traceback.format_tb(error.__traceback__))
            _log.error("%s in a request:\n%s", type(error).__name__, where)
            await reply.fail(TurnkeeperError("Turnkeeper failed; its log says where."))
        finally:
            watch.end("done" if reply.ending else "hangup")

    def _held(self, path: str) -> AbstractContextManager[Runtime]:
        """What to answer with. Who looks on may stay for days, and keeps nothing old open meanwhile."""
        return nullcontext(self.runtime) if path == TURNS else self._era

    async def _route(
        self, runtime: Runtime, scope: Scope, headers: dict[str, str], receive: Receive, reply: Reply
    ) -> None:
        path = scope["path"]
        if self._page.owns(path):
            await self._page.answer(scope, runtime, headers, receive, reply.send)
            return
        tenant = runtime.gate.admit(headers, path)
        chat = _CHAT.fullmatch(path)
        if chat is None and path != _EXPLAIN:
            await self._site.answer(scope, runtime, tenant, receive, reply.send)
            return
        if scope["method"] != "POST":
            raise MethodNotAllowed(f"{path} takes POST.", allow="POST")
        query = parse_query(scope["query_string"])
        pipeline = runtime.pipeline((chat["pipeline"] if chat else query.get("pipeline")) or "default")
        if chat:
            reply.observation.begin_turn(tenant, pipeline.name)
            if runtime.tracing:
                _continue(headers, reply.observation)
        content = await body.read_body(receive, headers, runtime.max_body)
        request = turn.RawRequest(headers=headers, query=query, body=content, tenant=tenant)
        if chat:
            await run_until_disconnect(
                receive, self._turn(request, pipeline, reply, runtime.quota), reply.outlet
            )
        else:
            await run_until_disconnect(receive, _explain(request, pipeline, reply), reply.outlet)

    async def _turn(
        self, request: turn.RawRequest, pipeline: Pipeline, reply: Reply, quota: Quota | None
    ) -> None:
        admitted = quota.admit(request.tenant, len(request.body), reply) if quota else nullcontext()
        self._turns += 1
        try:
            async with admitted:
                await turn.answer_turn(request, pipeline, reply, self.active_turns)
        finally:
            self._turns -= 1

    def _ended(self, ending: asyncio.Task[None]) -> None:
        self._lost += self._ending.pop(ending).lost_turns

    def gauges(self) -> GaugeValues:
        """What is true of the server now."""
        memory = self._era.runtime.memory
        eras = (self._era, *self._ending.values())
        return GaugeValues(
            in_flight=self._turns,
            queued=memory.recorder.pending if memory else 0,
            lost=self._lost + sum(era.lost_turns for era in eras),
            failing=bool(memory and memory.degraded),
            breakers=self._era.runtime.breakers,
            background=self._era.runtime.background_failures,
        )


def _continue(headers: dict[str, str], watch: Observation) -> None:
    """Takes the client's trace over; the model, where it gets that header, becomes a part of ours."""
    watch.trace_context = TraceContext.of(headers.get(TRACEPARENT))
    headers[TRACEPARENT] = watch.trace_context.traceparent


async def _explain(request: turn.RawRequest, pipeline: Pipeline, reply: Reply) -> None:
    told = await explain.explain_with_memory(request, pipeline, time.time())
    for name in told.degraded:
        reply.add_degraded(name)
    body = await asyncio.to_thread(msgspec.json.encode, told)
    await reply.send_whole(200, [(b"content-type", b"application/json")], body)


def _request_id(headers: Mapping[str, str], mark: str) -> str:
    given = headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else f"req_{mark}"


def build_app(
    settings: Settings, environ: Mapping[str, str] = os.environ, *, metrics: Metrics | None = None
) -> App:
    """The application that a configuration describes; ``environ`` says which proxies lead to the models."""
    metrics, traces = metrics or Metrics(), Traces()
    return App(build_runtime(settings, environ, metrics, traces), metrics, traces)
