"""What Prometheus reads: counted where a turn has ended, or when it is asked for."""

from collections.abc import Callable
from typing import Any, Final

import msgspec
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics import MetricWrapperBase

from proxy.telemetry.account import Account
from proxy.telemetry.families import Families
from proxy.telemetry.standing import BREAKER_STATES, Gauges, Standing
from proxy.telemetry.tally import Tally

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_MOST_MODELS: Final = 50
_MOST_NOTED: Final = 100
_CHAT: Final = "chat"


class Metrics:
    """One server's numbers, in a registry of its own.

    No label is the caller's to choose: of models, which a call may name, the first 50 count under their own
    names and the rest as ``other``. ``shared`` adds up what all processes count, once ``tally.share`` was
    called.
    """

    def __init__(self, *, shared: bool = False) -> None:
        self._registry = CollectorRegistry()
        self._families = Families.declare(self._registry)
        self._children: dict[tuple[MetricWrapperBase, tuple[str, ...]], Any] = {}
        self._models: set[str] = set()
        self._process = ProcessCollector(registry=None if shared else self._registry)
        self._shared = shared
        self._tally: Tally | None = None
        self._operations: list[tuple[str, str, float]] = []

    def gauge(self, standing: Callable[[], Standing]) -> None:
        """Asks for a standing whenever somebody reads."""
        gauges = Gauges(lambda: self._named(standing()))
        if self._shared:
            self._tally = Tally(gauges, self._process)
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

    def turn(self, account: Account) -> None:
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

    def memory(self, operation: str, outcome: str, seconds: float) -> None:
        """Notes one operation of a store, which callers may wait for: it is counted when a turn has ended."""
        self._operations.append((operation, outcome, seconds))
        if len(self._operations) >= _MOST_NOTED:
            self._settle()

    def refused(self, limit: str) -> None:
        """Counts a request over a rate limit."""
        self._child(self._families.refused, limit).inc()

    def _settle(self) -> None:
        noted, self._operations = self._operations, []
        for operation, outcome, seconds in noted:
            self._child(self._families.memory, operation, outcome).observe(seconds)

    def _own(self, account: Account) -> None:
        """What a turn took of ours, once it has come as far as the model."""
        of = self._families
        self._child(of.overhead, account.pipeline).observe(account.overhead)
        for stage, seconds in account.stages:
            self._child(of.stage, account.pipeline, stage).observe(seconds)
        for module, seconds in account.filters:
            self._child(of.filter, module.rpartition(".")[2]).observe(seconds)

    def _asked(self, account: Account, upstream: str) -> None:
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

    def _struggled(self, account: Account, upstream: str) -> None:
        """What it took until an upstream began to answer."""
        of = self._families
        for failed in account.tries.failed:
            self._child(of.failed, *failed).inc()
        for again in account.tries.again:
            self._child(of.again, again).inc()
        if account.fell_back:
            self._child(of.fallbacks, account.pipeline, upstream).inc()

    def _named(self, standing: Standing) -> Standing:
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
