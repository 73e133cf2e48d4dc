"""A summary of some turns of a session."""

from typing import NamedTuple

import msgspec


class Reach(NamedTuple):
    """Which turn: its number means nothing without its life. Turns are in the order in which they were."""

    life: int
    turn: int


START = Reach(0, -1)
"""Before all turns."""


class Segment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What stands for all turns behind the former segment's reach, up to and with turn ``turn`` of ``life``.

    ``messages`` is how many messages that are, and ``fingerprint`` is theirs. ``made`` is in seconds since
    1970. ``model`` made it; a ``digest`` is made of the turns' own sentences, until a model answers. One that
    is ``stale`` stands for turns that were corrected since. ``added`` is what it tells beyond its turns,
    in short where that is long: nobody could make it of them again.
    """

    text: str
    life: int
    turn: int
    messages: int = 0
    fingerprint: str = ""
    made: float = 0.0
    model: str | None = None
    digest: bool = False
    stale: bool = False
    added: str = ""

    @property
    def reach(self) -> Reach:
        """The last turn that it stands for."""
        return Reach(self.life, self.turn)
