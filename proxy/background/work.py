"""What is done while no caller waits."""

from typing import Protocol

from proxy.memory.session.session import Session
from proxy.memory.store import Key


class Work(Protocol):
    """One kind of work on sessions; the same again changes nothing."""

    @property
    def name(self) -> str:
        """What tells it from other kinds."""
        ...

    @property
    def after(self) -> float:
        """How many seconds after a session was written last something may still become due, by itself."""
        ...

    def due(self, session: Session) -> bool:
        """Whether there is something to do for a session; it costs no more than a look at it."""
        ...

    async def do(self, key: Key, unusable: int) -> bool:
        """Does what is due now; whether there was anything. What it raises is tried again, after pauses.

        ``unusable`` is how many answers a model has given in vain.
        """
        ...

    @property
    def bridges(self) -> bool:
        """Whether anything can stand in for what it does."""
        ...

    async def stand_in(self, key: Key) -> None:
        """Does for now what can be done while ``do`` fails."""
        ...


class Chore(Protocol):
    """Work that finds by itself what is due."""

    async def run(self) -> None:
        """Works until it is cancelled."""
        ...
