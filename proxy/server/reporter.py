"""Reports turns to the metrics, the log, the feed and the traces, a moment after they have ended."""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from proxy.errors import FilterFailed, Forbidden, TurnkeeperError, Unauthorized
from proxy.observe.log import MinuteLog, log_turn
from proxy.observe.metrics import Metrics
from proxy.observe.observation import NO_SESSION, SESSION_ADVICE, Observation, TurnReport
from proxy.runtime import Runtime
from proxy.traces import Traces

# In seconds. Reporting many turns at once finds code and data in the processor's caches, and wakes the log's
# thread only once.
_DELAY: Final = 0.25
_MANY: Final = 16
"""This many turns are reported without delay, since they occupy much memory."""
_SLICE: Final = 0.0008
"""How many seconds turns are reported at a time; with the last turn it is about a millisecond."""
_SHARE: Final = 16
"""In each round at least a sixteenth of the waiting turns is reported: on a full core no more wait than
sixteen times as many as end in a round."""
_log = logging.getLogger("turnkeeper")


class TurnReporter:
    """Observes turns when they are sent on, begin their answer and end, and reports those that have ended.

    ``broadcast`` sends the report that a function returns to the other processes, if there are any. One of
    them has a reader of the feed until ``watched_until``, by ``time.monotonic``. ``runtime`` is the one for
    new calls.
    """

    def __init__(self, metrics: Metrics, traces: Traces, runtime: Runtime) -> None:
        self.broadcast: Callable[[Callable[[], TurnReport]], None] | None = None
        self.watched_until = 0.0
        self.runtime = runtime
        self._metrics = metrics
        self._traces = traces
        self._ended: deque[Observation] = deque()
        self._due: asyncio.Handle | None = None
        self._refusals = MinuteLog("requests refused", "code")
        self._without_session = MinuteLog(SESSION_ADVICE, "tenant")
        traces.before_reading(self.flush)

    def observe(self, observation: Observation) -> None:
        """Publishes an active turn if anything reads the feed; collects one that has ended."""
        if observation.report.outcome is None:
            if self._traces.feed.subscribers or self.watched_until > time.monotonic():
                report = observation.progress(with_excerpt=self._traces.retention.with_content)
                self._traces.publish(report)
                if self.broadcast:
                    self.broadcast(lambda: report)
            return
        self._ended.append(observation)
        if self._due is None:
            self._due = asyncio.get_running_loop().call_later(_DELAY, self._report_some)
        elif len(self._ended) == _MANY:
            self._due.cancel()
            self._due = asyncio.get_running_loop().call_soon(self._report_some)

    def flush(self) -> None:
        """Reports all turns that have ended so far."""
        if self._due is not None:
            self._due.cancel()
        self._report(math.inf)

    def _report_some(self) -> None:
        self._report(_SLICE)

    def _report(self, seconds: float) -> None:
        """Reports ended turns in order for this many seconds, and a sixteenth of them at least.

        The loop's next round reports the rest.
        """
        self._due = None
        may_wait = len(self._ended) - len(self._ended) // _SHARE
        runtime, with_excerpt = self.runtime, self._traces.retention.with_content
        until = time.perf_counter() + seconds
        while self._ended:
            observation = self._ended.popleft()
            report = observation.complete()
            self._metrics.count_turn(report)
            self._traces.add(report, observation)
            self._traces.publish(report)
            if self.broadcast:
                self.broadcast(partial(_complete, report, observation if with_excerpt else None))
            if observation.trace_context and runtime.tracing:
                runtime.tracing.add(report, observation.trace_context)
            log_turn(report, observation, with_text=runtime.log_content)
            if NO_SESSION in report.degraded:
                self._without_session.add(report.tenant)
            if time.perf_counter() > until and len(self._ended) <= may_wait:
                break
        if self._ended:
            self._due = asyncio.get_running_loop().call_soon(self._report_some)
        else:
            self._metrics.share()

    def report_error(self, error: TurnkeeperError) -> None:
        """Logs a failed filter, and counts a refused key for the log."""
        if isinstance(error, FilterFailed):
            _log.error("%s", error.message)
        elif isinstance(error, (Forbidden, Unauthorized)):
            self._refusals.add(error.code or "forbidden")

    def receive(self, report: TurnReport) -> None:
        """Publishes a turn that another process has reported."""
        self._traces.publish(report)
        if report.outcome is not None:
            self._traces.hour.add(time.time(), report)

    def close(self) -> None:
        """Reports all ended turns and counted refusals."""
        self.flush()
        self._refusals.flush()
        self._without_session.flush()


def _complete(report: TurnReport, observation: Observation | None) -> TurnReport:
    """Returns the report for other processes, with its excerpt if that may be shown."""
    return msgspec.structs.replace(report, excerpt=observation.excerpt) if observation else report
