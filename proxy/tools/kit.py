"""What carrying out a tool call is to those who stitch the answer together."""

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec


class Done(msgspec.Struct, frozen=True):
    """A tool call that has been carried out, and what the model is told of it, as JSON."""

    call: Mapping[str, Any]
    told: str


class Carrying(Protocol):
    """Carries out the calls of one turn."""

    async def carry_out(self, name: str, arguments: str) -> str:
        """What the model is told, as JSON; a fault is told as well, and raised never."""
        ...
