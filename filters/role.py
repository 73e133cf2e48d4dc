"""Who speaks: the roles that options may name, and the words that are to be answered."""

from collections.abc import Sequence
from typing import Final, Literal, Protocol

from filters.message import Message

Role = Literal["system", "developer", "user", "assistant", "tool", "function"]

SYSTEM: Final = frozenset({"system", "developer"})
"""The roles of instructions."""


class HasRole(Protocol):
    """Whatever somebody says."""

    @property
    def role(self) -> str:
        """Who."""
        ...


def newest_user(lines: Sequence[HasRole]) -> int | None:
    """Where the newest words of the user stand; ``None`` when there are none."""
    return next((i for i in range(len(lines) - 1, -1, -1) if lines[i].role == "user"), None)


def newest_words(messages: Sequence[Message]) -> str:
    """The newest words of the user; empty when there are none."""
    return next((message.text for message in reversed(messages) if message.role == "user"), "")
