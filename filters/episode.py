"""Something that an agent did lately."""

from datetime import datetime

import msgspec

from filters.line import one_line
from filters.zone import zone_named

_LONGEST_NAME = 128


class Episode(msgspec.Struct, frozen=True, kw_only=True):
    """One interaction of an agent, wherever it happened. ``at`` is in seconds since 1970."""

    at: float
    interaction_type: str
    content: str
    platform: str | None = None

    def told(self, timezone: str = "UTC", max_length: int = 1_000_000) -> str:
        """One line: ``[14:23] posted_tweet on x: Just shipped it``; the content cut at ``max_length``."""
        time = datetime.fromtimestamp(self.at, zone_named(timezone))
        kind = one_line(self.interaction_type, _LONGEST_NAME)
        where = f" on {one_line(self.platform, _LONGEST_NAME)}" if self.platform else ""
        return f"[{time:%H:%M}] {kind}{where}: {one_line(self.content, max_length)}"
