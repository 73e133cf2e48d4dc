"""What carrying out a tool call is to those who stitch the answer together."""

from typing import Protocol

import msgspec

from proxy.tools.offer import Offer


class Carrying(Protocol):
    """Carries out the calls of one turn."""

    async def carry_out(self, name: str, arguments: str, until: float) -> str:
        """What the model is told, as JSON, and when the loop's time is ``until`` at the latest.

        A fault is told as well, and raised never.
        """
        ...


class Tools(msgspec.Struct, frozen=True):
    """What one turn may call, who carries it out, and how often the model may be asked again."""

    offer: Offer
    kit: Carrying
    most: int
