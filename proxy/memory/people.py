"""Every place that holds a person's words, and how they leave it."""

import time
from collections import Counter
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from proxy.memory.faults import StoreError, Unread
from proxy.memory.owner import Owner
from proxy.memory.store import Key


class Holding(Protocol):
    """One place that holds words of persons. Every method may raise StoreError."""

    async def exported(self, person: Owner) -> Mapping[str, Sequence[Any]]:
        """All that it holds of a person, by what it is, ready for JSON."""
        ...

    async def forget(self, person: Owner, *, at: float) -> Mapping[str, int]:
        """Removes all of it; what arrived before ``at`` and comes later is refused.

        How much there was, by what it is.
        """
        ...

    async def forget_session(self, key: Key, *, at: float) -> Mapping[str, int]:
        """Removes all of one session, whoever's it is, in the same way."""
        ...

    async def scrub(self) -> None:
        """Nothing that was removed can be read from its own files any more."""
        ...


class People:
    """The registry: whoever keeps a person's words anywhere adds a holding to it."""

    def __init__(self, holdings: Sequence[Holding]) -> None:
        self._holdings = holdings

    async def exported(self, person: Owner) -> dict[str, Any]:
        """All that is held of a person, by what it is; several places may hold some of the same kind."""
        found: dict[str, list[Any]] = {"sessions": [], "turns": [], "facts": []}
        for holding in self._holdings:
            for kind, held in (await holding.exported(person)).items():
                found.setdefault(kind, []).extend(held)
        return {"user": person.person, **found}

    async def forget(self, person: Owner) -> Mapping[str, int]:
        """Removes all that is held of a person; how much there was, by what it is.

        Raises Unread, once all else is gone, for sessions that cannot be read.
        """
        at = time.time()
        return await self._everywhere(holding.forget(person, at=at) for holding in self._holdings)

    async def forget_session(self, tenant: str, session: str) -> Mapping[str, int]:
        """Removes all that is held of a session; how much there was, by what it is."""
        at, key = time.time(), Key(tenant, session)
        return await self._everywhere(holding.forget_session(key, at=at) for holding in self._holdings)

    async def _everywhere(self, works: Iterable[Awaitable[Mapping[str, int]]]) -> Mapping[str, int]:
        """What all of them removed; one that fails holds up no other, and is told of at the end."""
        count, faults = Counter(sessions=0, turns=0, facts=0), list[StoreError]()
        for work in works:
            try:
                count.update(await work)
            except StoreError as fault:
                faults.append(fault)
        await self._scrub()
        if faults:
            # What may be over when it is tried again goes before what will not.
            raise min(faults, key=lambda fault: isinstance(fault, Unread))
        return count

    async def _scrub(self) -> None:
        """The same for what is left in their files."""
        faults: list[StoreError] = []
        for holding in self._holdings:
            try:
                await holding.scrub()
            except StoreError as fault:
                faults.append(fault)
        if faults:
            raise faults[0]
