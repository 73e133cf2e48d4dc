"""Blocks signals until the server can handle them; before that, each would end the process."""

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
"""The signal that reloads the configuration; empty on systems without it."""


def block(signs: Iterable[int] = SIGNALS) -> None:
    """Blocks signals in this process, in processes that it forks, and in threads that it starts."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, signs)


def unblock() -> None:
    """Unblocks the signals, and delivers those that waited, each kind once."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
