"""All that can go wrong in memory; no caller's answer is one of these, and HTTP has its own.

StoreError           the store cannot be reached, is too slow, full, read-only, closed, or none of ours
├── Deleted          the session was deleted meanwhile
├── Overgrown        one turn of the session has more messages than are held
├── Unreadable       the store answers, with what is of no use
└── Unread           somebody is forgotten but for sessions that cannot be read
Unasked              no model is named that could be asked
└── Unnamed
Unusable             a model answered, and nothing can be made of it
├── Useless
└── Unfound          it is no list of facts
Unmade               there is no summary
├── Unnamed          because no model could make one
└── Useless          because what a model wrote is none
Contended            others write the session all the time
"""

from collections.abc import Sequence
from typing import Final

_NAMED: Final = 10


class StoreError(Exception):
    """The store cannot be reached, is too slow, is full, is read-only, is closed or is not one of ours.

    After a write that was too slow nobody knows whether it happened: read again.
    """


class Deleted(StoreError):
    """The session was deleted after that had arrived which was to be written."""


class Overgrown(StoreError):
    """One turn of the session has more messages than are held, and no turn is cut."""

    def __init__(self, most: int) -> None:
        super().__init__(f"one turn of its session has more than {most:,} messages, and more are not held")


class Unreadable(StoreError):
    """The store answers, and what it holds there is of no use to whoever asks."""


class Unread(StoreError):
    """A person is forgotten but for sessions that cannot be read, though the store answers."""

    def __init__(self, sessions: Sequence[str]) -> None:
        self.sessions = tuple(sessions)
        more = len(sessions) - _NAMED
        named = ", ".join(sessions[:_NAMED]) + (f" and {more} more" if more > 0 else "")
        many = "1 session" if len(sessions) == 1 else f"{len(sessions)} sessions"
        super().__init__(f"{many} cannot be read and may hold words of theirs: {named}")


class Unasked(Exception):
    """No model is named that could be asked."""


class Unusable(Exception):
    """A model answered, and nothing can be made of it."""


class Unfound(Unusable):
    """A model's answer is no list of facts."""


class Unmade(Exception):
    """No model made a summary that can be used."""


class Unnamed(Unmade, Unasked):
    """There is no model that could make one."""


class Useless(Unmade, Unusable):
    """A model answered, and what it wrote is no summary."""


class Contended(Exception):
    """Others write the session all the time."""
