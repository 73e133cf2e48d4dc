"""What the archive holds of a person, and how it leaves it."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from proxy.memory.archive.archive import Turn
from proxy.memory.archive.sql import Archive
from proxy.memory.interchange import contents
from proxy.memory.session import TurnRef
from proxy.memory.stores.store import Key, Owner


class Archived:
    """Turns and facts in the archive, and their words in its index."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    async def exported(self, person: Owner) -> Mapping[str, Sequence[Any]]:
        """As the protocol has it; facts that have been replaced are among them."""
        turns: list[Turn] = []
        after = 0
        while page := await self._archive.turns(person, after=after):
            turns += [turn for _, turn in page]
            after = page[-1][0]
        facts = await self._archive.facts(person, now=0.0, superseded=True)
        # In a thread: there may be many, and callers wait on the loop.
        return {"turns": await asyncio.to_thread(_told, turns), "facts": [fact.told() for fact in facts]}

    async def forget(self, person: Owner, *, at: float) -> Mapping[str, int]:
        """As the protocol has it."""
        return (await self._archive.forget(person, at=at))._asdict()

    async def forget_session(self, key: Key, *, at: float) -> Mapping[str, int]:
        """As the protocol has it."""
        return {"turns": await self._archive.forget_session(key, at=at)}

    async def scrub(self) -> None:
        """As the protocol has it."""
        await self._archive.scrub()


def _told(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    # Each by itself: they are of many sessions, whose engines write times in units of their own.
    return [
        {"session_id": turn.session, "timestamp": turn.at, "message": contents([turn.entry])[0]}
        for turn in sorted(turns, key=_order)
    ]


def _order(turn: Turn) -> tuple[float, str, TurnRef]:
    """Talk by talk, and each as it went: the archive has first what a session holds ready."""
    return turn.began, turn.session, turn.entry.turn_ref
