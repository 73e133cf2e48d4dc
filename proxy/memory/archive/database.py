"""A database that carries out steps: all of them, or none."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from proxy.memory.archive.steps import Steps

T = TypeVar("T")
Work = Callable[[], Steps[T]]
"""Begins the steps; it may be called more than once, where the first time failed."""


class Database(Protocol):
    """One database. Every method may raise StoreError."""

    async def write(self, work: Work[T]) -> T:
        """What comes of the steps; once this returns, what they changed is durable."""
        ...

    async def read(self, work: Work[T]) -> T:
        """What comes of steps that change nothing."""
        ...

    async def glance(self, work: Work[T]) -> T:
        """The same for steps that find a few rows by their keys, on a call."""
        ...

    def at_once(self, work: Work[T]) -> T | None:
        """The same, where nobody has to wait for it at all; else ``None``."""
        ...

    async def scrub(self) -> None:
        """Nothing that was removed can be read from the database's own files any more."""
        ...

    async def ping(self) -> None:
        """Returns if something could be written now."""
        ...

    async def aclose(self) -> None:
        """What was begun has ended; everything is closed."""
        ...
