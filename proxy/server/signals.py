"""Signals, blocked until the server can handle them: unhandled, each would end the process."""

import signal
from collections.abc import Iterable
from typing import Final

SIGNALS: Final = frozenset(
    sign
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGCHLD", "SIGALRM")
    if (sign := getattr(signal, name, None)) is not None
)
"""The signals that a server handles."""
RELOAD: Final = SIGNALS & {getattr(signal, "SIGHUP", None)}
"""The signal that reloads the configuration; not every system has it."""


def block(signs: Iterable[int] = SIGNALS) -> None:
    """Makes signals wait, in this process, in those that it forks, and in threads that it starts."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, signs)


def unblock() -> None:
    """Delivers the signals that have waited, once of each kind."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
