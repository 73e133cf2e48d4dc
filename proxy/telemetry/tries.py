"""What it took to get an answer."""

import msgspec


class Tries(msgspec.Struct, frozen=True, gc=False):
    """A turn's failures before its answer began: upstreams, each with what was wrong, in their order.

    ``again`` names an upstream each time that it was asked once more.
    """

    failed: list[tuple[str, str]] = []
    again: list[str] = []
