"""What a call gets to know of its person's facts, within its deadline."""

import asyncio
from collections.abc import Sequence
from typing import Final

from proxy.memory.archive.archive import Fact
from proxy.memory.errors import StoreError
from proxy.memory.facts.knowledge import Knowledge
from proxy.memory.stores.store import Owner
from proxy.memory.tasks import wait_until_done

_GIVEN_UP: Final = 1.0
_TROUBLE: Final = 2


class Acquaintance:
    """Asks for facts on behalf of calls, which it keeps waiting for ``deadline`` seconds at most.

    A look that came too late goes on for up to a second, and nobody asks for its person meanwhile: there may
    be much to tell of one. Where two are late it is the place that is slow, and nobody asks for anybody.
    """

    def __init__(self, knowledge: Knowledge, *, deadline: float) -> None:
        self._knowledge = knowledge
        self._deadline = deadline
        self._late: dict[asyncio.Task[list[Fact]], Owner] = {}

    def at_once(self, person: Owner) -> Sequence[Fact] | None:
        """What is known where nobody has to wait for it: in an embedded file; else ``None``."""
        try:
            return self._knowledge.at_once(person)
        except Exception:  # noqa: BLE001 - whoever asks again, and waits, hears what ails it
            return None

    async def of(self, person: Owner) -> Sequence[Fact]:
        """What is known of a person, the oldest first. Raises StoreError."""
        if len(self._late) >= _TROUBLE or person in self._late.values():
            raise StoreError("facts did not come in time a moment ago")
        look = asyncio.create_task(self._knowledge.of(person))
        try:
            if await wait_until_done(look, self._deadline):
                return look.result()
        except asyncio.CancelledError:
            look.cancel()
            raise
        self._outlived(look, person)
        raise StoreError("facts come too late")

    def _outlived(self, look: asyncio.Task[list[Fact]], person: Owner) -> None:
        self._late[look] = person
        bell = asyncio.get_running_loop().call_later(_GIVEN_UP - self._deadline, look.cancel)

        def come(_: asyncio.Task[list[Fact]]) -> None:
            bell.cancel()
            del self._late[look]
            if not look.cancelled():
                look.exception()  # the caller has left: whoever asks next hears of it himself

        look.add_done_callback(come)
