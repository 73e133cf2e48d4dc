"""Which facts the prompts of a session begin with."""

import msgspec


class Told(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What stands still at the head of a session's prompts from one compaction to the next; no word of it.

    ``epoch`` names the time between two compactions. ``facts`` are the ids of what is told of ``person``, in
    order, and ``others`` of what was known then too. ``at`` is when that was, in seconds since 1970.
    """

    person: str
    epoch: bytes
    at: float
    facts: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
