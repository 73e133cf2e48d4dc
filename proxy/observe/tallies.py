"""Metrics in plain numbers: they get names and labels when they are read."""

import math
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Literal

from prometheus_client import Metric, values
from prometheus_client.utils import floatToGoString

Kind = Literal["counter", "histogram", "summary"]
Labels = tuple[str, ...]
Buckets = tuple[float, ...]


class Tally:
    """A metric with all its labels: what was added up, and how many values fell into each bucket.

    A counter shows the sum alone, and a summary has one bucket.
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

    def metric(self) -> Metric:
        """What has been added, as the library exposes it."""
        metric = Metric(self._name, self._documentation, self._kind)
        for label_values, series in self._series.items():
            labels = dict(zip(self._labels, label_values, strict=True))
            counts = [*accumulate(series.counts)]
            for suffix, bound, number in self._samples(series.sum, counts):
                if self._kind == "histogram" and suffix == "_sum":
                    metric.add_sample(f"{self._name}_count", labels, counts[-1])
                metric.add_sample(self._name + suffix, labels | bound, number)
            metric.add_sample(f"{self._name}_created", labels, series.created)
        return metric

    def share(self) -> None:
        """Adds what has been added since the last time to the numbers that all processes share."""
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
        """The numbers of a series: the end of each one's name, its own label if any, its value."""
        if self._kind == "counter":
            yield "_total", {}, total
        elif self._kind == "summary":
            yield "_count", {}, counts[-1]
            yield "_sum", {}, total
        else:
            for bound, count in zip(self._bounds, counts, strict=True):
                yield "_bucket", {"le": _bound_label(bound)}, count
            yield "_sum", {}, total


def _bound_label(bound: float) -> str:
    return str(floatToGoString(bound))  # type: ignore[no-untyped-call]


class _Series:
    """The numbers under one set of labels; ``created`` is when it began, in seconds since 1970."""

    __slots__ = ("counts", "created", "sum")

    def __init__(self, buckets: int) -> None:
        self.counts = [0] * buckets
        self.created = time.time()
        self.sum = 0.0
