"""What a session that was deleted keeps of itself: nothing that can be read."""

from typing import NamedTuple

import msgspec


class Mark(NamedTuple):
    """What a line is known again by: its words, and its place in the engine's count, if it has one."""

    words: bytes
    stamp: bytes = b""


class Forgotten(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What was said before a deletion, ``at`` seconds since 1970, which is never to be held again.

    ``open`` is whether no window has come since: the first one shows what is forgotten. ``whole`` is whether
    all of the talk until then is, or what one of several said.
    """

    at: float
    marks: tuple[Mark, ...] = ()
    whole: bool = False
    open: bool = False
