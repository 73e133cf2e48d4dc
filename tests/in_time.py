"""How long an asynchronous test may take."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Final

import pytest

MINUTE: Final = 60.0


def time_of(test: pytest.Item) -> float:
    """The seconds that a test has: what its ``timeout`` mark gives it, a minute without one."""
    mark = test.get_closest_marker("timeout")
    return float(mark.args[0]) if mark else MINUTE


@contextlib.contextmanager
def in_time(seconds: float) -> Iterator[None]:
    """Cancels the current task, and says why, where it is not left in time.

    On uvloop nothing else does: the alarm of pytest-timeout raises where nobody sees it.
    """
    task = asyncio.current_task()
    assert task is not None
    why = f"the test took more than {seconds:g} s"
    bell = asyncio.get_running_loop().call_later(seconds, task.cancel, why)
    try:
        yield
    finally:
        bell.cancel()
