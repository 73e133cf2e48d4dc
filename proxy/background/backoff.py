"""A pause for one kind of work while what it needs is away: then one try at a time, ever later."""

import asyncio
import logging
from collections.abc import Hashable
from contextlib import suppress
from typing import Final

from proxy.errors import UpstreamError
from proxy.memory.errors import StoreError, SummaryFailed, UnusableAnswer
from proxy.upstream.attempt import retry_policy

_PATIENCE: Final = 3
_DOUBLINGS: Final = 20
_SAID_EVERY: Final = 60.0
_log = logging.getLogger("turnkeeper")
_MANY: Final = 3
_SHORTEST, _LONGEST = 1.0, 300.0
# Others' own words may quote a caller.
_PLAIN: Final = (UpstreamError, StoreError, SummaryFailed, UnusableAnswer)


_SHORTEST_PAUSE, _LONGEST_PAUSE = 5.0, 300.0


class Lull:
    """Counts failures in a row, of ``work``.

    After three, it is said once that the work is failing. Unless all of them are one and the same session's,
    whose own fault it may be, a lull begins: one at a time tries, after pauses of 5 seconds growing to 5
    minutes, until one succeeds.
    """

    def __init__(self, work: str = "") -> None:
        self.work = work
        self._failures = self._pauses = 0
        self._who: set[Hashable] = set()
        self._until = self._silent_until = 0.0
        self._free, self._works = asyncio.Event(), asyncio.Event()

    @property
    def failing(self) -> bool:
        """Whether nothing but failures is known of late."""
        return self._failures >= _PATIENCE

    @property
    def on(self) -> bool:
        """Whether one tries for all."""
        return self.failing and len(self._who) > 1

    async def over(self) -> bool:
        """Returns at once while all is well, else when it is this one's turn; whether he tries for all."""
        while self.on and (left := self._until - _now()) > 0:
            await _waited(self._free, left)
        if not self.on:
            return False
        self._pauses += 1
        self._begin_pause()
        return True

    async def rest(self, seconds: float) -> None:
        """Waits so long, or until it works again."""
        await _waited(self._works, seconds)

    def returned(self) -> None:
        """Who was to try for all found nothing to try: the next one may at once."""
        if self.on:
            self._pauses -= 1
            self._until = 0.0
            self._free.set()

    def failed(self, who: Hashable, fault: str, *, wanted: float = 0.0) -> None:
        """One more try has failed, and whose; its model asks to be left alone for ``wanted`` seconds."""
        self._failures += 1
        if len(self._who) <= 1:
            self._who.add(who)
        if self.on:
            self._begin_pause(wanted)
        if self._failures == _PATIENCE:
            _log.warning(
                "%s: %d tries in a row have failed (%s); from now on it is tried at intervals of up to %d"
                " minutes, and this is said once",
                *(self.work, _PATIENCE, fault, _LONGEST_PAUSE // 60),
            )

    def fails_alone(self, fault: str) -> None:
        """One session has failed often, and others need not: that is said once a minute at the most."""
        if not self.failing and _now() >= self._silent_until:
            self._silent_until = _now() + _SAID_EVERY
            _log.warning("%s: a session fails by itself (%s); it holds up no other", self.work, fault)

    def succeeded(self) -> None:
        """All is well again."""
        if self.failing:
            _log.info("%s: it works again", self.work)
            self._works.set()
            self._free.set()
            self._works = asyncio.Event()
        self._failures = self._pauses = 0
        self._who.clear()

    def _begin_pause(self, wanted: float = 0.0) -> None:
        self._until = _now() + max(self._pause, min(wanted, _LONGEST_PAUSE))
        self._free.clear()

    @property
    def _pause(self) -> float:
        return float(min(_LONGEST_PAUSE, _SHORTEST_PAUSE * 2 ** min(self._pauses, _DOUBLINGS)))


async def _waited(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


def _now() -> float:
    return asyncio.get_running_loop().time()


class Setbacks:
    """Failures in a row; in ``unusable`` of them a model answered.

    ``fault`` may be said of the last one, and for ``wanted`` seconds its model asks to be left alone.
    """

    def __init__(self) -> None:
        self.count = self.unusable = 0
        self.fault = ""
        self.wanted = 0.0

    def add(self, error: Exception) -> None:
        """Counts a failure."""
        self.count += 1
        self.unusable += isinstance(error, UnusableAnswer)
        self.wanted = _wanted(error)
        self.fault = str(error) if isinstance(error, _PLAIN) else type(error).__name__

    @property
    def have_become_many(self) -> bool:
        """Whether the last one made them many."""
        return self.count == _MANY

    @property
    def are_many(self) -> bool:
        """Whether it may take a while until it works."""
        return self.count >= _MANY

    @property
    def rest(self) -> float:
        """The seconds until it is tried again: one at first, or what is wanted, and five minutes at most."""
        return float(min(_LONGEST, max(self.wanted, _SHORTEST * 2 ** min(self.count - 1, _DOUBLINGS))))


def _wanted(error: BaseException) -> float:
    """For how long the model that was asked last wants to be left alone, in seconds."""
    told = error if isinstance(error, UpstreamError) else error.__cause__
    return retry_policy(told).delay if isinstance(told, UpstreamError) else 0.0
