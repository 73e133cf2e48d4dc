"""The runtime that a configuration describes, and its replacement at a reload."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import UTC, tzinfo
from typing import TYPE_CHECKING

import msgspec

from proxy.admission.gate import Keys, Webhook
from proxy.admission.quota import Quota
from proxy.background.worker import Worker
from proxy.errors import NotFound
from proxy.http.reply import Reply
from proxy.memory.memory import Memory
from proxy.memory.privacy import PrivacyRegistry
from proxy.memory.stores.channel import StoreClock
from proxy.memory.stores.drivers import ChannelAddress
from proxy.memory.tasks import cancel_and_wait
from proxy.memory.token_scale import TokenCounter
from proxy.observe.feed import Feed
from proxy.observe.metrics import GaugeValues, Metrics
from proxy.shared_traces import SharedTraces
from proxy.traces import Retention, TombstoneWatch, Traces
from proxy.turn.pipeline import Pipeline
from proxy.upstream.client import Upstream
from proxy.upstream.target import Health

if TYPE_CHECKING:
    from proxy.observe.spans import Spans


class Runtime(msgspec.Struct, frozen=True, kw_only=True):
    """All components of one configuration; ``max_body`` is in bytes.

    ``health`` is by the upstreams' names. ``log_content`` is whether the log may contain transcripts. Without
    memory, ``privacy`` covers traces alone. ``runs_worker`` is whether this process runs the background jobs.
    ``channel`` is the address of the channel to other hosts, and ``clock`` is the store's clock, which they
    share. ``zone`` is the time zone for requests that name no pipeline.
    """

    pipelines: Mapping[str, Pipeline]
    upstreams: tuple[Upstream, ...]
    health: Mapping[str, Health]
    memory: Memory | None
    privacy: PrivacyRegistry
    keys: Keys
    max_body: int
    agora_webhook: Webhook | None = None
    log_content: bool = False
    quota: Quota | None = None
    tracing: "Spans | None" = None
    trace_retention: Retention = Retention()
    shared_traces: SharedTraces | None = None
    exact: TokenCounter | None = None
    worker: Worker | None = None
    runs_worker: bool = True
    tombstones: TombstoneWatch | None = None
    zone: tzinfo = UTC
    channel: ChannelAddress | None = None
    clock: StoreClock | None = None

    def pipeline(self, name: str) -> Pipeline:
        """The pipeline of this name; raises NotFound, which lists those that exist."""
        pipeline = self.pipelines.get(name)
        if pipeline is None:
            names = ", ".join(self.pipelines)
            raise NotFound(f"There is no pipeline '{name}'; available: {names}.", code="pipeline_not_found")
        return pipeline

    def admit_by_size(self, tenant: str, size: int, reply: Reply) -> AbstractAsyncContextManager[None]:
        """Admits a request that asks no model within the tenant's limits; ``size`` is its body in bytes."""
        return self.quota.admit_by_size(tenant, size, reply) if self.quota else nullcontext()

    @property
    def is_available(self) -> bool:
        """Whether any upstream of a pipeline may answer; those for memory alone do not count."""
        targets = (target for pipeline in self.pipelines.values() for target in pipeline.targets)
        return any(not target.health.down for target in targets)

    @property
    def degraded(self) -> Iterator[str]:
        """The names of the components that are degraded."""
        if self.memory and self.memory.degraded:
            yield "memory"
        if self.quota and self.quota.degraded:
            yield "limits"
        for name, health in self.health.items():
            if health.degraded:
                yield f"upstream {name}"

    def take_over_background(self, former: "Runtime") -> None:
        """Resumes archiving where a closed runtime with the same memory stopped."""
        new, old = self.memory and self.memory.archiving, former.memory and former.memory.archiving
        if new and new.archivist and old and old.archivist:
            new.archivist.progress = old.archivist.progress

    @property
    def background_failures(self) -> Mapping[str, bool]:
        """The kinds of background jobs that this process runs, and whether each fails."""
        return self.worker.failing if self.worker and self.runs_worker else {}

    @property
    def breakers(self) -> dict[tuple[str, str], str]:
        """The state of the circuit breaker of each upstream and model."""
        return {
            (upstream, model): state
            for upstream, health in self.health.items()
            for model, state in health.states().items()
        }


