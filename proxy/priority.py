"""What runs beside the loop gives way to it."""

import os
import sys
import threading
from contextlib import suppress
from typing import Final

_BEHIND: Final = 5


def give_way() -> None:
    """Puts the calling thread behind others, where threads have a priority of their own.

    On one core the loop would else wait for the end of a thread's time slice, and all callers with it.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _BEHIND)
