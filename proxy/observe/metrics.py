"""Prometheus metrics: counted where a turn has ended, or when they are scraped."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, Self

import msgspec
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    Metric,
    ProcessCollector,
    Summary,
    generate_latest,
    values,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

from proxy.observe.observation import TurnReport
from proxy.version import VERSION

_SHORT = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_LONG = (0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0)
_TOKENS = (16, 64, 256, 1024, 4096, 16384, 65536, 262144)
_CALL = ("gen_ai_operation_name", "gen_ai_request_model")
BREAKER_STATES: Final = ("closed", "half_open", "open")
"""From the best to the worst."""
_FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"
Mode = Literal["livesum", "sum", "liveall"]
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_MOST_MODELS: Final = 50
_MOST_NOTED: Final = 100
_CHAT: Final = "chat"


class _Family(msgspec.Struct, frozen=True):
    """One metric: its name, what it says, its labels, and a histogram's buckets."""

    name: str
    what: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


_COUNTERS: Final[Mapping[str, _Family]] = {
    "turns": _Family("turnkeeper_turns", "Turns by how they ended", ("pipeline", "outcome", "status")),
    "degraded": _Family("turnkeeper_degraded_turns", "Turns that went without something", ("name",)),
    "ignored": _Family("turnkeeper_ignored_fields", "Extension fields and ids that could not be used"),
    "failed": _Family(
        "turnkeeper_upstream_failures", "Upstreams that did not begin to answer", ("upstream", "code")
    ),
    "again": _Family("turnkeeper_retries", "Upstreams asked once more in a turn", ("upstream",)),
    "fallbacks": _Family(
        "turnkeeper_fallbacks",
        "Turns that another than the first upstream answered",
        ("pipeline", "upstream"),
    ),
    "refused": _Family("turnkeeper_refused_requests", "Requests over a rate limit", ("limit",)),
}
_HISTOGRAMS: Final[Mapping[str, _Family]] = {
    "overhead": _Family(
        "turnkeeper_overhead_seconds", "What turns took before the model was asked", ("pipeline",), _SHORT
    ),
    "stage": _Family(
        "turnkeeper_stage_seconds", "Stages until the answer began", ("pipeline", "stage"), _LONG
    ),
    "memory": _Family(
        "turnkeeper_memory_operation_seconds", "Reads and writes", ("operation", "outcome"), _SHORT
    ),
    "first_token": _Family(
        "gen_ai_server_time_to_first_token_seconds",
        "From a turn's arrival until its first token went out",
        (*_CALL, "upstream"),
        _LONG,
    ),
    "operation": _Family(
        "gen_ai_client_operation_duration_seconds",
        "From asking the model until the turn had ended",
        (*_CALL, "upstream", "error_type"),
        _LONG,
    ),
    "tokens": _Family(
        "gen_ai_client_token_usage",
        "Tokens, as upstreams count them",
        (*_CALL, "gen_ai_token_type"),
        _TOKENS,
    ),
}


class MetricFamilies(msgspec.Struct, frozen=True, kw_only=True):
    """One registry's metrics, those of generative AI under OpenTelemetry's names."""

    turns: Counter
    degraded: Counter
    ignored: Counter
    refused: Counter
    failed: Counter
    again: Counter
    fallbacks: Counter
    overhead: Histogram
    stage: Histogram
    filter: Summary
    memory: Histogram
    first_token: Histogram
    operation: Histogram
    tokens: Histogram

    @classmethod
    def declare(cls, registry: CollectorRegistry) -> Self:
        """All of them, in an empty registry."""
        Info("turnkeeper", "This program", registry=registry).info({"version": VERSION})
        counters = {
            name: Counter(kind.name, kind.what, kind.labels, registry=registry)
            for name, kind in _COUNTERS.items()
        }
        histograms = {
            name: Histogram(kind.name, kind.what, kind.labels, buckets=kind.buckets, registry=registry)
            for name, kind in _HISTOGRAMS.items()
        }
        filters = Summary("turnkeeper_filter_seconds", "Request filters", ("filter",), registry=registry)
        return cls(**counters, **histograms, filter=filters)  # type: ignore[arg-type]


class GaugeValues(msgspec.Struct, frozen=True, kw_only=True):
    """What is true now.

    ``breakers`` holds closed, half_open or open by upstream and model, and ``background`` whether a kind of
    work in the background fails.
    """

    in_flight: int = 0
    queued: int = 0
    lost: int = 0
    failing: bool = False
    breakers: Mapping[tuple[str, str], str] = {}
    background: Mapping[str, bool] = {}