class Generation:
    """A runtime, and the number of ``calls`` that use it; it is closed once there are none.

    ``closing`` exists while it waits for that; the end of each call sets it.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.calls = 0
        self.closing: asyncio.Event | None = None
        self._worker: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def lost_turns(self) -> int:
        """The number of turns that memory could not take."""
        return self.runtime.memory.recorder.lost_turns if self.runtime.memory else 0

    def start(self) -> None:
        """Starts the tasks that no call waits for, such as warming connections and checking memory."""
        runtime = self.runtime
        tasks = [upstream.keep_warm() for upstream in runtime.upstreams]
        if runtime.exact:
            tasks.append(runtime.exact.load())
        if runtime.tombstones:
            tasks.append(runtime.tombstones.run())
        if runtime.memory:
            tasks.append(runtime.memory.health.run())
        self._tasks = [asyncio.get_running_loop().create_task(task) for task in tasks]
        self.follow_clock()
        self.start_background()

    def follow_clock(self) -> None:
        """Starts to compare this host's clock with the store's regularly."""
        if self.runtime.clock:
            self._tasks.append(asyncio.get_running_loop().create_task(self.runtime.clock.run()))

    def start_background(self) -> None:
        """Starts this process's background work: the archive, and the jobs on sessions if it runs them."""
        if self.runtime.memory:
            self.runtime.memory.start()
        if self.runtime.runs_worker:
            self.start_worker()

    def start_worker(self) -> None:
        """Starts the background jobs."""
        if self.runtime.worker:
            self._worker = asyncio.get_running_loop().create_task(self.runtime.worker.run())

    async def close(self) -> None:
        """Cancels the tasks; once the last call has ended, closes memory and connections to upstreams."""
        runtime = self.runtime
        await cancel_and_wait(self._worker)
        for task in self._tasks:
            task.cancel()
        self.closing = asyncio.Event()
        while self.calls:
            self.closing.clear()
            await self.closing.wait()
        if runtime.quota:
            await runtime.quota.aclose()
        if runtime.shared_traces:
            await runtime.shared_traces.aclose()
        if runtime.memory:
            await runtime.memory.aclose()
        if runtime.clock:
            await runtime.clock.aclose()
        for upstream in runtime.upstreams:
            await upstream.aclose()
        if runtime.tracing:
            await asyncio.to_thread(runtime.tracing.close)


class ServerState:
    """A server's current runtime, traces, metrics and status. ``phase`` is starting, ready or draining.

    ``process_name`` tells one of several worker processes from the others, for the foot of a page.
    ``background_failures`` says for each background job whether it fails; the process whose
    ``counts_background`` is true has them in its metrics.
    """

    def __init__(self, runtime: Runtime, metrics: Metrics, traces: Traces) -> None:
        self.phase = "starting"
        self.process_name = ""
        self.background_failures: Mapping[str, bool] = {}
        self.counts_background = True
        self.traces = traces
        self._metrics = metrics
        self._generation = Generation(runtime)
        self._closing: dict[asyncio.Task[None], Generation] = {}
        self._lost_turns = 0
        self._turns = 0
        metrics.add_gauges(self.gauges)
        traces.set_retention(runtime.trace_retention)
        traces.shared = runtime.shared_traces

    @property
    def metrics(self) -> Metrics:
        """The metrics of turns that have ended."""
        return self._metrics

    @property
    def feed(self) -> Feed:
        """The live feed of turns."""
        return self.traces.feed

    @property
    def runtime(self) -> Runtime:
        """The runtime for new calls."""
        return self._generation.runtime

    @property
    def memory(self) -> Memory | None:
        """The memory of new calls, if any."""
        return self._generation.runtime.memory

    @property
    def pending_turns(self) -> int:
        """The number of turns that are not written to memory yet."""
        return self.memory.recorder.pending if self.memory else 0

    @property
    def degraded(self) -> Sequence[str]:
        """The names of the degraded components, and of the kinds of background work that fail."""
        failing = (job for job, fails in self._background_failures.items() if fails)
        return [*self.runtime.degraded, *failing]

    @property
    def status(self) -> str:
        """The server's status: its ``phase`` until it is ready; then ready, degraded or unavailable."""
        if self.phase != "ready":
            return self.phase
        if not self.runtime.is_available:
            return "unavailable"
        return "degraded" if self.degraded else "ready"

    @property
    def _background_failures(self) -> Mapping[str, bool]:
        return self.runtime.background_failures or self.background_failures

    def gauges(self) -> GaugeValues:
        """The current values of the gauges in the metrics."""
        runtime = self.runtime
        generations = (self._generation, *self._closing.values())
        return GaugeValues(
            in_flight=self._turns,
            queued=self.pending_turns,
            lost=self._lost_turns + sum(generation.lost_turns for generation in generations),
            failing=bool(runtime.memory and runtime.memory.degraded),
            breakers=runtime.breakers,
            background=self._background_failures if self.counts_background else {},
            clock_skew=runtime.clock.skew if runtime.clock and self.counts_background else None,
        )
