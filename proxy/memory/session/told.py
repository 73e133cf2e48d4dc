"""Which facts the prompts of a session tell, and where."""

from collections.abc import Sequence
from typing import Final

import msgspec

from filters.injected import users
from filters.message import Message

NOW: Final = -1
"""The place of what is told with the newest words."""


class Told(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What stands still in a session's prompts from one compaction to the next; no word of it.

    ``epoch`` names the time between two compactions. ``facts`` are the ids of what is told of ``person`` at
    their head, in order, and ``others`` of what was known then too. ``news`` came to be known since: each id
    with the message of the user, counted from 0, that it was first told with. ``at`` is when any of that
    changed, in seconds since 1970.
    """

    person: str
    epoch: bytes
    at: float
    facts: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    news: tuple[tuple[str, int], ...] = ()


def placed(told: Told | None, shown: Sequence[Message]) -> Told | None:
    """The same, once the prompt is known in which the news was told ``NOW``."""
    if told is None or not any(place == NOW for _, place in told.news):
        return told
    newest = len(users(shown)) - 1
    return msgspec.structs.replace(
        told, news=tuple((name, newest if place == NOW else place) for name, place in told.news)
    )