class GaugeCollector(Collector):
    """A standing in Prometheus' words, taken whenever they are asked for."""

    def __init__(self, standing: Callable[[], GaugeValues]) -> None:
        self._standing = standing

    def describe(self) -> list[Metric]:
        """Nothing in advance, so that registering asks nobody."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The standing now."""
        now = self._standing()
        yield GaugeMetricFamily("turnkeeper_turns_in_flight", "Turns being answered", now.in_flight)
        yield GaugeMetricFamily("turnkeeper_memory_queue_turns", "Turns yet to be written", now.queued)
        yield GaugeMetricFamily("turnkeeper_memory_failing", "1 while memory takes no turns", now.failing)
        yield CounterMetricFamily("turnkeeper_lost_turns", "Turns that memory never got", now.lost)
        if now.background:
            yield _background_family(now.background)
        if now.breakers:
            yield _breaker_family(now.breakers)


def _background_family(failing: Mapping[str, bool]) -> Metric:
    family = GaugeMetricFamily(
        "turnkeeper_background_failing",
        "Processes in which this work in the background has had nothing but failures of late",
        labels=("work",),
    )
    for work, fails in failing.items():
        family.add_metric((work,), float(fails))
    return family


def _breaker_family(states: Mapping[tuple[str, str], str]) -> Metric:
    family = GaugeMetricFamily(
        "turnkeeper_breaker_state",
        "Processes in which the breaker of this upstream and model is in this state",
        labels=("upstream", "model", "state"),
    )
    for (upstream, model), state in states.items():
        for each in BREAKER_STATES:
            family.add_metric((upstream, model, each), float(each == state))
    return family


def share_between_processes(folder: str) -> None:
    """From now on this process, and those that it forks, keep their numbers in a folder.

    The library looks at a variable of the environment, when it is loaded and whenever it makes a number.
    """
    os.environ[_FOLDER] = folder
    values.ValueClass = values.MultiProcessValue()  # type: ignore[no-untyped-call]


def forget_process(pid: int) -> None:
    """A process is no more: what it counted stays, how it stood does not."""
    mark_process_dead(pid)  # type: ignore[no-untyped-call]


class _Files(Collector):
    """What is written in the folder; a file that another process is making has nothing in it to read yet."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def collect(self) -> Iterable[Metric]:
        """All families, each added up."""
        begun = [str(file) for file in self._folder.glob("*.db") if _size(file)]
        merged: Iterable[Metric] = MultiProcessCollector.merge(begun)  # type: ignore[no-untyped-call]
        return merged


def _size(file: Path) -> int:
    """None, once the process that wrote it is no more."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


class MultiprocessMetrics:
    """The numbers of all processes; what is true at a moment is as old as the last ``publish`` of each.

    What collectors ``stand`` for is added up, and what those of the process ``own`` are goes by its pid.
    """

    def __init__(self, stand: Collector, own: Collector) -> None:
        self._stand = stand
        self._own = own
        self._gauges: dict[str, Gauge] = {}
        self._set: dict[tuple[str, tuple[str, ...]], Gauge] = {}
        self._written = CollectorRegistry()
        self._merged = CollectorRegistry()
        Info("turnkeeper", "This program", registry=self._merged).info({"version": VERSION})
        self._merged.register(_Files(os.environ[_FOLDER]))

    def exposition(self) -> bytes:
        """All of it, in Prometheus' text format."""
        self.publish()
        return generate_latest(self._merged)

    def publish(self) -> None:
        """Writes down how this process stands."""
        before, self._set = self._set, {}
        self._take(self._stand, None)
        self._take(self._own, "liveall")
        for place, gone in before.items():
            if place not in self._set:
                gone.set(0)

    def _take(self, collector: Collector, mode: Mode | None) -> None:
        for family in collector.collect():
            # What was lost remains lost when the process ends that lost it.
            wanted: Mode = mode or ("sum" if family.type == "counter" else "livesum")
            for sample in family.samples:
                gauge = self._gauge(sample.name, family.documentation, sample.labels, wanted)
                child = gauge.labels(**sample.labels) if sample.labels else gauge
                child.set(sample.value)
                self._set[sample.name, tuple(sample.labels.values())] = child

    def _gauge(self, name: str, what: str, labels: Iterable[str], mode: Mode) -> Gauge:
        if name not in self._gauges:
            self._gauges[name] = Gauge(
                name, what, tuple(labels), registry=self._written, multiprocess_mode=mode
            )
        return self._gauges[name]


