"""What carrying out a tool call is to those who stitch the answer together."""

from typing import Protocol


class Carrying(Protocol):
    """Carries out the calls of one turn."""

    async def carry_out(self, name: str, arguments: str) -> str:
        """What the model is told, as JSON; a fault is told as well, and raised never."""
        ...
