"""Which facts the prompts of a session begin with."""

import msgspec


class Told(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What stands still at the head of a session's prompts from one compaction to the next; no word of it.

    ``epoch`` names the time between two compactions. ``facts`` are the ids of what ``person`` was told to
    have, in order, and ``seal`` is that of their words; ``others`` are the ids of what was known then too.
    ``at`` is when it was put together, in seconds since 1970.
    """

    person: str
    epoch: bytes
    seal: bytes
    at: float
    facts: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
