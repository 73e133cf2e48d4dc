"""A memory that does not answer those who look through it."""

import logging

_log = logging.getLogger("turnkeeper")


class Outage:
    """It is said when it begins, and when it is over."""

    def __init__(self) -> None:
        self._on = False

    def begun(self, fault: Exception) -> None:
        """Memory did not answer."""
        if not self._on:
            _log.warning("Memory does not answer: %s", fault)
        self._on = True

    def over(self) -> None:
        """Memory has answered."""
        if self._on:
            _log.warning("Memory answers again")
        self._on = False
