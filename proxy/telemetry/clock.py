"""How long the stages of a request took, for the ``Server-Timing`` header (W3C Server Timing)."""

import time

_WHOLE = "request"


class Clock:
    """One stage at a time, in seconds; a request that has none is one itself.

    ``began`` is when the request arrived, and ``marks`` when each stage began, by ``time.perf_counter``.
    """

    def __init__(self) -> None:
        self.stages: list[tuple[str, float]] = []
        self.marks: list[tuple[str, float]] = []
        self._stage: str | None = None
        self.began = self._since = time.perf_counter()

    def begin(self, stage: str) -> None:
        """The stage under way ends; this one begins."""
        now = time.perf_counter()
        if self._stage is not None:
            self.stages.append((self._stage, now - self._since))
        self._stage, self._since = stage, now
        self.mark(stage, now)

    def mark(self, stage: str, at: float | None = None) -> None:
        """A stage begins that is reported as a part of the one under way."""
        self.marks.append((stage, at or time.perf_counter()))

    def report(self) -> str:
        """The value of the header, in milliseconds; the stage under way ends here."""
        now = time.perf_counter()
        self.stages.append((self._stage or _WHOLE, now - self._since))
        self._since = now
        return ", ".join([f"{stage};dur={seconds * 1000:.2f}" for stage, seconds in self.stages])

    def passed(self) -> float:
        """Seconds since the request arrived."""
        return time.perf_counter() - self.began
