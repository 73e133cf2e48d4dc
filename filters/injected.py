"""Messages that filters put in of what memory holds."""

from collections.abc import Sequence
from itertools import takewhile

from filters.message import Message
from filters.role import SYSTEM, newest_user


class Injected(Message, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Facts or summaries: the words of nobody in this conversation, whatever the role.

    No client can send one, and nothing tells it from another message on the wire: only its type says it.
    """


def instructions(messages: Sequence[Message]) -> list[Message]:
    """The client's own: the system and developer messages with which the conversation begins."""
    return list(takewhile(lambda m: m.role in SYSTEM and not isinstance(m, Injected), messages))


def users(messages: Sequence[Message]) -> list[int]:
    """Where words of the user stand."""
    return [i for i, m in enumerate(messages) if m.role == "user" and not isinstance(m, Injected)]


def before_newest(messages: Sequence[Message], block: str) -> Sequence[Message]:
    """The messages, with a block before the newest words of the user; as they are where either is missing."""
    newest = newest_user(messages)
    if newest is None or not block:
        return messages
    return [*messages[:newest], messages[newest].prefixed(f"{block}\n\n"), *messages[newest + 1 :]]
