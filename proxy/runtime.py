"""What an application is made of, as one configuration says."""

import asyncio
from collections.abc import Iterator, Mapping
from datetime import UTC, tzinfo
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec

from proxy.admission.gate import Gate
from proxy.admission.keys import Webhook
from proxy.admission.quota import Quota
from proxy.background.worker import EVERY, Worker
from proxy.errors import NotFound
from proxy.memory.memory import Memory
from proxy.memory.privacy import PrivacyRegistry
from proxy.traces import Retention, TombstoneWatch
from proxy.turn.pipeline import Pipeline
from proxy.upstream.client import Upstream
from proxy.upstream.target import Health
from proxy.upstream.tokens import TokenCounter

if TYPE_CHECKING:
    from proxy.observe.spans import Spans


class Runtime(msgspec.Struct, frozen=True, kw_only=True):
    """What an application is made of. ``health`` goes by the upstreams' names; ``max_body`` is in bytes.

    ``log_content`` is whether the log may hold what was said, and ``keeping`` what is kept of turns to be
    looked at; ``graves`` tells what may not be kept of them any more. ``worker`` does what no caller waits
    for; ``works`` is whether it does so beside the calls. ``people`` is all that is held of persons, which
    without memory is what is kept to be looked at. ``zone`` is where a day begins for whoever names no
    pipeline.
    """

    pipelines: Mapping[str, Pipeline]
    upstreams: tuple[Upstream, ...]
    health: Mapping[str, Health]
    memory: Memory | None
    privacy: PrivacyRegistry
    gate: Gate
    max_body: int
    agora_webhook: Webhook | None = None
    log_content: bool = False
    quota: Quota | None = None
    tracing: "Spans | None" = None
    trace_retention: Retention = Retention()
    exact: TokenCounter | None = None
    worker: Worker | None = None
    runs_worker: bool = True
    tombstones: TombstoneWatch | None = None
    zone: tzinfo = UTC

    def pipeline(self, name: str) -> Pipeline:
        """The one of this name; raises NotFound, which tells those that there are."""
        if name not in self.pipelines:
            there = ", ".join(self.pipelines)
            raise NotFound(f"There is no pipeline '{name}'; there are: {there}.", code="pipeline_not_found")
        return self.pipelines[name]

    @property
    def is_available(self) -> bool:
        """Whether an upstream that calls go to may answer; who is asked for memory alone does not count."""
        targets = (target for pipeline in self.pipelines.values() for target in pipeline.targets)
        return any(not target.health.down for target in targets)

    @property
    def degraded(self) -> Iterator[str]:
        """The names of what works less well than it should."""
        if self.memory and self.memory.degraded:
            yield "memory"
        if self.quota and self.quota.degraded:
            yield "limits"
        for name, health in self.health.items():
            if health.degraded:
                yield f"upstream {name}"

    def status(self, phase: str) -> str:
        """How a server of this phase stands, in one word: a ready one may be degraded or unavailable."""
        if phase != "ready":
            return phase
        if not self.is_available:
            return "unavailable"
        return "degraded" if any(self.degraded) else "ready"

    @property
    def background_failures(self) -> Mapping[str, bool]:
        """Which kinds of work fail that are done beside the calls."""
        return self.worker.failing if self.worker and self.runs_worker else {}

    @property
    def breakers(self) -> dict[tuple[str, str], str]:
        """How the breaker of each upstream and model stands."""
        return {
            (upstream, model): state
            for upstream, health in self.health.items()
            for model, state in health.states().items()
        }


class Generation:
    """Parts in use. A call enters and leaves; what ends waits for those inside."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._calls = 0
        self._work: asyncio.Task[None] | None = None
        self._loading: list[asyncio.Task[None]] = []
        self._empty = asyncio.Event()
        self._empty.set()

    def __enter__(self) -> Runtime:
        self._calls += 1
        self._empty.clear()
        return self.runtime

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self._calls -= 1
        if not self._calls:
            self._empty.set()

    def start_worker(self, *, every: float = EVERY) -> None:
        """Begins the work in the background; the store is looked through ``every`` so many seconds."""
        if self.runtime.worker:
            self._work = asyncio.get_running_loop().create_task(self.runtime.worker.run(every=every))

    @property
    def lost_turns(self) -> int:
        """How many turns memory has not taken."""
        return self.runtime.memory.recorder.lost_turns if self.runtime.memory else 0

    def start_loading(self) -> None:
        """Begins what no call waits for, such as opening the ways to the models and looking after memory."""
        loading = [upstream.keep_warm() for upstream in self.runtime.upstreams]
        if self.runtime.exact:
            loading.append(self.runtime.exact.ready())
        if self.runtime.tombstones:
            loading.append(self.runtime.tombstones.run())
        if self.runtime.memory:
            loading.append(self.runtime.memory.health.run())
        self._loading = [asyncio.get_running_loop().create_task(each) for each in loading]

    async def close(self) -> None:
        """Ends the work at once, and closes memory and the ways to the models once the last call has left."""
        if self._work:
            self._work.cancel()
            await asyncio.wait({self._work})
        for each in self._loading:
            each.cancel()
        await self._empty.wait()
        if self.runtime.quota:
            await self.runtime.quota.aclose()
        if self.runtime.memory:
            await self.runtime.memory.aclose()
        for upstream in self.runtime.upstreams:
            await upstream.aclose()
        if self.runtime.tracing:
            await asyncio.to_thread(self.runtime.tracing.close)
