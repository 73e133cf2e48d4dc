"""Exceptions of memory; a client gets none of them as it is.

StoreError              the store cannot be used
├── SessionDeleted      the session was deleted meanwhile
├── WriteConflict       other writers win every time
├── TurnTooLong         one turn has more messages than a session holds
├── Unreadable          the store answers with data that cannot be decoded
└── UnreadableSessions  a user is erased except from sessions that cannot be read
NoModel                 no model is configured for the job
└── NoSummaryModel
UnusableAnswer          a model answered, and the answer cannot be used
├── InvalidFacts        it is no list of facts
└── InvalidSummary
SummaryFailed           there is no summary
├── NoSummaryModel      because no model could make one
└── InvalidSummary      because the model's answer is none
"""

from collections.abc import Sequence
from typing import Final

_MAX_NAMES: Final = 10
CANNOT_BE_READ: Final = (
    "What is stored here cannot be read, and will not be in a while: it is broken, a newer version wrote it,"
    " or the key that it was encrypted with is missing from 'memory.encryption'."
)
"""The message for a client where the store answers with data that cannot be decoded."""


class StoreError(Exception):
    """The store is unreachable, too slow, full, read-only, closed, or not one of ours.

    A write that was too slow may or may not have happened: read again.
    """


class SessionDeleted(StoreError):
    """The session was deleted after the arrival of what is to be written."""


class WriteConflict(StoreError):
    """Other writers of a session win every time."""

    def __init__(self) -> None:
        super().__init__("other requests are writing this session")


class TurnTooLong(StoreError):
    """One turn has more messages than a session holds, and turns are not cut."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"one turn of its session has more than {limit:,} messages, and more are not stored")


class Unreadable(StoreError):
    """The store answers, but its data cannot be decoded."""


class UnreadableSessions(StoreError):
    """A user is erased except from ``sessions`` that cannot be read."""

    def __init__(self, sessions: Sequence[str]) -> None:
        self.sessions = tuple(sessions)
        more = len(sessions) - _MAX_NAMES
        names = ", ".join(sessions[:_MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
        count = "1 session" if len(sessions) == 1 else f"{len(sessions)} sessions"
        super().__init__(f"{count} cannot be read and may contain the user's words: {names}")


class NoModel(Exception):
    """No model is configured for the job."""


class UnusableAnswer(Exception):
    """A model answered, and the answer cannot be used."""


class InvalidFacts(UnusableAnswer):
    """A model's answer is no list of facts."""


class SummaryFailed(Exception):
    """No model made a usable summary."""


class NoSummaryModel(SummaryFailed, NoModel):
    """No model is configured for summaries."""


class InvalidSummary(SummaryFailed, UnusableAnswer):
    """A model's answer is no summary."""
