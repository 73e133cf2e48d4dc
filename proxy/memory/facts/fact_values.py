"""Stores facts in the session store if there is no archive: on Redis alone, and in the process."""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from proxy.memory.archive.records import Fact
from proxy.memory.errors import SessionDeleted, Unreadable
from proxy.memory.privacy import DataHolder
from proxy.memory.stores.store import Owner, Store
from proxy.memory.user_values import UserValue, UserValues

_MOST_SUPERSEDED: Final = 100


class _Facts(UserValue, frozen=True):
    facts: tuple[Fact, ...] = ()


class FactValues(DataHolder):
    """The facts of users in a session store, one value per user. Every method may raise StoreError.

    The newest hundred superseded facts are kept. A fact from before its user was erased is dropped.
    """

    def __init__(self, store: Store) -> None:
        self._values = UserValues(store, "facts", _Facts())

    def users(self, tenant: str) -> AsyncIterator[str]:
        """Yields the users of a tenant who have facts."""
        return self._values.users(tenant)

    async def add_fact(self, user: Owner, fact: Fact) -> None:
        """Adds a fact, or replaces the one with the same id; the one that it ``replaces`` is superseded."""

        def change(stored: _Facts) -> _Facts:
            others = [
                msgspec.structs.replace(one, superseded=fact.created)
                if one.id == fact.replaces and one.superseded is None
                else one
                for one in stored.facts
                if one.id != fact.id
            ]
            return msgspec.structs.replace(stored, facts=tuple(_unexpired([*others, fact], now=fact.created)))

        try:
            await self._values.change(user, change, at=fact.created)
        except SessionDeleted:
            return

    async def facts(self, user: Owner, *, now: float, superseded: bool = False) -> list[Fact]:
        """Reads a user's facts that have not expired, the oldest first."""
        if not user.user:
            return []
        facts = (await self._values.read(user)).facts
        return [
            fact
            for fact in facts
            if (fact.expires is None or fact.expires > now) and (superseded or fact.superseded is None)
        ]

    def facts_nowait(self, user: Owner, *, now: float) -> None:
        """Returns ``None``, because reading from the store always waits."""

    async def remove_fact(self, user: Owner, fact_id: str) -> bool:
        """Removes a fact; returns whether there was one."""

        def change(stored: _Facts) -> _Facts:
            facts = tuple(fact for fact in stored.facts if fact.id != fact_id)
            return msgspec.structs.replace(stored, facts=facts)

        return await self._values.change(user, change)

    async def export(self, user: Owner) -> Mapping[str, Sequence[Any]]:
        """Reads all facts of a user, including superseded ones."""
        try:
            facts = await self.facts(user, now=0.0, superseded=True)
        except Unreadable:
            return {"unreadable": ["facts"]}
        return {"facts": [fact.as_dict() for fact in facts]}

    async def forget(self, user: Owner, *, at: float) -> Mapping[str, int]:  # noqa: ARG002 - the store knows when
        """Deletes all facts of a user; returns how many there were."""
        count = 0
        with suppress(Unreadable):
            count = len((await self._values.read(user, background=True)).facts)
        await self._values.delete(user)
        return {"facts": count}


def _unexpired(facts: Iterable[Fact], *, now: float) -> list[Fact]:
    """Returns the facts, the oldest first, without expired ones and all but the newest superseded ones."""
    kept = sorted(
        (one for one in facts if one.expires is None or one.expires > now), key=lambda one: one.created
    )
    former = [one for one in kept if one.superseded is not None]
    gone = {one.id for one in former[:-_MOST_SUPERSEDED]}
    return [one for one in kept if one.id not in gone]
