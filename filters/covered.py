"""Messages that a summary stands for."""

from filters.message import Message


class Covered(Message, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message of a turn that a summary covers: it gives way to the summary.

    No client can send one, and nothing tells it from another message on the wire: only its type says it.
    """


def covered(message: Message) -> Covered:
    """The same message, marked."""
    return Covered(
        role=message.role,
        content=message.content,
        name=message.name,
        tool_calls=message.tool_calls,
        tool_call_id=message.tool_call_id,
        turn_id=message.turn_id,
        timestamp=message.timestamp,
        metadata=message.metadata,
        others=message.others,
    )
