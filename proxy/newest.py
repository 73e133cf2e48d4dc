"""A dictionary with a bounded number of entries."""

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Newest(dict[K, V]):
    """The ``most`` entries that were put last, the oldest first; one that is put again is the newest."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def put(self, key: K, value: V) -> None:
        """Adds an entry, and drops the oldest one beyond ``most``."""
        self.pop(key, None)
        self[key] = value
        if len(self) > self._most:
            del self[next(iter(self))]