class Metrics:
    """One server's numbers, in a registry of its own.

    No label is the caller's to choose: of models, which a call may name, the first 50 count under their own
    names and the rest as ``other``. ``shared`` adds up what all processes count, once ``tally.share`` was
    called.
    """

    def __init__(self, *, shared: bool = False) -> None:
        self._registry = CollectorRegistry()
        self._families = MetricFamilies.declare(self._registry)
        self._children: dict[tuple[MetricWrapperBase, tuple[str, ...]], Any] = {}
        self._models: set[str] = set()
        self._process = ProcessCollector(registry=None if shared else self._registry)
        self._shared = shared
        self._tally: MultiprocessMetrics | None = None
        self._operations: list[tuple[str, str, float]] = []

    def add_gauges(self, standing: Callable[[], GaugeValues]) -> None:
        """Asks for a standing whenever somebody reads."""
        gauges = GaugeCollector(lambda: self._named(standing()))
        if self._shared:
            self._tally = MultiprocessMetrics(gauges, self._process)
        else:
            self._registry.register(gauges)

    def exposition(self) -> bytes:
        """All of it, in Prometheus' text format."""
        self._settle()
        return self._tally.exposition() if self._tally else generate_latest(self._registry)

    def publish(self) -> None:
        """Shows other processes how this one stands, where there are any."""
        self._settle()
        if self._tally:
            self._tally.publish()

    def count_turn(self, account: TurnReport) -> None:
        """Counts a turn that has ended."""
        self._settle()
        of = self._families
        self._child(of.turns, account.pipeline, account.outcome or "", str(account.status)).inc()
        if account.ignored:
            of.ignored.inc(len(account.ignored))
        for name in account.degraded:
            self._child(of.degraded, name).inc()
        if account.upstream is not None:
            self._own(account)
            self._asked(account, account.upstream)
            self._struggled(account, account.upstream)

    def note_operation(self, operation: str, outcome: str, seconds: float) -> None:
        """Notes one operation of a store, which callers may wait for: it is counted when a turn has ended."""
        self._operations.append((operation, outcome, seconds))
        if len(self._operations) >= _MOST_NOTED:
            self._settle()

    def count_refusal(self, limit: str) -> None:
        """Counts a request over a rate limit."""
        self._child(self._families.refused, limit).inc()

    def _settle(self) -> None:
        noted, self._operations = self._operations, []
        for operation, outcome, seconds in noted:
            self._child(self._families.memory, operation, outcome).observe(seconds)

    def _own(self, account: TurnReport) -> None:
        """What a turn took of ours, once it has come as far as the model."""
        of = self._families
        self._child(of.overhead, account.pipeline).observe(account.overhead)
        for stage, seconds in account.stages:
            self._child(of.stage, account.pipeline, stage).observe(seconds)
        for module, seconds in account.filters:
            self._child(of.filter, module.rpartition(".")[2]).observe(seconds)

    def _asked(self, account: TurnReport, upstream: str) -> None:
        of, model = self._families, self._model(account.model)
        failure = account.code or "" if account.outcome == "failed" else ""
        spent = account.duration - account.overhead
        self._child(of.operation, _CHAT, model, upstream, failure).observe(spent)
        if account.first_token is not None:
            self._child(of.first_token, _CHAT, model, upstream).observe(account.first_token)
        if account.input_tokens is not None:
            self._child(of.tokens, _CHAT, model, "input").observe(account.input_tokens)
        if account.output_tokens is not None:
            self._child(of.tokens, _CHAT, model, "output").observe(account.output_tokens)

    def _struggled(self, account: TurnReport, upstream: str) -> None:
        """What it took until an upstream began to answer."""
        of = self._families
        for failed in account.attempts.failures:
            self._child(of.failed, *failed).inc()
        for again in account.attempts.retries:
            self._child(of.again, again).inc()
        if account.fell_back:
            self._child(of.fallbacks, account.pipeline, upstream).inc()

    def _named(self, standing: GaugeValues) -> GaugeValues:
        """The same with models under their labels; of breakers that share one, the worst is told."""
        worst: dict[tuple[str, str], str] = {}
        for (upstream, model), state in standing.breakers.items():
            label = upstream, self._model(model)
            worst[label] = max(state, worst.get(label, state), key=BREAKER_STATES.index)
        return msgspec.structs.replace(standing, breakers=worst)

    def _model(self, name: str | None) -> str:
        if name is None or (name not in self._models and len(self._models) >= _MOST_MODELS):
            return "other"
        self._models.add(name)
        return name

    def _child(self, family: MetricWrapperBase, *labels: str) -> Any:
        """The family's child: found by one look here, and by a locked one in the library."""
        key = (family, labels)
        known = self._children.get(key)
        if known is None:
            known = self._children[key] = family.labels(*labels)
        return known
