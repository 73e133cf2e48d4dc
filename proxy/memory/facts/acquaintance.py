"""What a call gets to know of its person's facts, within its deadline."""

import asyncio
from collections.abc import Sequence
from typing import Final

from proxy.memory.archive.archive import Fact
from proxy.memory.facts.knowledge import Knowledge
from proxy.memory.faults import StoreError
from proxy.memory.owner import Owner

_SHUT: Final = 1.0


class Acquaintance:
    """Asks for facts on behalf of calls, which it keeps waiting for ``deadline`` seconds at most.

    Where facts come too late they are not asked for, for a second.
    """

    def __init__(self, knowledge: Knowledge, *, deadline: float) -> None:
        self._knowledge = knowledge
        self._deadline = deadline
        self._shut_until = 0.0

    def at_once(self, person: Owner) -> Sequence[Fact] | None:
        """What is known where nobody has to wait for it: in an embedded file; else ``None``."""
        try:
            return self._knowledge.at_once(person)
        except Exception:  # noqa: BLE001 - whoever asks again, and waits, hears what ails it
            return None

    async def of(self, person: Owner) -> Sequence[Fact]:
        """What is known of a person, the oldest first. Raises StoreError."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._shut_until:
            raise StoreError("facts did not come in time a moment ago")
        try:
            async with asyncio.timeout(self._deadline):
                return await self._knowledge.of(person)
        except TimeoutError:
            self._shut_until = loop.time() + _SHUT
            raise StoreError("facts come too late") from None
