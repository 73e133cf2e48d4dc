"""Sessions that nobody could look into."""

from collections.abc import Sequence
from typing import Final

from proxy.memory.store import StoreError

_NAMED: Final = 10


class Unread(StoreError):
    """A person is forgotten but for sessions that cannot be read, though the store answers."""

    def __init__(self, sessions: Sequence[str]) -> None:
        self.sessions = tuple(sessions)
        more = len(sessions) - _NAMED
        named = ", ".join(sessions[:_NAMED]) + (f" and {more} more" if more > 0 else "")
        many = "1 session" if len(sessions) == 1 else f"{len(sessions)} sessions"
        super().__init__(f"{many} cannot be read and may hold words of theirs: {named}")
