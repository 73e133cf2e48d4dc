"""Messages that filters put in of what memory holds."""

from collections.abc import Sequence
from itertools import takewhile

from filters.message import Message

_SYSTEM = ("system", "developer")


class Injected(Message, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Facts or summaries: the words of nobody in this conversation, whatever the role.

    No client can send one, and nothing tells it from another message on the wire: only its type says it.
    """


def instructions(messages: Sequence[Message]) -> list[Message]:
    """The client's own: the system and developer messages with which the conversation begins."""
    return list(takewhile(lambda m: m.role in _SYSTEM and not isinstance(m, Injected), messages))
