"""Metrics of several processes, added up in files that the library keeps."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal

from prometheus_client import CollectorRegistry, Gauge, Info, Metric, generate_latest, values
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

from proxy.version import VERSION

_FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"

Mode = Literal["livesum", "sum", "liveall"]


def share(folder: str) -> None:
    """From now on this process, and those that it forks, keep their numbers in a folder.

    The library looks at a variable of the environment, when it is loaded and whenever it makes a number.
    """
    os.environ[_FOLDER] = folder
    values.ValueClass = values.MultiProcessValue()  # type: ignore[no-untyped-call]


def forget(pid: int) -> None:
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


class Tally:
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
