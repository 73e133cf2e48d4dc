"""How many files, and so connections, this process may have open at once."""

import asyncio
import contextlib
import logging
import math
import os
import sys
from typing import Final

if sys.platform != "win32":
    import resource

# More than any one process can serve; some systems call infinite what they do not give.
_MOST: Final = 65_536
_NEARLY_ALL: Final = 0.9
_EVERY: Final = 1.0
_QUIET: Final = 600.0
_log: Final = logging.getLogger("turnkeeper")


def allow() -> None:
    """As many as the system lets this program ask for; by default most give it 1024, and a call takes two."""
    if sys.platform == "win32":
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(ValueError, OSError):  # the system gives less than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


async def watch() -> None:
    """Says, every ten minutes at the most, that hardly any are left."""
    while sys.platform != "win32":
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        are_few = most != resource.RLIM_INFINITY and _lowest_free() >= _NEARLY_ALL * most
        if are_few:
            _log.warning(
                "Nearly all of the %d files that this server may have open are: once all are, callers are"
                " closed off without an answer. Let it have more of them (ulimit -n), or serve with more"
                " processes",
                most,
            )
        await asyncio.sleep(_QUIET if are_few else _EVERY)


def _lowest_free() -> float:
    """The number that the next file gets; without one, infinity."""
    try:
        number = os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return math.inf
    os.close(number)
    return number
