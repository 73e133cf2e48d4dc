"""Waiting for what others do in their own time."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_PAUSE = 0.01


def until(condition: Callable[[], object], seconds: float = 30) -> bool:
    """Whether it comes true in time."""
    return bool(_last(condition, seconds))


def awaited(found: Callable[[], T], seconds: float = 30) -> T:
    """Returns the result once it is true; fails if that takes longer."""
    last = _last(found, seconds)
    assert last, f"after {seconds:g} s: {last!r}"
    return last


def _last(found: Callable[[], T], seconds: float) -> T:
    end = time.monotonic() + seconds
    while not (last := found()) and time.monotonic() < end:
        time.sleep(_PAUSE)
    return last
