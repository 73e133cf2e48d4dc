"""What the interpreter and its allocator are told before callers come."""

import ctypes
import gc
import sys
from typing import Final

# Looking at few values at a time keeps nobody waiting; the program itself need not be looked at again.
_COLLECT_AFTER: Final = (2_000, 25, 100)
# Callers wait on the loop: threads that write to memory or to the log give way to it after so many seconds.
_SWITCH_AFTER: Final = 0.0005
_ARENA_MAX: Final = -8  # as glibc's malloc.h has it


def prepare() -> None:
    """Makes the process ready to serve; what has been loaded so far stays for good."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)
    sys.setswitchinterval(_SWITCH_AFTER)
    _share_one_heap()


def _share_one_heap() -> None:
    """Lets all threads take memory from one heap, where the C library is glibc.

    It gives each thread one of its own, whose gaps no other can fill. Ours take turns anyway.
    """
    if sys.platform == "linux" and (tell := getattr(ctypes.CDLL(None), "mallopt", None)):
        tell(_ARENA_MAX, 1)
