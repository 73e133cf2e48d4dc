"""Prometheus metrics, which are counted at a turn's end, or read at a scrape."""

import contextlib
import math
import os
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from prometheus_client import (
    CollectorRegistry,
    Gauge,
    Info,
    Metric,
    ProcessCollector,
    generate_latest,
    values,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from proxy.observe.observation import TurnReport
from proxy.version import VERSION

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
BREAKER_STATES: Final = ("closed", "half_open", "open")
"""From the best to the worst."""

_SHORT = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_LONG = (0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0)
_TOKENS = (16, 64, 256, 1024, 4096, 16384, 65536, 262144)
_CALL = ("gen_ai_operation_name", "gen_ai_request_model")
_CHAT: Final = "chat"
_MOST_MODELS: Final = 50
_FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"

Kind = Literal["counter", "histogram", "summary"]
Labels = tuple[str, ...]
Buckets = tuple[float, ...]


class GaugeValues(msgspec.Struct, frozen=True, kw_only=True):
    """The values of all gauges at one moment.

    ``breakers`` are the states closed, half_open or open, by upstream and model. ``background`` is whether
    each background job fails, by its name. ``clock_skew`` is in seconds, or ``None`` if it is not known.
    """

    in_flight: int = 0
    queued: int = 0
    lost: int = 0
    failing: bool = False
    breakers: Mapping[tuple[str, str], str] = {}
    background: Mapping[str, bool] = {}
    clock_skew: float | None = None


class Metrics:
    """The metrics of one server; those of generative AI have OpenTelemetry's names.

    Clients cannot create labels without limit: the first 50 models that they name have their own labels, and
    all others count as ``other``. With ``shared``, the numbers of all processes are added up; call
    ``share_between_processes`` before.
    """

    def __init__(self, *, shared: bool = False) -> None:
        self._registry = CollectorRegistry()
        Info("turnkeeper", "This program", registry=self._registry).info({"version": VERSION})
        self._tallies: list[Tally] = []

        def tally(kind: Kind, name: str, what: str, labels: Labels, buckets: Buckets = ()) -> Tally:
            metric = Tally(kind, name, what, labels, buckets)
            self._tallies.append(metric)
            self._registry.register(metric)
            return metric

        def counter(name: str, what: str, *labels: str) -> Tally:
            return tally("counter", name, what, labels)

        def histogram(buckets: Buckets, name: str, what: str, *labels: str) -> Tally:
            return tally("histogram", name, what, labels, buckets)

        self._turns = counter("turnkeeper_turns", "Turns by how they ended", "pipeline", "outcome", "status")
        self._degraded = counter("turnkeeper_degraded_turns", "Degraded turns, by the degraded part", "name")
        self._ignored = counter(
            "turnkeeper_ignored_fields", "Extension fields and ids that could not be used"
        )
        self._failures = counter(
            "turnkeeper_upstream_failures", "Upstreams that did not begin to answer", "upstream", "code"
        )
        self._retries = counter("turnkeeper_retries", "Upstreams asked once more in a turn", "upstream")
        self._fallbacks = counter(
            "turnkeeper_fallbacks",
            "Turns that another than the first upstream answered",
            "pipeline",
            "upstream",
        )
        self._refusals = counter("turnkeeper_refused_requests", "Requests over a rate limit", "limit")
        self._overhead = histogram(
            _SHORT, "turnkeeper_overhead_seconds", "What turns took before the model was asked", "pipeline"
        )
        self._stages = histogram(
            _LONG, "turnkeeper_stage_seconds", "Stages until the answer began", "pipeline", "stage"
        )
        self._memory = histogram(
            _SHORT, "turnkeeper_memory_operation_seconds", "Reads and writes", "operation", "outcome"
        )
        self._first_token = histogram(
            _LONG,
            "gen_ai_server_time_to_first_token_seconds",
            "From a turn's arrival until its first token went out",
            *_CALL,
            "upstream",
        )
        self._durations = histogram(
            _LONG,
            "gen_ai_client_operation_duration_seconds",
            "From asking the model until the turn had ended",
            *_CALL,
            "upstream",
            "error_type",
        )
        self._tokens = histogram(
            _TOKENS,
            "gen_ai_client_token_usage",
            "Tokens, as upstreams count them",
            *_CALL,
            "gen_ai_token_type",
        )
        self._filters = tally("summary", "turnkeeper_filter_seconds", "Request filters", ("filter",))
        self._models: set[str] = set()
        self._process = ProcessCollector(registry=None if shared else self._registry)
        self.is_shared = shared
        self._multiprocess: _MultiprocessMetrics | None = None

    def add_gauges(self, read: Callable[[], GaugeValues]) -> None:
        """Exposes gauges, whose values are read at each scrape."""
        gauges = _GaugeCollector(lambda: self._with_model_labels(read()))
        if self.is_shared:
            self._multiprocess = _MultiprocessMetrics(gauges, self._process)
        else:
            self._registry.register(gauges)

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        self.share()
        return self._multiprocess.exposition() if self._multiprocess else generate_latest(self._registry)

    def share(self) -> None:
        """Adds the counts of this process to those of all processes, if there are several."""
        if self.is_shared:
            for tally in self._tallies:
                tally.share()

    def publish(self) -> None:
        """Publishes counts and gauges of this process for the other ones, if there are any."""
        self.share()
        if self._multiprocess:
            self._multiprocess.publish()

    def count_turn(self, turn: TurnReport) -> None:
        """Counts a turn that has ended."""
        self._turns.add((turn.pipeline, turn.outcome or "", str(turn.status)))
        if turn.ignored:
            self._ignored.add(value=len(turn.ignored))
        for name in turn.degraded:
            self._degraded.add((name,))
        if (upstream := turn.upstream) is None:
            return
        pipeline, model = turn.pipeline, self._model_label(turn.model)
        overhead = turn.overhead
        for stage, seconds in turn.stages:
            self._stages.add((pipeline, stage), seconds)
        self._overhead.add((pipeline,), overhead)
        for module, seconds in turn.filters:
            self._filters.add((module.rpartition(".")[2],), seconds)
        error = turn.code or "" if turn.outcome == "failed" else ""
        self._durations.add((_CHAT, model, upstream, error), turn.duration - overhead)
        if turn.first_token is not None:
            self._first_token.add((_CHAT, model, upstream), turn.first_token)
        if turn.input_tokens is not None:
            self._tokens.add((_CHAT, model, "input"), turn.input_tokens)
        if turn.output_tokens is not None:
            self._tokens.add((_CHAT, model, "output"), turn.output_tokens)
        for failure in turn.attempts.failures:
            self._failures.add(failure)
        for again in turn.attempts.retries:
            self._retries.add((again,))
        if turn.fell_back:
            self._fallbacks.add((pipeline, upstream))

    def count_operation(self, operation: str, outcome: str, seconds: float) -> None:
        """Counts one operation of a store."""
        self._memory.add((operation, outcome), seconds)

    def count_refusal(self, limit: str) -> None:
        """Counts a request over a rate limit."""
        self._refusals.add((limit,))

    def _with_model_labels(self, gauges: GaugeValues) -> GaugeValues:
        """The values with models' labels; of breakers with the same label, the worst state counts."""
        worst: dict[tuple[str, str], str] = {}
        for (upstream, model), state in gauges.breakers.items():
            label = upstream, self._model_label(model)
            worst[label] = max(state, worst.get(label, state), key=BREAKER_STATES.index)
        return msgspec.structs.replace(gauges, breakers=worst)

    def _model_label(self, name: str | None) -> str:
        if name is None or (name not in self._models and len(self._models) >= _MOST_MODELS):
            return "other"
        self._models.add(name)
        return name


class Tally(Collector):
    """A metric with all its labels: the sum of its values, and their number in each bucket.

    A counter exposes only the sum, and a summary has one bucket.
    """

    def __init__(
        self,
        kind: Kind,
        name: str,
        documentation: str,
        labels: Sequence[str] = (),
        buckets: Sequence[float] = (),
    ) -> None:
        self._kind = kind
        self._name = name
        self._documentation = documentation
        self._labels = labels
        self._bounds = (*buckets, math.inf)
        self._series: dict[Labels, _Series] = {}
        self._shared: dict[Labels, Any] = {}
        if not labels:
            self._series[()] = _Series(len(self._bounds))

    def add(self, labels: Labels = (), value: float = 1) -> None:
        """Adds a value under these labels."""
        series = self._series.get(labels)
        if series is None:
            series = self._series[labels] = _Series(len(self._bounds))
        series.sum += value
        series.counts[bisect_left(self._bounds, value)] += 1

    def collect(self) -> Iterator[Metric]:
        """Yields the metric with all its samples."""
        metric = Metric(self._name, self._documentation, self._kind)
        for label_values, series in self._series.items():
            labels = dict(zip(self._labels, label_values, strict=True))
            counts = [*accumulate(series.counts)]
            for suffix, bound, number in self._samples(series.sum, counts):
                if self._kind == "histogram" and suffix == "_sum":
                    metric.add_sample(f"{self._name}_count", labels, counts[-1])
                metric.add_sample(self._name + suffix, labels | bound, number)
            metric.add_sample(f"{self._name}_created", labels, series.created)
        yield metric

    def share(self) -> None:
        """Moves the counts since the last call to the numbers that all processes share."""
        for label_values, series in self._series.items():
            for suffix, bound, number in self._samples(series.sum, series.counts):
                key = (suffix, *label_values, *bound.values())
                if key not in self._shared:
                    self._shared[key] = values.ValueClass(
                        *(self._kind, self._name, self._name + suffix, (*self._labels, *bound)),
                        *(key[1:], self._documentation),
                    )
                self._shared[key].inc(number)
        self._series.clear()

    def _samples(self, total: float, counts: Sequence[int]) -> Iterator[tuple[str, dict[str, str], float]]:
        """Yields the samples of a series: the suffix of the name, the label of a bucket if any, the value."""
        if self._kind == "counter":
            yield "_total", {}, total
        elif self._kind == "summary":
            yield "_count", {}, counts[-1]
            yield "_sum", {}, total
        else:
            for bound, count in zip(self._bounds, counts, strict=True):
                label = floatToGoString(bound)  # type: ignore[no-untyped-call]
                yield "_bucket", {"le": label}, count
            yield "_sum", {}, total


class _Series:
    """The numbers under one set of labels; ``created`` is when it began, in seconds since 1970."""

    __slots__ = ("counts", "created", "sum")

    def __init__(self, buckets: int) -> None:
        self.counts = [0] * buckets
        self.created = time.time()
        self.sum = 0.0


class _GaugeCollector(Collector):
    """Gauges whose values are read at each scrape."""

    def __init__(self, read: Callable[[], GaugeValues]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Yields the current values."""
        now = self._read()
        yield GaugeMetricFamily("turnkeeper_turns_in_flight", "Turns in flight", now.in_flight)
        yield GaugeMetricFamily("turnkeeper_memory_queue_turns", "Turns in the write queue", now.queued)
        yield GaugeMetricFamily("turnkeeper_memory_failing", "1 while memory takes no turns", now.failing)
        yield CounterMetricFamily("turnkeeper_lost_turns", "Turns that memory never got", now.lost)
        if now.clock_skew is not None:
            yield GaugeMetricFamily(
                "turnkeeper_clock_skew_seconds",
                "How far this host's clock is ahead of that of Redis or PostgreSQL",
                now.clock_skew,
            )
        if now.background:
            family = GaugeMetricFamily(
                "turnkeeper_background_failing",
                "Processes in which this work in the background has had nothing but failures of late",
                labels=("work",),
            )
            for job, fails in now.background.items():
                family.add_metric((job,), float(fails))
            yield family
        if now.breakers:
            family = GaugeMetricFamily(
                "turnkeeper_breaker_state",
                "Processes in which the breaker of this upstream and model is in this state",
                labels=("upstream", "model", "state"),
            )
            for (upstream, model), state in now.breakers.items():
                for each in BREAKER_STATES:
                    family.add_metric((upstream, model, each), float(each == state))
            yield family


# --- several processes, whose numbers the library keeps in files


def share_between_processes(folder: str) -> None:
    """Keeps the numbers of this process, and of those that it forks, in files in ``folder``.

    It sets the environment variable that the library reads for each number.
    """
    os.environ[_FOLDER] = folder
    values.ValueClass = values.MultiProcessValue()  # type: ignore[no-untyped-call]


def forget_process(pid: int) -> None:
    """Drops the gauges of a process that has ended; its counters stay."""
    mark_process_dead(pid)  # type: ignore[no-untyped-call]


class _MultiprocessMetrics:
    """The numbers of all processes; gauges are as old as each process's last ``publish``.

    The values of ``gauges`` are added up, and those of ``process`` have a label for the pid.
    """

    def __init__(self, gauges: Collector, process: Collector) -> None:
        self._collectors: tuple[tuple[Collector, Literal["liveall"] | None], ...] = (
            (gauges, None),
            (process, "liveall"),
        )
        self._gauges: dict[str, Gauge] = {}
        self._children: dict[tuple[str, tuple[str, ...]], Gauge] = {}
        self._own = CollectorRegistry()
        self._merged = CollectorRegistry()
        Info("turnkeeper", "This program", registry=self._merged).info({"version": VERSION})
        self._merged.register(_Files(os.environ[_FOLDER]))

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        self.publish()
        return generate_latest(self._merged)

    def publish(self) -> None:
        """Writes the gauges of this process; those that it no longer has become 0."""
        former, self._children = self._children, {}
        for collector, mode in self._collectors:
            for family in collector.collect():
                # A counter stays in the sum after its process has ended.
                of_type: Literal["sum", "livesum"] = "sum" if family.type == "counter" else "livesum"
                for sample in family.samples:
                    name, labels = sample.name, sample.labels
                    if name not in self._gauges:
                        self._gauges[name] = Gauge(
                            *(name, family.documentation, tuple(labels)),
                            registry=self._own,
                            multiprocess_mode=mode or of_type,
                        )
                    gauge = self._gauges[name]
                    child = gauge.labels(**labels) if labels else gauge
                    child.set(sample.value)
                    self._children[name, tuple(labels.values())] = child
        for key, child in former.items():
            if key not in self._children:
                child.set(0)


class _Files(Collector):
    """Reads the files of all processes, except for new ones, which are still empty."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def collect(self) -> Iterable[Metric]:
        """The sums over all processes."""
        files = []
        for file in self._folder.glob("*.db"):
            with contextlib.suppress(FileNotFoundError):  # its process has ended
                if file.stat().st_size:
                    files.append(str(file))
        merged: Iterable[Metric] = MultiProcessCollector.merge(files)  # type: ignore[no-untyped-call]
        return merged
