"""What an application is made of, as one configuration says."""

from collections.abc import Iterator, Mapping
from datetime import UTC, tzinfo
from typing import TYPE_CHECKING

import msgspec

from proxy.admission.gate import Gate
from proxy.admission.quota import Quota
from proxy.admission.webhook import Webhook
from proxy.background.worker import Worker
from proxy.errors import NotFound
from proxy.exact import Exact
from proxy.health import Health
from proxy.memory.memory import Memory
from proxy.memory.privacy import People
from proxy.traces import Retention, TombstoneWatch
from proxy.turn.pipeline import Pipeline
from proxy.upstream import Upstream

if TYPE_CHECKING:
    from proxy.observe.spans import Spans


class Parts(msgspec.Struct, frozen=True, kw_only=True):
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
    people: People
    gate: Gate
    max_body: int
    agora: Webhook | None = None
    log_content: bool = False
    quota: Quota | None = None
    tracing: "Spans | None" = None
    keeping: Retention = Retention()
    exact: Exact | None = None
    worker: Worker | None = None
    works: bool = True
    graves: TombstoneWatch | None = None
    zone: tzinfo = UTC

    def pipeline(self, name: str) -> Pipeline:
        """The one of this name; raises NotFound, which tells those that there are."""
        if name not in self.pipelines:
            there = ", ".join(self.pipelines)
            raise NotFound(f"There is no pipeline '{name}'; there are: {there}.", code="pipeline_not_found")
        return self.pipelines[name]

    @property
    def answering(self) -> bool:
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

    def standing(self, phase: str) -> str:
        """How a server of this phase stands, in one word: a ready one may be degraded or unavailable."""
        if phase != "ready":
            return phase
        if not self.answering:
            return "unavailable"
        return "degraded" if any(self.degraded) else "ready"

    @property
    def background(self) -> Mapping[str, bool]:
        """Which kinds of work fail that are done beside the calls."""
        return self.worker.failing if self.worker and self.works else {}

    @property
    def breakers(self) -> dict[tuple[str, str], str]:
        """How the breaker of each upstream and model stands."""
        return {
            (upstream, model): state
            for upstream, health in self.health.items()
            for model, state in health.states().items()
        }
