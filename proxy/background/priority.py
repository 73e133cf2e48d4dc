"""Lowers the priority of a background process below that of servers."""

import contextlib
import os
from typing import Final

_NICE: Final = 15


def give_way() -> None:
    """Lowers the priority of this process and of the threads that it starts."""
    if hasattr(os, "nice"):
        os.nice(_NICE)
    if hasattr(os, "SCHED_BATCH"):
        with contextlib.suppress(OSError):  # a container may not allow it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
