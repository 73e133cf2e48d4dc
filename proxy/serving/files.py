"""How many files, and so connections, this process may have open at once."""

import contextlib
import sys
from typing import Final

if sys.platform != "win32":
    import resource

# More than any one process can serve; some systems call infinite what they do not give.
_MOST: Final = 65_536


def allow() -> None:
    """As many as the system lets this program ask for; by default most give it 1024, and a call takes two."""
    if sys.platform == "win32":
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(ValueError, OSError):  # the system gives less than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
