"""Failures of background jobs: a back-off for each session, and a circuit breaker for each job."""

import asyncio
import logging
from collections.abc import Hashable
from typing import Final

from proxy.circuit import Backoff
from proxy.errors import UpstreamError
from proxy.memory.errors import NoModel, StoreError, SummaryFailed, UnusableAnswer
from proxy.memory.tasks import wait_for_event
from proxy.upstream.attempt import retry_policy

_REPEATED: Final = 3
_SESSION: Final = Backoff(1.0, 300.0)
_JOB: Final = Backoff(5.0, 300.0)
# Seconds by which sessions that have failed wait longer than others.
_PRECEDENCE: Final = 0.5
# The settings under memory that have a job's model, if they are not named like the job.
_SETTINGS: Final = {"calls": "summaries"}
_SESSIONS_LOGGED_EVERY: Final = 60.0
# Messages of other exceptions may contain words of a caller.
_LOGGABLE: Final = (UpstreamError, StoreError, SummaryFailed, UnusableAnswer)
_log = logging.getLogger("turnkeeper")


class SessionFailures:
    """Counts failures in a row of one job on one session; ``unusable`` are those with an unusable answer.

    ``reason`` is a description of the last one for the log, and ``retry_after`` the pause in seconds that its
    model asked for.
    """

    def __init__(self) -> None:
        self.count = self.unusable = 0
        self.reason = ""
        self.retry_after = 0.0

    def add(self, error: Exception) -> None:
        """Counts a failure."""
        self.count += 1
        self.unusable += isinstance(error, UnusableAnswer)
        self.reason = str(error) if isinstance(error, _LOGGABLE) else type(error).__name__
        cause = error if isinstance(error, UpstreamError) else error.__cause__
        self.retry_after = retry_policy(cause).delay if isinstance(cause, UpstreamError) else 0.0

    @property
    def repeated(self) -> bool:
        """Whether at least three tries in a row failed."""
        return self.count >= _REPEATED

    @property
    def pause(self) -> float:
        """The seconds until the next try."""
        return _SESSION.pause(self.count, retry_after=self.retry_after)


class JobCircuit:
    """The circuit breaker of one job.

    After three failures in a row the job counts as failing, which is logged once. If these are of several
    sessions, or three of them are unusable answers, the circuit opens: sessions wait, and one at a time is
    admitted as a probe, after pauses of 5 seconds to 5 minutes, until one succeeds.
    """

    def __init__(self, job: str = "") -> None:
        self.job = job
        self._failures = self._unusable = self._probes = 0
        self._sessions: set[Hashable] = set()
        self._until = self._silent_until = 0.0
        self._probe_due, self._works = asyncio.Event(), asyncio.Event()

    @property
    def failing(self) -> bool:
        """Whether at least three tries in a row failed, of any session."""
        return self._failures >= _REPEATED

    @property
    def open(self) -> bool:
        """Whether only probes are admitted."""
        return self.failing and (len(self._sessions) > 1 or self._unusable >= _REPEATED)

    @property
    def pause(self) -> float:
        """The seconds until the next probe is admitted; 0 while the circuit is closed."""
        return max(0.0, self._until - _now()) if self.open else 0.0

    async def admit(self, *, has_failed: bool = False) -> bool:
        """Waits while the circuit is open; returns whether this session is the next probe.

        A session that ``has_failed`` waits longer than others, as its content may be the cause.
        """
        while self.open and (pause := self._until + has_failed * _PRECEDENCE - _now()) > 0:
            await wait_for_event(self._probe_due, pause)
        if not self.open:
            return False
        self._probes += 1
        self._begin_pause()
        return True

    async def rest(self, seconds: float) -> None:
        """Waits for a number of seconds, or until the job succeeds again."""
        await wait_for_event(self._works, seconds)

    def return_probe(self) -> None:
        """Lets the next session probe at once, because this one did not use the model."""
        if self.open:
            self._probes -= 1
            self._until = 0.0
            self._probe_due.set()

    def note(self, error: Exception, session: Hashable, failures: SessionFailures) -> None:
        """Records a failure, the last one of ``failures``."""
        if isinstance(error, NoModel):
            return
        if concerns_model(error):
            self._unusable += isinstance(error, UnusableAnswer)
            self.failed(session, failures.reason, retry_after=failures.retry_after)
        if failures.count == _REPEATED and not self.failing and _now() >= self._silent_until:
            self._silent_until = _now() + _SESSIONS_LOGGED_EVERY
            _log.warning("%s: a single session fails (%s); the others continue", self.job, failures.reason)

    def failed(self, session: Hashable, reason: str, *, retry_after: float = 0.0) -> None:
        """Records a failure of the model, which asks for a pause of ``retry_after`` seconds."""
        self._failures += 1
        if len(self._sessions) <= 1:
            self._sessions.add(session)
        if self.open:
            self._begin_pause(retry_after)
        if self._failures == _REPEATED:
            what = "tries in a row have failed"
            advice = ""
            if self._unusable == _REPEATED:
                what = "answers in a row could not be used"
                setting = _SETTINGS.get(self.job, self.job)
                advice = f"; set memory.{setting}.model (SUMMARY_MODEL) to a model that can do this"
            _log.warning(
                "%s: %d %s (%s)%s; from now on it is tried at intervals of up to %d minutes, and this is said"
                " once",
                *(self.job, _REPEATED, what, reason, advice, _JOB.longest // 60),
            )

    def succeeded(self) -> None:
        """Records a success, which closes the circuit."""
        if self.failing:
            _log.info("%s: it works again", self.job)
            self._works.set()
            self._probe_due.set()
            self._works = asyncio.Event()
        self._failures = self._unusable = self._probes = 0
        self._sessions.clear()

    def _begin_pause(self, retry_after: float = 0.0) -> None:
        self._until = _now() + _JOB.pause(self._probes + 1, retry_after=retry_after)
        self._probe_due.clear()


def concerns_model(error: Exception) -> bool:
    """Whether an exception is caused by a model, rather than by a store or this program."""
    model_errors = (UpstreamError, SummaryFailed, UnusableAnswer)
    return isinstance(error, model_errors) and not isinstance(error, NoModel)


def _now() -> float:
    return asyncio.get_running_loop().time()
