"""Turns that wait because the store did not take them."""

import logging
from typing import Final

from proxy.memory.faults import StoreError, Unreadable
from proxy.memory.store import Key

_log: Final = logging.getLogger("turnkeeper")


class Arrears:
    """The sessions whose turns wait; the log tells when the store takes nothing, and when that is over.

    A session that nobody can read is at fault itself: it says nothing of the store, and may stay so for good.
    """

    def __init__(self) -> None:
        self._of_store: set[Key] = set()
        self._of_their_own: set[Key] = set()
        self._waited = self._lost = 0

    def __bool__(self) -> bool:
        return bool(self._of_store or self._of_their_own)

    def __contains__(self, key: Key) -> bool:
        return key in self._of_store or key in self._of_their_own

    def refused(self, key: Key, error: StoreError, turns: int) -> None:
        """So many turns of a session wait now, as the first of them was not taken."""
        if isinstance(error, Unreadable):
            self._faulty(key, error)
        elif key not in self._of_store:
            if not self._of_store:
                _log.warning("Memory cannot be written: %s", error)
            self._of_their_own.discard(key)
            self._of_store.add(key)
            self._waited += turns

    def joined(self, key: Key) -> None:
        """One more turn waits, if others of its session do."""
        self._waited += key in self._of_store

    def lost(self) -> None:
        """A turn found no room to wait."""
        self._lost += bool(self._of_store)

    def settled(self, key: Key) -> None:
        """The first turn of a session waits no more."""
        self._of_their_own.discard(key)
        if key in self._of_store:
            self._of_store.discard(key)
            self._told_if_over()

    def _faulty(self, key: Key, error: Unreadable) -> None:
        if not self._of_their_own:
            _log.warning("A session cannot be written: %s", error)
        self._of_their_own.add(key)
        if key in self._of_store:
            self._of_store.discard(key)
            self._told_if_over()

    def _told_if_over(self) -> None:
        if not self._of_store:
            _log.warning(
                "Memory is written again (turns that waited: %d, lost: %d)", self._waited, self._lost
            )
            self._waited = self._lost = 0
