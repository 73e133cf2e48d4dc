"""Whether an upstream that keeps failing is asked again, and when."""

import time
from collections.abc import Callable
from typing import Literal

State = Literal["closed", "open", "half_open"]

_FAILURES = 5
_SHORTEST, _LONGEST = 4.0, 16.0


class Breaker:
    """One model of an upstream, judged by how its calls ended. ``clock`` tells seconds, and only rises.

    ``closed``: calls pass; five failures in a row open it. ``open``: none pass. ``half_open``: the pause is
    over, and one call every four seconds passes as a probe. A probe that begins to answer closes it on
    probation: one more failure opens it again. Pauses grow from 4 to 16 seconds while probes fail, so a model
    that is well again is found out within 30 seconds. ``tell`` is called with true when it opens, and with
    false once an answer has come to its end again.
    """

    __slots__ = ("_clock", "_failures", "_pause", "_probe", "_tell", "_told", "_until")

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, tell: Callable[[bool], None] = lambda _: None
    ) -> None:
        self._clock = clock
        self._tell = tell
        self._told = False
        self._failures = 0
        self._pause = _SHORTEST
        self._until: float | None = None
        self._probe = 0.0

    @property
    def state(self) -> State:
        """How it stands."""
        if self._until is None:
            return "closed"
        return "open" if self._clock() < self._until else "half_open"

    def admit(self) -> bool:
        """Whether a call may pass; whoever is let through a half-open one is its probe."""
        if self._until is None:
            return True
        now = self._clock()
        if now < max(self._until, self._probe):
            return False
        self._probe = now + _SHORTEST
        return True

    def begun(self) -> None:
        """A call's answer has begun."""
        if self._until is not None:
            self._until = None
            self._failures = _FAILURES - 1

    def succeeded(self) -> None:
        """A call's answer has come to its end; nothing follows from one that began before it opened."""
        if self._until is None:
            self._failures = 0
            self._pause = _SHORTEST
            self._note(failing=False)

    def failed(self) -> None:
        """A call failed; nothing follows from one that began before it opened."""
        if self.state == "open":
            return
        self._failures += 1
        if self._failures >= _FAILURES:
            self._until = self._clock() + self._pause
            self._pause = min(2 * self._pause, _LONGEST)
            self._note(failing=True)

    def _note(self, *, failing: bool) -> None:
        if failing != self._told:
            self._told = failing
            self._tell(failing)
