"""How long the stages of a turn took, for the ``Server-Timing`` header (W3C Server Timing)."""

import time


class Clock:
    """One stage at a time, in milliseconds."""

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self._since = time.perf_counter()
        self._ended: list[str] = []

    def begin(self, stage: str) -> None:
        """The stage under way ends; this one begins."""
        self._end()
        self._stage = stage

    def report(self) -> str:
        """The value of the header; the stage under way ends here."""
        self._end()
        return ", ".join(self._ended)

    def _end(self) -> None:
        now = time.perf_counter()
        self._ended.append(f"{self._stage};dur={(now - self._since) * 1000:.2f}")
        self._since = now
