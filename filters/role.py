"""Who speaks: the roles that options may name, and the message that is to be answered."""

from collections.abc import Sequence
from typing import Literal

from filters.message import Message

Role = Literal["system", "developer", "user", "assistant", "tool", "function"]


def newest_user(messages: Sequence[Message]) -> int | None:
    """Where the newest message of the user stands; ``None`` when there is none."""
    return next((i for i in range(len(messages) - 1, -1, -1) if messages[i].role == "user"), None)
