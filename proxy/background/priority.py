"""How a background process shares the machine with processes that answer calls."""

import contextlib
import os
from typing import Final

_NICE: Final = 15


def give_way() -> None:
    """Has this process, and the threads that it starts, run when the servers leave time for it."""
    if hasattr(os, "nice"):
        os.nice(_NICE)
    if hasattr(os, "SCHED_BATCH"):
        with contextlib.suppress(OSError):  # a container may not allow it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
