"""Facts that were looked up lately, for as long as it is sure that the file still says the same."""

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from proxy.memory.archive.archive import Fact
from proxy.memory.stores.sqlite_file import Elsewhere
from proxy.memory.stores.store import Owner

_MOST: Final = 32
_LASTING: Final = 60.0


class _Looked(NamedTuple):
    facts: list[Fact]
    elsewhere: int
    at: float

    def is_good(self, count: int) -> bool:
        return self.elsewhere == count and time.monotonic() - self.at < _LASTING


class Latest:
    """The facts of the few persons who were asked for last, for a minute at the most."""

    def __init__(self, elsewhere: Elsewhere | None = None) -> None:
        self._elsewhere = elsewhere
        self._looked: dict[Owner, _Looked] = {}

    def of(self, person: Owner, look: Callable[[], list[Fact] | None], *, now: float) -> list[Fact] | None:
        """What a look at the file finds, or found when it said the same; ``None`` where it cannot be read."""
        count = self._elsewhere.unchanged() if self._elsewhere else None
        if count is None:
            return look()
        looked = self._looked.get(person)
        if looked is None or not looked.is_good(count):
            return self._kept(person, look(), count)
        return [fact for fact in looked.facts if fact.expires is None or fact.expires > now]

    def clear(self) -> None:
        """To be told when facts have been written."""
        self._looked.clear()

    def _kept(self, person: Owner, facts: list[Fact] | None, count: int) -> list[Fact] | None:
        self._looked.pop(person, None)
        if facts is not None:
            self._looked[person] = _Looked(facts, count, time.monotonic())
            if len(self._looked) > _MOST:
                del self._looked[next(iter(self._looked))]
        return facts
