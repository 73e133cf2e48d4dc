"""How often one piece of work has failed, and how long it rests before it is tried again."""

from typing import Final

from proxy.errors import UpstreamError
from proxy.memory.faults import StoreError, Unmade, Unusable
from proxy.routing.remedy import remedy

_MANY: Final = 3
_SHORTEST, _LONGEST = 1.0, 300.0
# Others' own words may quote a caller.
_PLAIN: Final = (UpstreamError, StoreError, Unmade, Unusable)
_DOUBLINGS: Final = 20


class Setbacks:
    """Failures in a row; in ``unusable`` of them a model answered.

    ``fault`` may be said of the last one, and for ``wanted`` seconds its model asks to be left alone.
    """

    def __init__(self) -> None:
        self.count = self.unusable = 0
        self.fault = ""
        self.wanted = 0.0

    def add(self, error: Exception) -> None:
        """Counts a failure."""
        self.count += 1
        self.unusable += isinstance(error, Unusable)
        self.wanted = _wanted(error)
        self.fault = str(error) if isinstance(error, _PLAIN) else type(error).__name__

    @property
    def have_become_many(self) -> bool:
        """Whether the last one made them many."""
        return self.count == _MANY

    @property
    def are_many(self) -> bool:
        """Whether it may take a while until it works."""
        return self.count >= _MANY

    @property
    def rest(self) -> float:
        """The seconds until it is tried again: one at first, or what is wanted, and five minutes at most."""
        return float(min(_LONGEST, max(self.wanted, _SHORTEST * 2 ** min(self.count - 1, _DOUBLINGS))))


def _wanted(error: BaseException) -> float:
    """For how long the model that was asked last wants to be left alone, in seconds."""
    told = error if isinstance(error, UpstreamError) else error.__cause__
    return remedy(told).after if isinstance(told, UpstreamError) else 0.0
