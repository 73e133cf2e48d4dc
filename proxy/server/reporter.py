"""Who is told of turns: metrics, the log, the feed, traces; all a moment later, when nobody waits."""

import asyncio
import logging
import time
from collections.abc import Callable

from proxy.errors import FilterFailed, Forbidden, TurnkeeperError, Unauthorized
from proxy.observe import access
from proxy.observe.access import RefusalLog, log_turn
from proxy.observe.metrics import Metrics
from proxy.observe.observation import Observation, TurnReport
from proxy.runtime import Runtime
from proxy.traces import Traces

# One wake of the log's thread, and one turn of the loop, for all that ended meanwhile.
_A_MOMENT = 0.05
_log = logging.getLogger("turnkeeper")


class TurnReporter:
    """Takes note of turns as they begin to answer and end; ``settle`` tells all that has ended.

    ``others`` are the other processes of a port, where there are any; somebody looks on there until
    ``watched_until``, by ``time.monotonic``.
    """

    def __init__(self, metrics: Metrics, traces: Traces, runtime: Callable[[], Runtime]) -> None:
        self.broadcast: Callable[[TurnReport], None] | None = None
        self.watched_until = 0.0
        self._metrics = metrics
        self._traces = traces
        self._parts = runtime
        self._ended: list[Observation] = []
        self._due: asyncio.TimerHandle | None = None
        self._refusals = RefusalLog()
        traces.before_reading(self.flush)

    def observe(self, watch: Observation) -> None:
        """A turn has begun to answer, which those who look on are told at once, or has ended."""
        if watch.outcome is None:
            if self._traces.feed.has_subscribers or self.watched_until > time.monotonic():
                self._show(watch.report())
            return
        self._ended.append(watch)
        if self._due is None:
            self._due = asyncio.get_running_loop().call_later(_A_MOMENT, self.flush)

    def flush(self) -> None:
        """Everybody knows of what has ended so far."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        ended, self._ended = self._ended, []
        for watch in ended:
            self._tell(watch)

    def report_error(self, error: TurnkeeperError) -> None:
        """The log tells of an error that is no turn's alone."""
        if isinstance(error, FilterFailed):
            _log.error("%s", error.message)
        elif isinstance(error, (Forbidden, Unauthorized)):
            self._refusals.add(error.code or "forbidden")

    def close(self) -> None:
        """Nothing is told any more; all that there is to tell has been."""
        self.flush()
        self._refusals.flush()

    def receive(self, account: TurnReport) -> None:
        """A turn that another process tells of."""
        self._traces.publish(account)
        if account.outcome is not None:
            self._traces.hour.add(time.time(), account)

    def _show(self, account: TurnReport) -> None:
        self._traces.publish(account)
        if self.broadcast:
            self.broadcast(account)

    def _tell(self, watch: Observation) -> None:
        runtime, account = self._parts(), watch.report()
        self._metrics.count_turn(account)
        self._traces.add(account, watch)
        self._show(account)
        if watch.trace_context and runtime.tracing:
            runtime.tracing.add(account, watch.trace_context)
        log_turn(account, watch.reason, access.transcript_fields(watch) if runtime.log_content else {})
