"""Whoever was let go of lately: turns of theirs that were under way by then are kept nowhere."""

import time
from collections.abc import Iterable
from typing import Final

import msgspec

_MOST: Final = 1000
# Longer than a turn takes, and no longer than a clock that was set back may mislead.
_FOR: Final = 900.0


class _Letting(msgspec.Struct, frozen=True):
    """``at`` is in seconds since 1970, and ``noted`` by ``time.monotonic``."""

    at: float
    noted: float


class Gone:
    """Sessions and persons of tenants, a thousand at the most, each for a quarter of an hour."""

    def __init__(self) -> None:
        self._lettings: dict[tuple[str, str | None, str | None], _Letting] = {}

    def __bool__(self) -> bool:
        """Whether anybody was let go of."""
        return bool(self._lettings)

    def add(self, tenant: str, *, session: str | None, user: str | None) -> None:
        """A session, or a person, is let go of now."""
        whose = tenant, session if user is None else None, user
        self._lettings.pop(whose, None)
        self._lettings[whose] = _Letting(time.time(), time.monotonic())
        while len(self._lettings) > _MOST:
            del self._lettings[next(iter(self._lettings))]

    def covers(self, tenant: str, session: str | None, persons: Iterable[str | None], arrived: float) -> bool:
        """Whether a turn that ``arrived`` then, in seconds since 1970, was under way."""
        since = time.monotonic() - _FOR
        found = [self._lettings.get((tenant, session, None))] if session is not None else []
        found += [self._lettings.get((tenant, None, name)) for name in persons if name is not None]
        return any(one is not None and arrived <= one.at and one.noted > since for one in found)
