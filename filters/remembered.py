"""What memory hands to filters: the last call, episodes of an agent, earlier turns, facts and documents."""

from datetime import datetime
from typing import Literal

import msgspec

from filters.injection import fence, one_line
from filters.option_types import time_zone

_BY = {"user": "the caller said", "assistant": "you said"}
_LONGEST_NAME = 128


class Remembered(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A turn of an earlier talk, a fact about the person, or a part of a document.

    ``score`` is about 1 where it holds every word of what the caller just said; ``source`` is the session or
    the document, ``at`` when it was said or added, in seconds since 1970. ``place`` is which message of the
    user, counted from 0, a fact was first told with in this talk, where that is not the newest. What
    ``follows`` was said right after the turn before it.
    """

    kind: Literal["turn", "fact", "document"]
    text: str
    score: float = 1.0
    role: str | None = None
    source: str | None = None
    at: float | None = None
    place: int | None = None
    follows: bool = False

    def as_line(self, timezone: str = "UTC", max_length: int = 1_000_000) -> str:
        """One line: ``2026-11-12 the caller said: My dog is called Rex.``; the text cut at ``max_length``."""
        words = one_line(self.text, max_length)
        if self.kind == "document":
            return f"{one_line(self.source or 'a document', max_length)}: {words}"
        day = "" if self.at is None else f"{datetime.fromtimestamp(self.at, time_zone(timezone)):%Y-%m-%d} "
        return f"{day}{'known' if self.kind == 'fact' else _BY.get(self.role or '', 'said')}: {words}"


class LastCall(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What an earlier call was about, line by line; it ended ``at``, in seconds since 1970.

    By its ``record``, as in ``(record 0123456789ab-7)``, a prompt in which it stands already is found: the
    call's own name, and its last turn.
    """

    record: str
    lines: tuple[str, ...]
    at: float

    def is_in(self, text: str) -> bool:
        """Whether a text tells this call."""
        return f"(record {self.record.partition('-')[0]}-" in text

    def as_block(self, introduction: str, timezone: str = "UTC") -> str:
        """The lines in their fence, below the day and the record."""
        day = datetime.fromtimestamp(self.at, time_zone(timezone))
        note = f"{introduction} It was on {day:%Y-%m-%d}. (record {self.record})"
        return fence("last_conversation", note, self.lines)


class Episode(msgspec.Struct, frozen=True, kw_only=True):
    """One interaction of an agent, wherever it happened. ``at`` is in seconds since 1970."""

    at: float
    interaction_type: str
    content: str
    platform: str | None = None

    def as_line(self, timezone: str = "UTC", max_length: int = 1_000_000) -> str:
        """One line: ``[14:23] posted_tweet on x: Just shipped it``; the content cut at ``max_length``."""
        time = datetime.fromtimestamp(self.at, time_zone(timezone))
        kind = one_line(self.interaction_type, _LONGEST_NAME)
        where = f" on {one_line(self.platform, _LONGEST_NAME)}" if self.platform else ""
        return f"[{time:%H:%M}] {kind}{where}: {one_line(self.content, max_length)}"
