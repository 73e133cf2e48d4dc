"""What carrying out a tool call is to those who stitch the answer together."""

from typing import Protocol

import msgspec

from proxy.tools.offer import Offer


class Carrying(Protocol):
    """Carries out the calls of one turn."""

    async def carry_out(self, name: str, arguments: str, until: float) -> str:
        """What the model is told, as JSON, and when the loop's time is ``until`` at the latest.

        A fault is told as well, and raised never. What is told to be changed is owed until it is kept.
        """
        ...

    @property
    def owing(self) -> bool:
        """Whether anything is owed."""
        ...

    def keep(self) -> None:
        """Begins to change what is owed; it never waits."""
        ...

    async def kept(self) -> None:
        """Changes what is owed; returns once that is done, or would take too long."""
        ...


class Tools(msgspec.Struct, frozen=True):
    """What one turn may call, who carries it out, and how often the model may be asked again."""

    offer: Offer
    kit: Carrying
    most: int
