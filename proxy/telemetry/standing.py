"""How a server stands at one moment, as Prometheus asks for it."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

BREAKER_STATES: Final = ("closed", "half_open", "open")
"""From the best to the worst."""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """What is true now.

    ``breakers`` holds closed, half_open or open by upstream and model, and ``background`` whether a kind of
    work in the background fails.
    """

    in_flight: int = 0
    waiting: int = 0
    lost: int = 0
    failing: bool = False
    breakers: Mapping[tuple[str, str], str] = {}
    background: Mapping[str, bool] = {}


class Gauges(Collector):
    """A standing in Prometheus' words, taken whenever they are asked for."""

    def __init__(self, standing: Callable[[], Standing]) -> None:
        self._standing = standing

    def describe(self) -> list[Metric]:
        """Nothing in advance, so that registering asks nobody."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The standing now."""
        now = self._standing()
        yield GaugeMetricFamily("turnkeeper_turns_in_flight", "Turns being answered", now.in_flight)
        yield GaugeMetricFamily("turnkeeper_memory_queue_turns", "Turns yet to be written", now.waiting)
        yield GaugeMetricFamily("turnkeeper_memory_failing", "1 while memory takes no turns", now.failing)
        yield CounterMetricFamily("turnkeeper_lost_turns", "Turns that memory never got", now.lost)
        if now.background:
            yield _background(now.background)
        if now.breakers:
            yield _breakers(now.breakers)


def _background(failing: Mapping[str, bool]) -> Metric:
    family = GaugeMetricFamily(
        "turnkeeper_background_failing",
        "Processes in which this work in the background has had nothing but failures of late",
        labels=("work",),
    )
    for work, fails in failing.items():
        family.add_metric((work,), float(fails))
    return family


def _breakers(states: Mapping[tuple[str, str], str]) -> Metric:
    family = GaugeMetricFamily(
        "turnkeeper_breaker_state",
        "Processes in which the breaker of this upstream and model is in this state",
        labels=("upstream", "model", "state"),
    )
    for (upstream, model), state in states.items():
        for each in BREAKER_STATES:
            family.add_metric((upstream, model, each), float(each == state))
    return family
