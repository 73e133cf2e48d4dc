"""Circuit breaker, back-off and outage log, for services that fail."""

import logging
import random
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from math import inf, isfinite
from typing import Final, Literal

import msgspec

CircuitState = Literal["closed", "open", "half_open"]

_DOUBLINGS: Final = 60
_log: Final = logging.getLogger("turnkeeper")


class Backoff(msgspec.Struct, frozen=True):
    """Pauses between tries, in seconds: ``shortest`` at first, then doubled up to ``longest``.

    With ``jitter``, a pause is drawn at random from its upper part: 0.5 draws from its upper half.
    """

    shortest: float
    longest: float
    jitter: float = 0.0

    def pause(self, failures: int, *, retry_after: float = 0.0) -> float:
        """The pause in seconds after this number of consecutive failures, counted from 1.

        It is at least ``retry_after``, up to ``longest``.
        """
        pause = min(self.longest, self.shortest * 2.0 ** min(failures - 1, _DOUBLINGS))
        if self.jitter:
            pause = random.uniform(pause * (1 - self.jitter), pause)  # noqa: S311 - no secret
        return max(pause, min(retry_after, self.longest))


class CircuitBreaker:
    """Decides whether a service may be called, from the results of its recent calls.

    ``closed``: calls pass; ``threshold`` failures in a row open it. ``open``: no call passes for the pause
    that ``backoff`` gives; pauses grow while probes fail. ``half_open``: the pause is over, and one call per
    shortest pause passes as a probe. ``admit_last`` is for a service without an alternative: it admits probes
    earlier.

    An answer that begins closes the circuit on probation: the next failure opens it again, and a success ends
    the probation. ``on_change`` is called with true when the circuit opens, and with false at the first
    success after that. ``clock`` returns monotonic seconds. While it ``is_healthy``, it is closed, and no
    answer and no success changes anything.
    """

    __slots__ = (
        "_backoff", "_clock", "_failing", "_failing_since", "_failures", "_on_change", "_openings",
        "_probed_at", "_threshold", "_until", "is_healthy",
    )  # fmt: skip

    def __init__(
        self,
        backoff: Backoff,
        *,
        threshold: int,
        clock: Callable[[], float] = time.monotonic,
        on_change: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self._backoff = backoff
        self._threshold = threshold
        self._clock = clock
        self._on_change = on_change
        self.is_healthy = True
        self._failing = False
        self._failures = self._openings = 0
        self._until: float | None = None
        self._probed_at = self._failing_since = -inf

    @property
    def state(self) -> CircuitState:
        """The current state."""
        if self._until is None:
            return "closed"
        return "open" if self._clock() < self._until else "half_open"

    def admit(self) -> bool:
        """Whether a call may be made; an admitted call counts as a probe unless the circuit is closed."""
        if self._until is None:
            return True
        return self._admit_probe(max(self._until, self._probed_at + self._backoff.shortest))

    def admit_last(self, *, probe_every: float, grace: float = 0.0) -> bool:
        """Whether a call may be made that no other service can answer.

        All calls pass for ``grace`` seconds after the first of the consecutive failures; then one probe
        passes every ``probe_every`` seconds, even during the pause.
        """
        if self._until is None or self._clock() < self._failing_since + grace:
            return True
        return self._admit_probe(self._probed_at + probe_every)

    def _admit_probe(self, due: float) -> bool:
        if (now := self._clock()) < due:
            return False
        self._probed_at = now
        return True

    def record_answer(self) -> None:
        """Records that an answer has begun: an open circuit closes on probation."""
        if self._until is not None:
            self._until = None
            self._failures = self._threshold - 1

    def record_success(self) -> None:
        """Records a success; ignored while the circuit is open, since the call was made before that."""
        if self._until is None:
            self.is_healthy = True
            self._failures = self._openings = 0
            if self._failing:
                self._failing = False
                self._on_change(self._failing)

    def record_failure(self) -> None:
        """Records a failure; ignored while the circuit is open, since the call was made before that."""
        if self.state == "open":
            return
        now = self._clock()
        if not self._failures:
            self._failing_since = now
        self.is_healthy = False
        self._failures += 1
        if self._failures >= self._threshold:
            self._openings += 1
            self._probed_at = now
            self._until = now + self._backoff.pause(self._openings)
            if not self._failing:
                self._failing = True
                self._on_change(self._failing)


class Outage:
    """Logs a warning when a service begins to fail, and another one when it works again."""

    __slots__ = ("_begins", "_ends", "active")

    def __init__(self, begins: str, ends: str) -> None:
        """``begins`` and ``ends`` are format strings for the log."""
        self._begins = begins
        self._ends = ends
        self.active = False

    def begin(self, *values: object) -> None:
        """Records a failure; the first one is logged with ``begins`` and ``values``.

        An error must be passed as a string: a log record that is kept would keep the traceback's objects too.
        """
        if not self.active:
            _log.warning(self._begins, *values)
        self.active = True

    def end(self, *values: object) -> None:
        """Records a success; the first one after a failure is logged with ``ends`` and ``values``."""
        if self.active:
            _log.warning(self._ends, *values)
        self.active = False


def retry_after(headers: Mapping[str, str], now: float) -> float:
    """The seconds until a service may be called again, from its headers (RFC 9110, 10.2.3); 0 without one.

    ``now`` is in seconds since 1970. OpenAI's ``retry-after-ms`` is preferred to ``retry-after``. Header
    names are in lower case.
    """
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after", "")
    seconds = _number(value)
    if seconds is not None:
        return seconds
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - now)
    except (ValueError, OverflowError):
        return 0.0


def _number(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return max(0.0, number) if isfinite(number) else None
