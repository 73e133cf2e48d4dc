"""Signals, held back while there is nobody to act on them: unheard, each would end the process."""

import signal
from collections.abc import Iterable
from typing import Final

SIGNALS: Final = frozenset(
    sign
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGCHLD", "SIGALRM")
    if (sign := getattr(signal, name, None)) is not None
)
"""What a server waits for."""


AGAIN: Final = SIGNALS & {getattr(signal, "SIGHUP", None)}
"""What has a configuration read again; not every system knows it."""


def hold(signs: Iterable[int] = SIGNALS) -> None:
    """From now on they wait, here and in what is forked and in threads that are started."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, signs)


def release() -> None:
    """What has waited comes now, once of each kind."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
