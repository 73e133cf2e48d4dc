"""What the interpreter is told before callers come."""

import gc
import sys
from typing import Final

# Looking at few values at a time keeps nobody waiting; the program itself need not be looked at again.
_COLLECT_AFTER: Final = (2_000, 25, 100)
# Callers wait on the loop: threads that write to memory or to the log give way to it after so many seconds.
_SWITCH_AFTER: Final = 0.0005


def prepare() -> None:
    """Makes the process ready to serve; what has been loaded so far stays for good."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)
    sys.setswitchinterval(_SWITCH_AFTER)
