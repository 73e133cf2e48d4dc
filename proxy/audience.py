"""Who is told of turns: metrics, the log, the feed, traces; all a moment later, when nobody waits."""

import asyncio
from collections.abc import Callable

from proxy import words
from proxy.access import told
from proxy.era import Parts
from proxy.feed import Feed
from proxy.metrics import Metrics
from proxy.traces import Traces
from proxy.watch import Watch

# One wake of the log's thread, and one turn of the loop, for all that ended meanwhile.
_A_MOMENT = 0.05


class Audience:
    """Takes note of turns as they begin to answer and end; ``settle`` tells all that has ended."""

    def __init__(self, metrics: Metrics, traces: Traces, parts: Callable[[], Parts]) -> None:
        self.feed = Feed()
        self._metrics = metrics
        self._traces = traces
        self._parts = parts
        self._ended: list[Watch] = []
        self._due: asyncio.TimerHandle | None = None
        traces.filled_by(self.settle)

    def note(self, watch: Watch) -> None:
        """A turn has begun to answer, which those who look on are told at once, or has ended."""
        if watch.outcome is None:
            if self.feed.watched:
                self.feed.publish(watch.account())
            return
        self._ended.append(watch)
        if self._due is None:
            self._due = asyncio.get_running_loop().call_later(_A_MOMENT, self.settle)

    def settle(self) -> None:
        """Everybody knows of what has ended so far."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        ended, self._ended = self._ended, []
        for watch in ended:
            self._tell(watch)

    def _tell(self, watch: Watch) -> None:
        parts, account = self._parts(), watch.account()
        self._metrics.turn(account)
        self._traces.put(account, watch)
        self.feed.publish(account)
        if watch.lineage and parts.tracing:
            parts.tracing.tell(account, watch.lineage)
        told(account, words.of(watch) if parts.log_content else {})
